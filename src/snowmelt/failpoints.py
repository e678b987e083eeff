"""Failpoints: named points at which a test kills the process or raises an error.

An unarmed failpoint does nothing. The environment variable `SNOWMELT_FAULT` arms the failpoints of
a process, for example `blob.staged=kill`, `blob.staged=kill:3` (at the third passage) or
`stage.write=enospc`. `snowmelt.failpoints.arm` arms a failpoint in the current process. Each
failpoint is used at one position in the code.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable
from enum import StrEnum


class Failpoint(StrEnum):
    """All failpoints. The value of a failpoint is its name in `SNOWMELT_FAULT`."""

    ROWS_BUFFERED = "client.rows_buffered"
    BLOB_BUILT = "client.blob_built"
    STAGE_WRITE = "client.stage_write"
    BLOB_STAGED = "client.blob_staged"
    REGISTERED = "client.registered"
    STORE_SYNC = "store.sync"
    SERVICE_STARTED = "service.started"
    BEFORE_REGISTRATION = "service.before_registration"
    INSIDE_REGISTRATION = "service.inside_registration"
    AFTER_REGISTRATION = "service.after_registration"
    ANSWERING = "service.answering"
    ROWS_STAGED = "rows.staged"
    ROWS_INSIDE_COMMIT = "rows.inside_commit"
    ROWS_COMMITTED = "rows.committed"
    REPLAY_MARKED = "replay.marked"
    REPLAY_INSERTED = "replay.inserted"
    MIGRATION_PLANNED = "migration.planned"
    MIGRATION_TASK = "migration.task"
    MIGRATION_WRITTEN = "migration.written"
    MIGRATION_STAGED = "migration.staged"
    MIGRATION_INSIDE_COMMIT = "migration.inside_commit"
    MIGRATION_COMMITTED = "migration.committed"
    LOAD_BEGUN = "load.begun"
    LOAD_TASK = "load.task"
    LOAD_WRITTEN = "load.written"
    LOAD_REJECTS_PUBLISHED = "load.rejects_published"
    LOAD_STAGED = "load.staged"
    LOAD_INSIDE_COMMIT = "load.inside_commit"
    LOAD_COMMITTED = "load.committed"
    WATCH_LISTED = "watch.listed"
    WATCH_LOADED = "watch.loaded"
    COMPACTION_PLANNED = "compaction.planned"
    COMPACTION_FILE = "compaction.file"
    COMPACTION_WRITTEN = "compaction.written"
    COMPACTION_STAGED = "compaction.staged"
    COMPACTION_INSIDE_COMMIT = "compaction.inside_commit"
    COMPACTION_COMMITTED = "compaction.committed"
    PUBLICATION_FILE = "publication.file"
    PUBLICATION_JOINED = "publication.joined"
    PUBLICATION_WRITTEN = "publication.written"
    PUBLICATION_INSIDE_COMMIT = "publication.inside_commit"
    PUBLICATION_COMMITTED = "publication.committed"
    CLEANUP_MARKED = "cleanup.marked"
    CLEANUP_DELETED = "cleanup.deleted"
    BACKUP_EXPORTED = "backup.exported"
    BACKUP_OBJECT = "backup.object"
    BACKUP_COPIED = "backup.copied"
    BACKUP_COMPLETED = "backup.completed"
    RESTORE_OBJECT = "restore.object"
    RESTORE_COPIED = "restore.copied"
    RESTORE_INSIDE_COMMIT = "restore.inside_commit"
    RESTORE_COMMITTED = "restore.committed"
    REPLICA_CONFIRMED = "replica.confirmed"
    REPLICA_CLOSED = "replica.closed"
    REPLICA_RESIGNED = "replica.resigned"
    REPLICA_RECEIVED = "replica.received"
    REPLICA_OBJECT = "replica.object"
    REPLICA_COPIED = "replica.copied"
    REPLICA_INSIDE_APPLY = "replica.inside_apply"
    REPLICA_APPLIED = "replica.applied"
    REPLICA_HANDED_OVER = "replica.handed_over"
    REPLICA_PROMOTING = "replica.promoting"
    EXPIRY_MARKED = "expiry.marked"
    EXPIRY_DELETING = "expiry.deleting"
    OBJECT_WRITING = "object.writing"
    OBJECT_WRITTEN = "object.written"
    OBJECT_INDEXING = "object.indexing"
    OBJECT_INDEXED = "object.indexed"


_lock = threading.Lock()
# Empty unless a failpoint is armed. Hot paths check it without a call.
armed_failpoints: dict[str, tuple[int, Callable[[], object]]] = {}


def _fail(error: Exception) -> None:
    raise error


_ACTIONS: dict[str, Callable[[], None]] = {
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "terminate": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "enospc": lambda: _fail(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))),
    "eio": lambda: _fail(OSError(errno.EIO, os.strerror(errno.EIO))),
    "raise": lambda: _fail(RuntimeError("failpoint: failed on purpose")),
}


def arm(point: Failpoint, action: Callable[[], object], *, passage: int = 1) -> None:
    """Run `action` once, at the `passage`-th call (from 1) of `hit_failpoint` for this failpoint."""
    with _lock:
        armed_failpoints[point.value] = (passage, action)


def disarm() -> None:
    """Disarm all failpoints."""
    with _lock:
        armed_failpoints.clear()


def arm_from_environment(environment: str | None = None) -> None:
    """Arm the failpoints in `SNOWMELT_FAULT`, a comma-separated list of `point=action[:passage]`.

    Raises:
        ValueError: If a point or an action does not exist.
    """
    text = os.environ.get("SNOWMELT_FAULT", "") if environment is None else environment
    for item in filter(None, text.split(",")):
        name, _, what = item.partition("=")
        action, _, passage = what.partition(":")
        if action not in _ACTIONS:
            raise ValueError(
                f"SNOWMELT_FAULT: unknown action {action!r}. Valid actions: {', '.join(_ACTIONS)}"
            )
        arm(Failpoint(name), _ACTIONS[action], passage=int(passage or 1))


def hit_failpoint(failpoint: Failpoint) -> None:
    """Run the action of a failpoint if it is armed. Costs one dictionary lookup if it is not."""
    if not armed_failpoints:
        return
    with _lock:
        found = armed_failpoints.get(failpoint.value)
        if found is None:
            return
        passages, action = found
        if passages > 1:
            armed_failpoints[failpoint.value] = (passages - 1, action)
            return
        del armed_failpoints[failpoint.value]
    action()


arm_from_environment()
