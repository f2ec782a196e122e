"""How the simulator opens the real engine: the one place that knows its parts."""

from __future__ import annotations

from sim.schedule import environment
from sim.world import Peer, World
from swamp.cache.layout import CacheDir
from swamp.store.layers import MeterStore
from swamp.store.port import Capabilities
from swamp.store.probe import ignores_conditions
from swamp.store.retry import RetryStore
from swamp.sync.engine import Engine, Policy


def open_engine(world: World, peer: Peer) -> Engine:
    """One process's engine: the real one, with a yield at every store call and every transaction."""
    scheduler = world.scheduler

    def hook(point: str) -> None:
        if point == "commit":
            scheduler.die_here("state commit")
        else:
            scheduler.pause(f"state {point}")

    policy = Policy(
        hydrate="lazy" if peer.lazy else "full",
        push_concurrency=1,
        pull_concurrency=1,
        commit_every=20.0,
        packs=world.seed % 5 != 0,
        portion=100_000 if world.seed % 3 else 2,
        capabilities=capabilities_of(world, peer),
        measure=lambda: ignores_conditions(RetryStore(world.store(peer), peer.env), peer.env),
        doubted=peer.misled and world.mix.conditions,
    )
    return Engine.open(
        MeterStore(RetryStore(world.store(peer), peer.env)),
        peer.cache,
        writer=peer.writer,
        env=peer.env,
        policy=policy,
        hook=hook,
        durable=False,
    )


def capabilities_of(world: World, peer: Peer) -> Capabilities:
    """What this machine believes of the world's bucket: what a probe would find, unless it was misled."""
    enforced = world.mix.conditions != peer.misled
    return Capabilities(create_only=enforced, compare_and_swap=enforced)


def fresh_peer(world: World) -> Peer:
    """Somebody who was never here before."""
    env = environment(world.scheduler, 0.0, world.seed)
    return Peer("fresh", CacheDir(world.place / "fresh"), False, env, 0.0)
