"""Processes that inspect blobs: hostile bytes reach no decoder in the service itself.

A file that crashes a decoder, or takes too much memory, ends one of these processes; the service
rejects the file and starts another. Decoding also leaves the service's interpreter to requests.
Parent and child exchange length-prefixed MessagePack frames over the child's standard streams.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

import msgspec

from snowmelt import config
from snowmelt.ingest.blob_decoder import BlobFinding, BlobJob, inspect_blobs, reject_all
from snowmelt.schema.types import TableSchema  # noqa: TC001 - of frames
from snowmelt.storage.store_factory import open_store
from snowmelt.wire.streaming import ResponseCode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from snowmelt.ingest.blob_decoder import Schemas
    from snowmelt.storage.store import Store

_log = logging.getLogger("snowmelt.ingest")

_LENGTH_BYTES = 8
# For the blobs of one batch, at most sixteen; the largest chunk that is taken decodes in some seconds.
_MAX_PROCESSOR_S = 120.0
# A process that has needed more gives it back by ending.
_MAX_PEAK_BYTES = 512 * 1024 * 1024
# Columns of so many tables stay in a process; then it is started again.
_MAX_TABLES = 10_000
_STOP_S = 10.0
# The kernel ends a process by SIGKILL where memory runs out, which is not the blob's fault alone.
_NOT_BY_THE_BLOB = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})


class Inspector(Protocol):
    """A way to inspect blobs; thread-safe."""

    def inspect(self, jobs: Sequence[BlobJob], schemas: Schemas) -> list[BlobFinding]:
        """Return a finding for each job; see `inspect_blobs`."""

    def close(self) -> None:
        """Release what it holds; no inspection may be under way."""


class LocalInspector:
    """Inspects in the calling thread."""

    def __init__(self, stage: Store) -> None:
        self._stage = stage

    def inspect(self, jobs: Sequence[BlobJob], schemas: Schemas) -> list[BlobFinding]:
        """Return a finding for each job."""
        return inspect_blobs(self._stage, jobs, schemas)

    def close(self) -> None:
        """Hold nothing."""


class ProcessInspector:
    """Inspects in up to `count` processes of its own, which start when they are needed."""

    def __init__(self, stage_url: str, count: int) -> None:
        self._stage_url = stage_url
        # The one that worked last comes first: the others start only under load.
        self._idle: queue.LifoQueue[_Process | None] = queue.LifoQueue()
        for _ in range(max(count, 1)):
            self._idle.put(None)

    def inspect(self, jobs: Sequence[BlobJob], schemas: Schemas) -> list[BlobFinding]:
        """Return a finding for each job; a blob that ends a process twice is rejected."""
        process = self._idle.get()
        try:
            try:
                process = process or self._started()
                if process is None:
                    return [reject_all(job, *_unavailable()) for job in jobs]
                findings, stays = process.ask(jobs, schemas)
            except _Ended:
                process = None
                findings = self._one_by_one(jobs, schemas)
                stays = False
            if process is not None and not stays:
                process.stop()
                process = None
            return findings
        finally:
            self._idle.put(process)

    def close(self) -> None:
        """End the processes."""
        while True:
            try:
                process = self._idle.get_nowait()
            except queue.Empty:
                return
            if process is not None:
                process.stop()

    def _one_by_one(self, jobs: Sequence[BlobJob], schemas: Schemas) -> list[BlobFinding]:
        findings = []
        process: _Process | None = None
        for job in jobs:
            try:
                process = process or self._started()
                if process is None:
                    findings.append(reject_all(job, *_unavailable()))
                    continue
                found, _ = process.ask([job], schemas)
                findings.extend(found)
            except _Ended as ended:
                process = None
                findings.append(_after(ended, job))
        if process is not None:
            process.stop()
        return findings

    def _started(self) -> _Process | None:
        try:
            return _Process(self._stage_url)
        except OSError as error:
            _log.error("no process that inspects blobs can be started: %s", error)
            return None


class _Ended(Exception):
    """The process has ended with this code; negative for a signal."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def _unavailable() -> tuple[ResponseCode, str]:
    return (
        ResponseCode.TRY_AGAIN,
        "The blob cannot be verified: no process that inspects blobs starts. Send the same bytes again.",
    )


def _after(ended: _Ended, job: BlobJob) -> BlobFinding:
    """Return what becomes of a blob whose inspection alone has ended a process."""
    _log.error(
        "the inspection of blob %s ended its process with %d",
        *(job.path, ended.code),
        extra={"path": job.path},
    )
    if -ended.code in _NOT_BY_THE_BLOB:
        message = f"Blob {job.path} cannot be verified now: its inspection was ended."
        return reject_all(job, ResponseCode.TRY_AGAIN, message)
    return reject_all(
        job,
        ResponseCode.BLOB_FORMAT_WRONG,
        f"Blob {job.path} is no blob that can be read: the process that decoded it ended with"
        f" {ended.code}.",
    )


