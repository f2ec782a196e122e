"""The storm is over: everybody syncs a few times, and then everything must be where it belongs."""

from __future__ import annotations

import shutil

from sim.act import Process
from sim.deliver import check_delivered
from sim.open import fresh_peer, open_engine
from sim.oracle import Delete, Write, version_of
from sim.reading import sha_of
from sim.upgrade import make_known
from sim.world import Peer, World
from swamp.errors import SwampError
from swamp.sync.engine import Engine
from swamp.sync.progress import IdleTimeout
from swamp.sync.verify import verify

ROUNDS = 8
LATEST = 500_000.0
"""Seconds after which nothing is under way any more."""


def settle(world: World) -> None:
    """Raises Violation unless the world comes to rest in a state that is right."""
    world.scheduler.note("== settling")
    world.scheduler.advance(LATEST)
    make_known(world.oracle)
    engines = [(peer, _opened(world, peer)) for peer in world.peers]
    try:
        if world.operations["rot"]:
            _heal(world, engines)
        for peer, engine in engines:
            _tidy(world, peer, engine)
            if peer.hollow:
                _synced(world, peer, engine, full=True)
        for peer, engine in engines if world.kept else ():
            Process(world, peer, engine).do_deliver()
        _until_quiet(world, engines)
        for peer, engine in engines:
            _check_peer(world, peer, engine)
    finally:
        for _, engine in engines:
            engine.close()
    _check_fresh(world)
    _check_kept(world)
    _check_deletes(world)
    _check_survivors(world)


def _opened(world: World, peer: Peer) -> Engine:
    try:
        return open_engine(world, peer)
    except SwampError as error:
        world.fail("cache.disposable", f"{peer.name} cannot open its cache: {world.said(error)}")


def _tidy(world: World, peer: Peer, engine: Engine) -> None:
    """The user removes versions that a crash left without metadata: they do not exist, and never will."""
    files = [p for p, _ in peer.tree()]
    whole = {version_of(p) for p in files if p.endswith("/metadata.yaml")}
    for unit in sorted({version_of(p) for p in files} - whole - {""}):
        shared = any(version_of(p) == unit for p in world.oracle.live)
        world.scheduler.note(f"{peer.name} tidies {unit}")
        world.lost |= {sha_of(body) for path, body in peer.tree() if version_of(path) == unit}
        with engine.announce([unit], "write" if shared else "delete"):
            shutil.rmtree(peer.cache.tree / unit)


def _heal(world: World, engines: list[tuple[Peer, Engine]]) -> None:
    """Who has the bytes of what the bucket lost uploads them again; what nobody has any more is given up."""
    for peer, engine in engines:
        found = verify(engine.context, IdleTimeout(peer.env, 300.0), threads=1, repair=True)
        world.scheduler.note(f"{peer.name} heals {found.healed}")
    peer, engine = engines[-1]
    for path in found.missing:
        sha = world.oracle.live[path].sha
        world.lost.add(sha)
        world.oracle.deleted(peer.name, path, {sha}).told = True
    verify(engine.context, IdleTimeout(peer.env, 300.0), threads=1, repair=True, drop=found.missing)


def _until_quiet(world: World, engines: list[tuple[Peer, Engine]]) -> None:
    for _ in range(ROUNDS):
        quiet = True
        for peer, engine in engines:
            quiet &= _synced(world, peer, engine)
        if quiet:
            return
    world.fail("sync.derived", f"not quiet after {ROUNDS} rounds of sync")


def _synced(world: World, peer: Peer, engine: Engine, *, full: bool = False) -> bool:
    try:
        result = engine.sync(full=full)
    except SwampError as error:
        world.fail("sync.derived", f"{peer.name} cannot sync in calm weather: {world.said(error)}")
    told = {c.path for c in result.conflicts}
    world.oracle.excuse(peer.name, told)
    world.scheduler.note(
        f"{peer.name} sync: pushed {result.files_pushed} pulled {result.files_pulled} deleted {result.files_deleted}"
        f" conflicts {sorted(told)} failed {[f.path for f in result.failed]} fast {result.fast_path}"
    )
    return result.fast_path


