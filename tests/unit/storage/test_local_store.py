"""A local store never leaves its folder and never shows half an object."""

from __future__ import annotations

import contextlib
import datetime as dt
import errno
import hashlib
import os
import pickle
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from snowmelt.errors import ObjectChanged, ObjectMissing, PathRefused, StageUnavailable, SyncFailed
from snowmelt.storage import local_store, verified_disk_sync
from snowmelt.storage.local_store import LocalStore
from snowmelt.storage.store import PARTIAL_PREFIX
from snowmelt.storage.verified_disk_sync import find_sync_limitation


def names_in(folder: Path | str) -> list[Any]:
    return sorted(path.name for path in Path(folder).iterdir())


@pytest.fixture(params=["openat2", "each folder"])
def store(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> LocalStore:
    """Store that opens a path with one system call, or folder by folder as on older kernels."""
    monkeypatch.setattr(LocalStore, "_has_openat2", request.param == "openat2")
    return LocalStore(tmp_path / "stage")


def test_files_are_private(store: LocalStore) -> None:
    store.put("a/b", b"x")
    assert stat.S_IMODE((store.root / "a/b").stat().st_mode) == 0o600
    assert stat.S_IMODE((store.root / "a").stat().st_mode) == 0o700
    assert stat.S_IMODE(store.root.stat().st_mode) == 0o700


def test_a_link_to_a_file_outside_is_refused(store: LocalStore, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"secret")
    store.put("a/b", b"x")
    (store.root / "a/link").symlink_to(secret)
    for operation in (store.get, store.head, lambda path: store.get_range(path, 0, 1)):
        with pytest.raises(PathRefused, match="regular file"):
            operation("a/link")
    assert [info.path for info in store.list()] == ["a/b"]


def test_a_linked_folder_is_never_entered(store: LocalStore, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_bytes(b"f")
    (store.root / "link").symlink_to(outside)
    for operation in (store.get, store.head, store.delete, lambda path: store.put(path, b"x")):
        with pytest.raises(PathRefused):
            operation("link/f")
    assert list(store.list()) == []
    with pytest.raises(PathRefused):
        list(store.list("link"))
    assert (outside / "f").read_bytes() == b"f"


def test_put_and_delete_replace_a_planted_link_itself(store: LocalStore, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"before")
    (store.root / "a").symlink_to(outside)
    store.put("a", b"new")
    assert store.get("a") == b"new"
    (store.root / "b").symlink_to(outside)
    store.delete("b")
    assert outside.read_bytes() == b"before"


def test_a_planted_pipe_does_not_hang_a_reader(store: LocalStore) -> None:
    os.mkfifo(store.root / "pipe")
    with pytest.raises(PathRefused, match="regular file"):
        store.get("pipe")
    with pytest.raises(PathRefused):
        store.head("pipe")
    assert list(store.list()) == []


def test_a_folder_is_no_object(store: LocalStore) -> None:
    store.put("a/b", b"x")
    for operation in (store.get, store.head, store.delete, lambda path: store.put(path, b"x")):
        with pytest.raises(PathRefused):
            operation("a")
    with pytest.raises(PathRefused):
        store.put("a/b/c", b"x")


def test_a_full_disk_leaves_no_object(store: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: Any, data: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("snowmelt.storage.local_store.os.write", full)
    with pytest.raises(StageUnavailable, match="No space left"):
        store.put("a/b", b"x")
    monkeypatch.undo()
    assert list(store.list()) == []
    assert names_in(store.root / "a") == []


@pytest.mark.slow
def test_a_real_full_disk_is_said_so(tmp_path: Path) -> None:
    mounted = tmp_path / "small"
    mounted.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(mounted)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("may not mount")
    try:
        store = LocalStore(mounted / "stage")
        store.put("ok", b"x" * 1000)
        with pytest.raises(StageUnavailable, match="No space left"):
            store.put("a/big", b"x" * 200_000)
        assert [info.path for info in store.list()] == ["ok"]
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


def test_a_put_killed_halfway_leaves_no_visible_object(store: LocalStore) -> None:
    script = """
import os, signal, sys
from snowmelt.storage import local_store as local
real = os.write
def half(file, data):
    real(file, data[: len(data) // 2])
    os.kill(os.getpid(), signal.SIGKILL)
local.os.write = half
local.LocalStore(sys.argv[1]).put("a/b", b"x" * 1000)
"""
    killed = subprocess.run([sys.executable, "-c", script, store.root], check=False)
    assert killed.returncode == -9
    assert list(store.list()) == []
    assert store.head("a/b") is None
    assert len(names_in(store.root / "a")) == 1
    later = dt.datetime.now(dt.UTC) + dt.timedelta(minutes=1)
    assert store.delete_partial_writes(later - dt.timedelta(hours=1)) == 0
    assert store.delete_partial_writes(later) == 1
    assert names_in(store.root / "a") == []


def test_readers_see_the_old_or_the_new_object_only(store: LocalStore) -> None:
    versions = [bytes([number]) * 100_000 for number in range(8)]
    store.put("a", versions[0])
    done = threading.Event()

    def write() -> None:
        for _ in range(20):
            for version in versions:
                store.put("a", version)
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        assert store.get("a") in versions
    writer.join()


def test_delete_removes_the_folders_it_empties(store: LocalStore) -> None:
    store.put("2026/1/2/3/4/a.bdec", b"x")
    store.put("2026/1/2/9/4/b.bdec", b"x")
    store.delete("2026/1/2/3/4/a.bdec")
    assert names_in(store.root / "2026/1/2") == ["9"]
    store.delete("2026/1/2/9/4/b.bdec")
    assert names_in(store.root) == []


def test_names_that_are_no_paths_are_not_listed(store: LocalStore) -> None:
    (store.root / os.fsdecode(b"\xff")).write_bytes(b"x")
    (store.root / "back\\slash").write_bytes(b"x")
    (store.root / f"{PARTIAL_PREFIX}1").write_bytes(b"x")
    store.put("a", b"x")
    assert [info.path for info in store.list()] == ["a"]


def test_a_root_that_vanished_is_unavailable(store: LocalStore) -> None:
    store.root.rmdir()
    for operation in (store.get, lambda path: store.put(path, b"x")):
        with pytest.raises(StageUnavailable):
            operation("a")
    with pytest.raises(StageUnavailable):
        store.sync()


def test_a_kernel_or_sandbox_without_openat2_opens_each_folder(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.put("a/b", b"x")
    # A number that no system call has.
    monkeypatch.setattr(local_store, "_OPENAT2", 100_000)
    monkeypatch.setattr(LocalStore, "_has_openat2", True)
    assert store.get("a/b") == b"x"
    assert not LocalStore._has_openat2


def test_the_root_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    store = LocalStore(tmp_path / "link")
    store.put("a", b"x")
    assert store.root == tmp_path / "real"


def test_a_store_can_be_sent_to_another_process(store: LocalStore) -> None:
    store.put("a", b"x")
    assert pickle.loads(pickle.dumps(store)).get("a") == b"x"


def test_no_descriptors_are_left_open_but_the_one_that_hears_of_failed_writes(
    store: LocalStore,
) -> None:
    store.put("a/b/c", b"x")
    for _ in range(20):
        store.put("a/b/c", b"x")
        store.get("a/b/c")
        store.head("a/b/x")
        list(store.list())
        store.delete("q/r")
        store.sync()
        with pytest.raises(PathRefused):
            store.get("a/b")
    opened = []
    for descriptor in names_in("/proc/self/fd"):
        # That of the listing, and those of threads that others have left, may be closed by now.
        with contextlib.suppress(FileNotFoundError):
            opened.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
    assert [path for path in opened if path.startswith(str(store.root))] == [str(store.root)]


def test_every_sync_asks_the_descriptor_that_was_held_from_the_start(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr("snowmelt.storage.verified_disk_sync.sync_filesystem", asked.append)
    store.watch_writes()
    for name in "abc":
        store.put(name, b"x")
        store.sync()
    assert len(asked) == 3
    assert len(set(asked)) == 1
    assert os.fstat(asked[0]).st_ino == store.root.stat().st_ino


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Callable[..., None]]:
    """Mount a file system; gone when the test ends."""
    folders = []

    def mount(folder: Any, kind: Any, *options: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        command = ["mount", "-t", kind, kind, folder, *options]
        done = subprocess.run(command, capture_output=True, check=False)
        if done.returncode:
            pytest.skip(f"only root can mount a file system: {done.stderr.decode()}")
        folders.append(folder)

    yield mount
    for folder in reversed(folders):
        subprocess.run(["umount", "--lazy", folder], check=True)


def test_a_file_system_that_is_mounted_beneath_is_synced_too(
    store: LocalStore, mounted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    store.watch_writes()
    mounted(store.root / "a", "tmpfs")
    store.put("a/b", b"x")
    monkeypatch.setattr(
        "snowmelt.storage.verified_disk_sync.sync_filesystem",
        lambda folder: asked.append(os.fstat(folder).st_dev),
    )
    store.sync()
    assert asked == [store.root.stat().st_dev, (store.root / "a").stat().st_dev]
    # Another one over the root: both, from the next sync on.
    root = store.root
    mounted(root, "tmpfs")
    store.put("c", b"x")
    asked.clear()
    store.sync()
    assert root.stat().st_dev in asked
    assert len(asked) == 3


def test_a_file_system_that_reports_no_failed_write_is_named(tmp_path: Path, mounted: Any) -> None:
    assert find_sync_limitation(tmp_path) is None
    mounted(tmp_path / "base", "tmpfs")
    places = {name: tmp_path / "base" / name for name in ("lower", "upper", "work")}
    for place in places.values():
        place.mkdir()
    options = f"lowerdir={places['lower']},upperdir={places['upper']},workdir={places['work']}"
    mounted(tmp_path / "over", "overlay", "-o", options)
    assert "overlayfs does not report failed writes" in str(find_sync_limitation(tmp_path / "over"))


def test_a_forked_process_hears_of_failed_writes_by_itself(
    store: LocalStore, tmp_path: Path
) -> None:
    store.watch_writes()
    told = tmp_path / "told"
    child = os.fork()
    if not child:
        try:
            asked: list[int] = []
            verified_disk_sync.sync_filesystem = asked.append  # type: ignore[assignment]
            store.sync()
            # Not the parent's descriptor, nor a copy of it: each has its own memory of errors.
            told.write_text(" ".join(map(str, asked)))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert len(told.read_text().split()) == 1
    store.sync()


def test_an_object_from_before_the_watch_is_compared_with_its_disk(store: LocalStore) -> None:
    md5 = {name: hashlib.md5(name.encode() * 3_000_001).hexdigest() for name in "ab"}
    store.put("a", b"a" * 3_000_001)
    store.watch_writes()
    assert store.is_on_disk("a", md5["a"])
    assert not store.is_on_disk("a", md5["b"])
    store.put("b", b"b" * 3_000_001)
    # Its failed writes are heard of by `sync`: it is not read again.
    assert store.is_on_disk("b", md5["a"])
    with pytest.raises(ObjectMissing):
        store.is_on_disk("c", md5["a"])


@pytest.mark.parametrize("kind", ["put", "durable", "writer"])
def test_puts_and_deletes_that_share_folders_do_not_disturb_each_other(
    store: LocalStore, kind: str
) -> None:
    failures = []

    def put(path: str) -> None:
        if kind == "writer":
            writer = store.open_writer(path)
            writer.write(b"x")
            writer.finish()
        else:
            store.put(path, b"x", durable=kind == "durable")

    def churn(name: str) -> None:
        try:
            for _ in range(300):
                put(f"2026/1/{name}")
                assert store.get(f"2026/1/{name}") == b"x"
                store.delete(f"2026/1/{name}")
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=churn, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert names_in(store.root) == []


def test_a_failed_sync_is_told_from_a_root_that_cannot_be_opened(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("snowmelt.storage.verified_disk_sync.sync_filesystem", fail)
    with pytest.raises(SyncFailed, match="Input/output error"):
        store.sync()


def test_a_file_that_is_written_into_while_it_is_read_is_noticed(store: LocalStore) -> None:
    store.put("a", b"12345")
    path = store.root / "a"
    opened = store.open("a")
    with path.open("ab") as longer:
        longer.write(b"67")
    assert b"".join(opened.read_blocks()) == b"12345"
    opened.close()
    changes: tuple[Callable[[BinaryIO], int], ...] = (
        lambda file: file.write(b"x"),
        lambda file: file.truncate(3),
    )
    for second, change in enumerate(changes, 1):
        opened = store.open("a")
        with path.open("r+b") as file:
            change(file)
        os.utime(path, (second, second))
        with pytest.raises(ObjectChanged):
            opened.read_into(0, memoryview(bytearray(3)))
        with pytest.raises(ObjectChanged):
            list(opened.read_blocks())
        writer = store.open_writer("b")
        with pytest.raises(ObjectChanged):
            writer.append(opened)
        writer.abort()
        opened.close()
