"""Processes that export states and read objects for followers.

An interpreter runs one thread at a time. In the service itself, exports would delay registrations.
"""

from __future__ import annotations

import secrets
from typing import IO, BinaryIO

import msgspec

from snowmelt.backup.creation import BackupSource
from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.config import Settings
from snowmelt.errors import ObjectMissing
from snowmelt.replication.protocol import (
    READ_BYTES,
    ExportRequest,
    PullRequest,
    PullResponse,
    ReadBlobsRequest,
    ReadBlobsResponse,
    ReadRequest,
    ReadResponse,
)
from snowmelt.replication.state_export import StateSource
from snowmelt.server.request_process import (
    ProcessResponse,
    make_failure,
    run_request_child,
    serve_requests,
    write_response,
)
from snowmelt.storage.store import Store
from snowmelt.wire.sites import PULL_PATH, READ_PATH, STATES_FOLDER
from snowmelt.wire.streaming import decode_message

_BLOCK_BYTES = 1 << 20
# Changes after a pause wait for the start of a process, and offset tokens wait for changes.
_IDLE_S = 3600.0


def run_exports(settings: Settings, requests: IO[bytes], responses: IO[bytes]) -> None:
    """Handle the requests in `requests` until it ends or no request arrives for an hour."""
    source = BackupSource.open(open_and_upgrade_database(settings.catalog_url), settings)
    source.database.bind_to_history()
    states = StateSource(source)
    for message in serve_requests(requests, responses, idle_s=_IDLE_S):
        request = msgspec.msgpack.decode(message, type=ExportRequest)
        try:
            response = ProcessResponse(_respond(source, states, request))
        except Exception as error:  # noqa: BLE001 - the process goes on
            response = make_failure(error, request.path)
        write_response(responses, response)


def _respond(source: BackupSource, states: StateSource, request: ExportRequest) -> bytes:
    result: object
    if request.path == PULL_PATH:
        result = request.response
        if isinstance(result, PullResponse):
            file = states.export(decode_message(request.body, PullRequest), result)
            if file is not None:
                result.content_path = _keep(source.stage, file)
    elif request.path == READ_PATH:
        result = _read(source, decode_message(request.body, ReadRequest))
    else:
        result = _read_blobs(source.stage, decode_message(request.body, ReadBlobsRequest))
    return msgspec.msgpack.encode(result)


def _keep(stage: Store, file: BinaryIO) -> str:
    """Write a state to the stage, where all services of this site can read it."""
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


def _read(source: BackupSource, request: ReadRequest) -> ReadResponse:
    length = max(min(request.length, READ_BYTES), 0)
    store = source.get_store(request.store)
    found = store.head(request.path)
    if found is None:
        return ReadResponse(-1)
    try:
        content = store.get_range(request.path, max(request.offset, 0), length) if length else b""
    except ObjectMissing:
        return ReadResponse(-1)
    return ReadResponse(found.size, content)


def _read_blobs(stage: Store, request: ReadBlobsRequest) -> ReadBlobsResponse:
    contents: list[bytes | None] = []
    remaining = READ_BYTES
    for path in request.paths:
        if remaining <= 0:
            break
        try:
            content = stage.get(path)
        except ObjectMissing:
            contents.append(None)
        else:
            remaining -= len(content)
            contents.append(content)
    return ReadBlobsResponse(contents)


if __name__ == "__main__":
    run_request_child(run_exports)
