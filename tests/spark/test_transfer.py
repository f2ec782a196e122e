"""One file at a time: retries go to new keys, wrong bytes never arrive, trouble that all files share stops the work."""

import hashlib
from dataclasses import dataclass, field

import pytest

from swamp.env import SYSTEM, Env
from swamp.errors import AccessDenied, Interrupted
from swamp.index.entry import is_payload_key
from swamp.store.open import open_store
from swamp.sync.bulk import Download, Hash, Upload
from swamp.sync.inline import Inline
from swamp.sync.progress import Cancel, IdleTimeout
from swamp.sync.transfer import download_one, hash_one, upload_one
from swamp.testing.faulty import Fault, FaultyStore


@dataclass
class Impatient:
    """Time that passes only in sleeps."""

    at: float = 0.0
    slept: list[float] = field(default_factory=list)

    def now(self):
        return SYSTEM.clock.now()

    def monotonic(self):
        return self.at

    def sleep(self, seconds):
        self.at += seconds
        self.slept.append(seconds)


@pytest.fixture
def env():
    return Env(Impatient(), SYSTEM.rng)


@pytest.fixture
def store(tmp_path):
    (tmp_path / "bucket").mkdir()
    return FaultyStore(open_store((tmp_path / "bucket").as_uri()))


@pytest.fixture
def file(tmp_path):
    made = tmp_path / "file"
    made.write_bytes(b"content")
    return made


def keys(store):
    return [meta.key for page in store.inner.list() for meta in page]


@pytest.mark.inv("object.key-once")
@pytest.mark.parametrize("kind", ["before", "after"])
def test_a_retried_upload_goes_to_a_new_key(store, file, env, kind):
    store.add(Fault(kind, "put", times=2))
    sent = upload_one(store, Upload("data/x", str(file), 7), env)
    assert sent.error is None and sent.sha256 == hashlib.sha256(b"content").hexdigest()
    tried = [fired.key for fired in store.fired] + [sent.key]
    assert len(set(tried)) == 3 and all(is_payload_key(key) for key in tried)
    assert len(env.clock.slept) == 2
    assert len(keys(store)) == (3 if kind == "after" else 1)


def test_an_upload_is_given_up_after_half_a_minute_and_says_so(store, file, env):
    store.add(Fault("before", "put", times=None))
    sent = upload_one(store, Upload("data/x", str(file), 7), env)
    assert sent.key is None and sent.error
    assert sum(env.clock.slept) <= 30


def test_a_file_that_changes_while_it_is_sent_is_marked(store, file, env):
    def touch_then(inner, key, path):
        done = inner(key, path)
        path.write_bytes(b"other content")
        return done

    inner = store.inner.put_file
    store.inner.put_file = lambda key, path: touch_then(inner, key, path)
    assert upload_one(store, Upload("data/x", str(file), 7), env).changed


def test_no_rights_stop_everything_at_once(store, file, env):
    store.add(Fault("refuse", "put", times=None, error=AccessDenied("no")))
    with pytest.raises(AccessDenied):
        upload_one(store, Upload("data/x", str(file), 7), env)
    inline = Inline(store, env, 4)
    with pytest.raises(AccessDenied):
        list(inline.upload([Upload(f"data/{n}", str(file), 7) for n in range(50)], IdleTimeout(env, 300)))


def test_a_body_cut_short_is_fetched_again_and_leaves_no_half_file(store, tmp_path, env):
    store.inner.put("key", b"x" * 1000)
    store.add(Fault("cut", "get", count=10))
    right = hashlib.sha256(b"x" * 1000).hexdigest()
    got = download_one(store, Download("p", "key", 1000, right, str(tmp_path / "staging")), env)
    assert got.error is None and got.sha256 == right
    assert len(list((tmp_path / "staging").iterdir())) == 1


def test_bytes_that_are_wrong_twice_are_reported_and_not_kept(store, tmp_path, env):
    store.inner.put("key", b"rotten")
    got = download_one(store, Download("p", "key", 6, "0" * 64, str(tmp_path / "staging")), env)
    assert got.file is None and "not the bytes" in got.error and got.cause == "corrupt"
    assert list((tmp_path / "staging").iterdir()) == []


def test_a_payload_that_is_not_there_is_told_apart(store, tmp_path, env):
    got = download_one(store, Download("p", "none", 6, None, str(tmp_path / "staging")), env)
    assert got.cause == "missing" and got.file is None


def test_hashing_what_is_not_there_is_a_result(tmp_path):
    assert hash_one(Hash("p", str(tmp_path / "none"))).error


def test_one_thread_is_the_callers_own_and_in_order(store, file, env):
    import threading

    seen = []
    inner = store.inner.put_file
    store.inner.put_file = lambda key, path: seen.append((threading.get_ident(), key)) or inner(key, path)
    jobs = [Upload(f"data/{n:02d}", str(file), 7) for n in range(20)]
    sent = list(Inline(store, env, 1).upload(jobs, IdleTimeout(env, 300)))
    assert [s.path for s in sent] == [j.path for j in jobs]
    assert {thread for thread, _ in seen} == {threading.get_ident()}


def test_when_asked_to_stop_no_more_is_begun(store, file, env):
    cancel = Cancel()
    started = []
    inner = store.inner.put_file

    def put_file(key, path):
        started.append(key)
        if len(started) == 5:
            cancel.request()
        return inner(key, path)

    store.inner.put_file = put_file
    jobs = [Upload(f"data/{n}", str(file), 7) for n in range(500)]
    with pytest.raises(Interrupted):
        list(Inline(store, env, 4).upload(jobs, IdleTimeout(env, 300, cancel)))
    assert len(started) < 100