def _check_peer(world: World, peer: Peer, engine: Engine) -> None:
    result = engine.sync()
    enough = 1 if world.mix.conditions else 2  # without conditions the root is compared with the log
    if not result.fast_path or (result.requests > enough and world.oracle.root is not None):
        world.fail("sync.derived", f"{peer.name}: a second sync is not one request: {result}")
    remote = {r.path for r in engine.remote_only()}
    if remote and not peer.lazy:
        world.fail("sync.derived", f"{peer.name} is not lazy and leaves {sorted(remote)} in the bucket")
    _compare(world, peer.name, dict(peer.tree()), remote)


def _compare(world: World, name: str, tree: dict[str, bytes], remote: set[str]) -> None:
    here = {path: sha_of(body) for path, body in tree.items()}
    there = {path: live.sha for path, live in world.oracle.live.items() if path not in remote or path in here}
    for path in sorted(here.keys() | there.keys()):
        if here.get(path) != there.get(path):
            mine, theirs = (here.get(path) or "nothing")[:8], (there.get(path) or "nothing")[:8]
            world.fail("sync.derived", f"{name} holds {mine} at {path}, the bucket {theirs}")


def _check_fresh(world: World) -> None:
    """Whatever was acknowledged, somebody new can read."""
    peer = fresh_peer(world)
    engine = open_engine(world, peer)
    try:
        result = engine.pull()
        if result.failed or result.conflicts:
            world.fail("read.snapshot", f"a fresh pull is not clean: {result}")
        _compare(world, "a fresh peer", dict(peer.tree()), set())
        check_delivered(world, dict(peer.tree()))
    finally:
        engine.close()


def _check_kept(world: World) -> None:
    """Nobody's finished work is gone: it is live, it was replaced by somebody who had seen it, or it is kept aside."""
    kept = set().union(*(p.kept() for p in world.peers)) | world.lost
    for path, events in world.oracle.writes.items():
        live = world.oracle.live.get(path)
        for event in events:
            if event.done is None or event.lost or event.sha in kept or (live and live.sha == event.sha):
                continue
            if not _superseded(world, event):
                world.fail("journal.survives", f"{path}: {event.sha[:8]} of {event.peer} is nowhere")


def _superseded(world: World, event: Write) -> bool:
    writes = (w for w in world.oracle.writes[event.path] if w.sha != event.sha and w.done is not None)
    deletes = (d for d in world.oracle.deletes[event.path] if d.effect)
    later: list[Write | Delete] = [*writes, *deletes]
    # The same bytes written twice are one file: whoever replaced or deleted the first has replaced both.
    once = sum(w.sha == event.sha for w in world.oracle.writes[event.path]) == 1
    return any(event.sha in e.seen and (e.at >= event.at or not once) for e in later)


def _check_deletes(world: World) -> None:
    """What was deleted is gone, or its user was told why not."""
    for path, events in world.oracle.deletes.items():
        live = world.oracle.live.get(path)
        for event in events:
            if live is None or event.done is None or event.told or live.sha not in event.seen:
                continue
            if not world.oracle.knew(event, live.key):
                continue
            if not any(w.sha == live.sha and w.at > event.at for w in world.oracle.writes[path]):
                world.fail("delete.intent", f"{path}: deleted by {event.peer}, and {live.sha[:8]} is still there")


def _check_survivors(world: World) -> None:
    """A bucket that was emptied takes no file away from anybody: it is there again, unless a user deleted it since."""
    for path in sorted(world.survivors - world.oracle.live.keys()):
        if not any(d.effect and d.at >= (world.recreated or 0.0) - 60.0 for d in world.oracle.deletes[path]):
            world.fail("state.bound", f"{path} was in a cache when the bucket was emptied, and is gone")