class _Setup(msgspec.Struct, frozen=True, array_like=True):
    stage_url: str


class _Columns(msgspec.Struct, frozen=True, array_like=True):
    table_id: int
    schema: TableSchema


class _Batch(msgspec.Struct, frozen=True, array_like=True):
    jobs: list[BlobJob]
    columns: list[_Columns]


class _Reply(msgspec.Struct, frozen=True, array_like=True):
    findings: list[BlobFinding]
    peak_bytes: int


_encoder = msgspec.msgpack.Encoder()
_replies = msgspec.msgpack.Decoder(_Reply)


class _Process:
    """One child process; for one thread at a time."""

    def __init__(self, stage_url: str) -> None:
        self._sent: dict[int, set[int]] = {}
        self._child = subprocess.Popen(
            [sys.executable, "-m", "snowmelt.ingest.decoder_pool"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=config.copy_environment(),
        )
        assert self._child.stdin is not None  # noqa: S101 - both were asked for
        assert self._child.stdout is not None  # noqa: S101
        self._to: IO[bytes] = self._child.stdin
        self._from: IO[bytes] = self._child.stdout
        with contextlib.suppress(BrokenPipeError):
            _write(self._to, _encoder.encode(_Setup(stage_url)))

    def ask(self, jobs: Sequence[BlobJob], schemas: Schemas) -> tuple[list[BlobFinding], bool]:
        """Return findings, and whether the process may go on.

        Raises:
            _Ended: The process has ended before it answered.
        """
        batch = _Batch(list(jobs), self._unknown(jobs, schemas))
        try:
            _write(self._to, _encoder.encode(batch))
            reply = _replies.decode(_read(self._from))
        except (EOFError, BrokenPipeError):
            self._close_streams()
            raise _Ended(self._child.wait()) from None
        return reply.findings, (
            reply.peak_bytes <= _MAX_PEAK_BYTES and len(self._sent) <= _MAX_TABLES
        )

    def stop(self) -> None:
        """End it by closing its input; insist after ten seconds."""
        self._close_streams()
        try:
            self._child.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    def _unknown(self, jobs: Sequence[BlobJob], schemas: Schemas) -> list[_Columns]:
        """Return the columns that these jobs need and the process does not have yet."""
        unknown = []
        for job in jobs:
            for chunk in job.chunks:
                sent = self._sent.setdefault(chunk.table_id, set())
                for version in chunk.versions:
                    if version not in sent:
                        sent.add(version)
                        unknown.append(_Columns(chunk.table_id, schemas[chunk.table_id][version]))
        return unknown

    def _close_streams(self) -> None:
        for stream in (self._to, self._from):
            with contextlib.suppress(OSError):
                stream.close()


def _write(stream: IO[bytes], frame: bytes) -> None:
    stream.write(len(frame).to_bytes(_LENGTH_BYTES, "little") + frame)
    stream.flush()


def _read(stream: IO[bytes]) -> bytes:
    head = stream.read(_LENGTH_BYTES)
    size = int.from_bytes(head, "little")
    frame = stream.read(size) if len(head) == _LENGTH_BYTES else b""
    if not frame or len(frame) != size:
        raise EOFError
    return frame


def main() -> None:
    """Inspect what the parent sends, until it closes the pipe or ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # The parent decides: it still answers what it has taken.
        signal.signal(number, signal.SIG_IGN)
    # Where memory runs out, this process goes before the service.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")
    replies = os.fdopen(os.dup(1), "wb")
    # What a library prints must not end up between the frames.
    os.dup2(2, 1)
    batches = msgspec.msgpack.Decoder(_Batch)
    known: dict[int, dict[int, TableSchema]] = {}
    with contextlib.suppress(EOFError, BrokenPipeError):
        setup = msgspec.msgpack.decode(_read(sys.stdin.buffer), type=_Setup)
        stage = open_store(setup.stage_url)
        while True:
            batch = batches.decode(_read(sys.stdin.buffer))
            for columns in batch.columns:
                known.setdefault(columns.table_id, {})[columns.schema.version] = columns.schema
            # A decoder that does not come to an end would hold up all clients: SIGPROF ends it.
            signal.setitimer(signal.ITIMER_PROF, _MAX_PROCESSOR_S)
            findings = inspect_blobs(stage, batch.jobs, known)
            signal.setitimer(signal.ITIMER_PROF, 0)
            _write(replies, _encoder.encode(_Reply(findings, _peak_bytes())))


def _peak_bytes() -> int:
    """Return the most memory that this process has had resident."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        line = next(line for line in lines if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    # On Linux this is at least what the parent had when it started the process.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
