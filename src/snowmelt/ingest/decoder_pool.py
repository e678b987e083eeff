"""Pool of child processes that decode blobs, isolated from the service.

The service process does not decode untrusted bytes. A file that crashes a decoder or needs too much
memory ends only a child process. The service rejects the file and starts another process. Decoding
in child processes also keeps the service's interpreter free for requests. Parent and child exchange
length-prefixed MessagePack frames over the child's standard streams.
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
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING

import msgspec

from snowmelt import config
from snowmelt.ingest.blob_decoder import (
    BlobDecodeJob,
    BlobDecodeResult,
    decode_blobs,
    reject_all_chunks,
)
from snowmelt.schema.types import TableSchema
from snowmelt.storage.store_factory import open_store
from snowmelt.wire.streaming import ResponseCode

if TYPE_CHECKING:
    from snowmelt.ingest.blob_decoder import Schemas

_log = logging.getLogger("snowmelt.ingest")

_FRAME_HEADER_BYTES = 8
# Limit of CPU seconds for a batch of at most 16 blobs.
_MAX_CPU_S = 120.0
# A process with a higher memory peak is stopped, which releases its memory.
_MAX_PEAK_MEMORY_BYTES = 512 * 1024 * 1024
# A process caches the schemas of up to this many tables. It is restarted when it has more.
_MAX_CACHED_TABLES = 10_000
_STOP_TIMEOUT_S = 10.0
# Signals that another process or the kernel sends. The kernel kills a process when memory runs out,
# even if its blob is not the cause.
_EXTERNAL_SIGNALS = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
_UNAVAILABLE_REJECTION = (
    ResponseCode.TRY_AGAIN,
    "Cannot verify the blob: no decoder process starts. Send the same bytes again.",
)


class BlobDecoderPool:
    """Pool of up to `count` child processes, started on demand."""

    def __init__(self, stage_url: str, max_processes: int) -> None:
        self._stage_url = stage_url
        # Last in, first out, so that additional processes are only started under load.
        self._idle: queue.LifoQueue[_DecoderProcess | None] = queue.LifoQueue()
        for _ in range(max(max_processes, 1)):
            self._idle.put(None)

    def decode(self, jobs: Sequence[BlobDecodeJob], schemas: Schemas) -> list[BlobDecodeResult]:
        """Return one result for each job. A blob that ends a process twice is rejected."""
        process = self._idle.get()
        try:
            try:
                process = process or self._start_process()
                if process is None:
                    return [reject_all_chunks(job, *_UNAVAILABLE_REJECTION) for job in jobs]
                findings, stays = process.decode(jobs, schemas)
            except _DecoderProcessEnded:
                process = None
                findings = self._decode_one_by_one(jobs, schemas)
                stays = False
            if process is not None and not stays:
                process.stop()
                process = None
            return findings
        finally:
            self._idle.put(process)

    def close(self) -> None:
        """Stop the processes."""
        while True:
            try:
                process = self._idle.get_nowait()
            except queue.Empty:
                return
            if process is not None:
                process.stop()

    def _decode_one_by_one(
        self, jobs: Sequence[BlobDecodeJob], schemas: Schemas
    ) -> list[BlobDecodeResult]:
        findings = []
        process: _DecoderProcess | None = None
        for job in jobs:
            try:
                process = process or self._start_process()
                if process is None:
                    findings.append(reject_all_chunks(job, *_UNAVAILABLE_REJECTION))
                    continue
                found, _ = process.decode([job], schemas)
                findings.extend(found)
            except _DecoderProcessEnded as ended:
                process = None
                findings.append(_reject_crashing_blob(ended, job))
        if process is not None:
            process.stop()
        return findings

    def _start_process(self) -> _DecoderProcess | None:
        try:
            return _DecoderProcess(self._stage_url)
        except OSError as error:
            _log.error("cannot start a decoder process: %s", error)
            return None


class _DecoderProcessEnded(Exception):
    """The child process ended with this exit code, which is negative for a signal."""

    def __init__(self, exit_code: int) -> None:
        super().__init__(exit_code)
        self.exit_code = exit_code


def _reject_crashing_blob(ended: _DecoderProcessEnded, job: BlobDecodeJob) -> BlobDecodeResult:
    """Return the result of a blob that ended a process while it was decoded alone."""
    _log.error(
        "decoding blob %s ended the decoder process with status %d",
        *(job.path, ended.exit_code),
        extra={"path": job.path},
    )
    if -ended.exit_code in _EXTERNAL_SIGNALS:
        message = (
            f"Cannot verify blob {job.path}: its decoder process was killed. Send the same bytes"
            " again."
        )
        return reject_all_chunks(job, ResponseCode.TRY_AGAIN, message)
    return reject_all_chunks(
        job,
        ResponseCode.BLOB_FORMAT_WRONG,
        f"Cannot decode blob {job.path}: it ended the decoder process with status"
        f" {ended.exit_code}.",
    )


class _DecodeRequest(msgspec.Struct, frozen=True, array_like=True):
    jobs: list[BlobDecodeJob]
    schemas: list[tuple[int, TableSchema]]


class _DecodeResponse(msgspec.Struct, frozen=True, array_like=True):
    results: list[BlobDecodeResult]
    peak_bytes: int


_encoder = msgspec.msgpack.Encoder()
_response_decoder = msgspec.msgpack.Decoder(_DecodeResponse)


class _DecoderProcess:
    """One child process. Not thread-safe."""

    def __init__(self, stage_url: str) -> None:
        self._sent_versions: dict[int, set[int]] = {}
        self._child = subprocess.Popen(
            [sys.executable, "-m", "snowmelt.ingest.decoder_pool"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=config.copy_environment(),
        )
        assert self._child.stdin is not None  # noqa: S101 - both were asked for
        assert self._child.stdout is not None  # noqa: S101
        self._child_stdin: IO[bytes] = self._child.stdin
        self._child_stdout: IO[bytes] = self._child.stdout
        with contextlib.suppress(BrokenPipeError):
            _write_frame(self._child_stdin, stage_url.encode())

    def decode(
        self, jobs: Sequence[BlobDecodeJob], schemas: Schemas
    ) -> tuple[list[BlobDecodeResult], bool]:
        """Return the results, and True if the process may be used again.

        Raises:
            _DecoderProcessEnded: If the process ended before it responded.
        """
        batch = _DecodeRequest(list(jobs), self._collect_unsent_schemas(jobs, schemas))
        try:
            _write_frame(self._child_stdin, _encoder.encode(batch))
            reply = _response_decoder.decode(_read_frame(self._child_stdout))
        except (EOFError, BrokenPipeError):
            self._close_streams()
            raise _DecoderProcessEnded(self._child.wait()) from None
        return reply.results, (
            reply.peak_bytes <= _MAX_PEAK_MEMORY_BYTES
            and len(self._sent_versions) <= _MAX_CACHED_TABLES
        )

    def stop(self) -> None:
        """Close the input of the process. Kill it if it is still running 10 s later."""
        self._close_streams()
        try:
            self._child.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    def _collect_unsent_schemas(
        self, jobs: Sequence[BlobDecodeJob], schemas: Schemas
    ) -> list[tuple[int, TableSchema]]:
        """Return the schemas that these jobs need and that the process has not received."""
        unknown = []
        for job in jobs:
            for chunk in job.chunks:
                sent = self._sent_versions.setdefault(chunk.table_id, set())
                for version in chunk.schema_versions:
                    if version not in sent:
                        sent.add(version)
                        unknown.append((chunk.table_id, schemas[chunk.table_id][version]))
        return unknown

    def _close_streams(self) -> None:
        for stream in (self._child_stdin, self._child_stdout):
            with contextlib.suppress(OSError):
                stream.close()


def _write_frame(stream: IO[bytes], frame: bytes) -> None:
    stream.write(len(frame).to_bytes(_FRAME_HEADER_BYTES, "little") + frame)
    stream.flush()


def _read_frame(stream: IO[bytes]) -> bytes:
    head = stream.read(_FRAME_HEADER_BYTES)
    size = int.from_bytes(head, "little")
    frame = stream.read(size) if len(head) == _FRAME_HEADER_BYTES else b""
    if not frame or len(frame) != size:
        raise EOFError
    return frame


def main() -> None:
    """Decode blobs that the parent sends until the parent closes the pipe or ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        # Ignore the signal: the parent handles it, and finishes its requests first.
        signal.signal(number, signal.SIG_IGN)
    # Let the kernel kill this process before the service if memory runs out.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("500")
    replies = os.fdopen(os.dup(1), "wb")
    # Redirect standard output, so that libraries cannot write between the frames.
    os.dup2(2, 1)
    batches = msgspec.msgpack.Decoder(_DecodeRequest)
    known: dict[int, dict[int, TableSchema]] = {}
    with contextlib.suppress(EOFError, BrokenPipeError):
        stage = open_store(_read_frame(sys.stdin.buffer).decode())
        while True:
            batch = batches.decode(_read_frame(sys.stdin.buffer))
            for table_id, schema in batch.schemas:
                known.setdefault(table_id, {})[schema.version] = schema
            # A decoder that never returns would block all clients, so SIGPROF ends the process.
            signal.setitimer(signal.ITIMER_PROF, _MAX_CPU_S)
            findings = decode_blobs(stage, batch.jobs, known)
            signal.setitimer(signal.ITIMER_PROF, 0)
            _write_frame(replies, _encoder.encode(_DecodeResponse(findings, _peak_memory_bytes())))


def _peak_memory_bytes() -> int:
    """Return the peak resident memory of this process, in bytes."""
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        line = next(line for line in lines if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    # On Linux, the value is at least the parent's resident memory at the start of this process.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()
