"""Store of compiled code: what is read back, what is never trusted, and behaviour on a full or broken disk."""

from __future__ import annotations

import errno
import hashlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from operant.compute import code_store
from operant.compute.code_store import CodeStore, UntrustedError, folder

KEY, OTHER = hashlib.sha256(b"one").hexdigest(), hashlib.sha256(b"two").hexdigest()


@pytest.fixture
def store(tmp_path):
    return CodeStore(tmp_path / "operant" / "kernels")


def test_a_stored_payload_is_read_back(store):
    assert store.read(KEY) is None and store.measure() == (0, 0)
    for payload in (b"", b"code", os.urandom(100_000)):
        store.write(KEY, payload)
        assert store.read(KEY) == payload and store.read(OTHER) is None
    assert store.measure() == (1, 100_000 + 80)
    assert os.listdir(store.path) == [KEY]
    assert store.path.stat().st_mode & 0o777 == 0o700 and (store.path / KEY).stat().st_mode & 0o777 == 0o600


def test_every_damaged_byte_is_noticed(store):
    store.write(KEY, b"some code")
    path = store.path / KEY
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert store.read(KEY) is None, place
        path.write_bytes(whole[:place])
        assert store.read(KEY) is None, place
    path.write_bytes(whole + b"x")
    assert store.read(KEY) is None
    path.write_bytes(whole)
    assert store.read(KEY) == b"some code"


def test_a_file_stored_under_another_key_is_not_read(store):
    store.write(KEY, b"some code")
    (store.path / KEY).rename(store.path / OTHER)
    assert store.read(OTHER) is None


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_may_write_is_not_read(store, mode):
    store.write(KEY, b"some code")
    (store.path / KEY).chmod(mode)
    with pytest.raises(UntrustedError, match=f"{KEY} can be written by others"):
        store.read(KEY)


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o1777])
def test_a_folder_that_others_may_write_is_not_used(store, mode):
    store.write(KEY, b"some code")
    store.path.chmod(mode)
    for use in (lambda: store.read(KEY), lambda: store.write(OTHER, b""), store.measure):
        with pytest.raises(UntrustedError, match="kernels can be written by others"):
            use()


@pytest.mark.parametrize("mode", [0o500, 0o755])
def test_a_folder_that_others_may_only_read_is(store, mode):
    store.write(KEY, b"some code")
    store.path.chmod(mode)
    assert store.read(KEY) == b"some code"


def test_a_folder_of_another_user_is_not_used(store, monkeypatch):
    store.write(KEY, b"some code")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(UntrustedError, match="kernels belongs to another user"):
        store.read(KEY)


def test_a_file_of_another_user_is_not_read(store, monkeypatch):
    """Copied code store in a folder of this user."""
    store.write(KEY, b"some code")
    owners = iter([os.getuid(), os.getuid() + 1])
    monkeypatch.setattr(os, "geteuid", lambda: next(owners))
    with pytest.raises(UntrustedError, match=f"{KEY} belongs to another user"):
        store.read(KEY)


def test_symbolic_links_are_not_followed(store, tmp_path):
    store.write(KEY, b"some code")
    elsewhere = tmp_path / "elsewhere"
    (store.path / KEY).rename(elsewhere)
    (store.path / KEY).symlink_to(elsewhere)
    with pytest.raises(OSError, match="symbolic"):
        store.read(KEY)
    store.write(KEY, b"new")
    assert store.read(KEY) == b"new" and not (store.path / KEY).is_symlink()  # replaced, not written through
    store.path.rename(tmp_path / "moved")
    store.path.symlink_to(tmp_path / "moved")
    with pytest.raises(OSError):
        store.read(KEY)


def test_only_regular_files_are_read(store):
    store.write(OTHER, b"")
    os.mkfifo(store.path / KEY, 0o600)
    with pytest.raises(UntrustedError, match="wrong kind"):
        store.read(KEY)  # and does not wait for a writer
    (store.path / KEY).unlink()
    (store.path / KEY).mkdir(mode=0o700)
    with pytest.raises(UntrustedError, match="wrong kind"):
        store.read(KEY)


def test_a_folder_that_cannot_be_created_is_an_error(tmp_path):
    (tmp_path / "operant").write_text("a file")
    store = CodeStore(tmp_path / "operant" / "kernels")
    with pytest.raises(OSError):
        store.read(KEY)
    with pytest.raises(OSError):
        store.write(KEY, b"some code")
    assert store.measure() == (0, 0)


@pytest.mark.parametrize("step", ["write", "rename"])
def test_a_full_disk_keeps_existing_files(store, monkeypatch, step):
    store.write(KEY, b"some code")

    def full(*words, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        if step == "rename":
            patch.setattr(os, "rename", full)
        else:
            patch.setattr(code_store, "_header", lambda key, payload: full())
        with pytest.raises(OSError, match="space"):
            store.write(KEY, b"other code")
    assert store.read(KEY) == b"some code" and os.listdir(store.path) == [KEY]


def test_the_least_recently_used_files_are_evicted(tmp_path):
    keys = [hashlib.sha256(bytes([number])).hexdigest() for number in range(6)]
    store = CodeStore(tmp_path / "kernels", limit_bytes=5 * 1080)
    for age, key in enumerate(keys[:5]):
        store.write(key, bytes(1000))
        os.utime(store.path / key, (1000.0 + age, 1000.0 + age))
    assert store.measure() == (5, 5 * 1080)
    assert store.read(keys[0]) == bytes(1000)  # used now, so the second is the oldest
    (store.path / "not ours").write_bytes(bytes(100))
    store.write(keys[5], bytes(1000))
    assert sorted(name for name in os.listdir(store.path) if name != "not ours") == sorted([keys[0], keys[4], keys[5]])


def test_temporary_files_of_dead_writers_are_deleted(store):
    store.write(KEY, b"some code")
    old, young = store.path / f".{KEY}.1.aaaa", store.path / f".{KEY}.2.bbbb"
    old.touch(), young.touch()
    os.utime(old, (time.time() - 7200.0,) * 2)
    store.write(OTHER, b"")
    assert not old.exists() and young.exists()


def test_concurrent_readers_see_whole_files_or_none(tmp_path):
    payloads = {bytes([number]) * 50_000 for number in range(8)}

    def work(payload):
        store = CodeStore(tmp_path / "kernels", limit_bytes=60_000)
        for _ in range(40):
            store.write(KEY, payload)
            assert store.read(KEY) in payloads | {None}
            store.write(OTHER, payload)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, payloads))
    assert not [name for name in os.listdir(tmp_path / "kernels") if name.startswith(".")]


@pytest.mark.parametrize(
    "variables, expected",
    [
        ({"XDG_CACHE_HOME": "/somewhere"}, Path("/somewhere/operant/kernels")),
        ({"XDG_CACHE_HOME": "relative"}, Path("/a-home/.cache/operant/kernels")),
        ({}, Path("/a-home/.cache/operant/kernels")),
        ({"HOME": "relative"}, None),
        ({"OPERANT_CACHE": "0"}, None),
        ({"OPERANT_CACHE": "off", "XDG_CACHE_HOME": "/somewhere"}, None),
        ({"OPERANT_CACHE": "1"}, Path("/a-home/.cache/operant/kernels")),
    ],
    ids=str,
)
def test_the_folder_follows_the_xdg_specification(monkeypatch, variables, expected):
    for name in ("XDG_CACHE_HOME", "OPERANT_CACHE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/a-home")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert folder() == expected
