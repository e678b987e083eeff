"""The process that reads for followers: states from the catalog, and blobs from the stage.

In the process of the service, this work would hold the interpreter lock, and so delay registrations.
"""

from __future__ import annotations

import os
import secrets
from concurrent.futures import ThreadPoolExecutor
from typing import IO, TYPE_CHECKING, BinaryIO

import msgspec

from snowmelt.config import Settings
from snowmelt.errors import ServiceBusy
from snowmelt.replication.protocol import (
    READ_BYTES,
    PullRequest,
    PullResponse,
    ReadBlobsResponse,
)
from snowmelt.server.request_process import (
    ProcessResponse,
    RequestProcess,
    make_failure,
    serve_requests,
    write_message,
)
from snowmelt.storage.store import Store
from snowmelt.wire.sites import STATES_FOLDER

if TYPE_CHECKING:
    from snowmelt.replication.state_export import StateSource

_MODULE = "snowmelt.server.replication.reading_process"
# The follower waits for 30 s, and asks again.
_TIMEOUT_S = 300.0
# Registrations come first.
_NICE = 5
_BLOCK_BYTES = 1 << 20


class ExportMessage(msgspec.Struct, tag="export"):
    """Asks for the content of a state that was begun."""

    request: PullRequest
    response: PullResponse


class BlobsMessage(msgspec.Struct, tag="blobs"):
    """Asks for the first of some blobs."""

    paths: list[str]


class ReadingResponse(msgspec.Struct):
    """A response for the follower, or an error. `content_path` is where a large state was written to."""

    body: bytes = b""
    content_path: str | None = None
    failure: bytes | None = None


class ReadingProcess:
    """Handle of the process in the service. It starts with the first request.

    Use `read` in the only thread of `threads`: requests wait there, and not in threads that serve others.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.threads = ThreadPoolExecutor(1, thread_name_prefix="replica-reads")
        self._process: RequestProcess | None = None
        self._is_closed = False

    def read(self, message: ExportMessage | BlobsMessage) -> ReadingResponse:
        """Send a request and return the response.

        Raises:
            ServiceBusy: If the process ends, or the service is stopping.
            SnowmeltError: If the process could not read.
        """
        body = msgspec.msgpack.encode(message)
        # An idle process may have ended just now. Reading again is safe.
        for _ in range(2):
            if self._process is None or not self._process.is_running():
                self._end_process()
                self._process = RequestProcess(self._settings, _MODULE)
            if self._is_closed:
                break
            received = self._process.exchange(body, _TIMEOUT_S)
            if received is not None:
                response = msgspec.msgpack.decode(received, type=ReadingResponse)
                if response.failure is not None:
                    msgspec.json.decode(response.failure, type=ProcessResponse).get_body()
                return response
        raise ServiceBusy(reason="the process that reads for followers has ended. Retry later")

    def close(self) -> None:
        """Stop the process. A running request fails."""
        self._is_closed = True
        process = self._process
        if process is not None:
            process.kill()
        self.threads.shutdown()
        self._end_process()

    def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.stop()


def serve_reads(
    states: StateSource, stage: Store, requests: IO[bytes], responses: IO[bytes]
) -> None:
    """Serve the requests until they end or no request arrives for five minutes."""
    for body in serve_requests(requests, responses):
        message = msgspec.msgpack.decode(body, type=ExportMessage | BlobsMessage)
        try:
            if isinstance(message, ExportMessage):
                response = _export(states, stage, message)
            else:
                contents = stage.get_each(message.paths, max_bytes=READ_BYTES)
                response = ReadingResponse(
                    msgspec.msgpack.encode(ReadBlobsResponse(list(contents)))
                )
        except Exception as error:  # noqa: BLE001 - the process goes on
            failure = make_failure(error, "a read for a follower")
            response = ReadingResponse(failure=msgspec.json.encode(failure))
        write_message(responses, msgspec.msgpack.encode(response))


def _export(states: StateSource, stage: Store, message: ExportMessage) -> ReadingResponse:
    response = message.response
    file = states.export_state(message.request, response)
    if file is not None:
        response.content_path = _write_content(stage, file)
    return ReadingResponse(msgspec.msgpack.encode(response), response.content_path)


def _write_content(stage: Store, file: BinaryIO) -> str:
    """Write a content to the stage, where all services of this site can read it."""
    path = f"{STATES_FOLDER}/{secrets.token_hex(16)}"
    writer = stage.open_writer(path)
    try:
        with file:
            file.seek(0)
            while block := file.read(_BLOCK_BYTES):
                writer.write(block)
        writer.finish()
    finally:
        writer.abort()
    return path


if __name__ == "__main__":
    import sys

    from snowmelt.replication.state_export import StateSource
    from snowmelt.server.logs import configure_logging
    from snowmelt.server.replication.site_process import open_source

    os.nice(_NICE)
    _settings = Settings.load()
    configure_logging(_settings)
    _source = open_source(_settings)
    serve_reads(StateSource(_source), _source.stage, sys.stdin.buffer, sys.stdout.buffer)
