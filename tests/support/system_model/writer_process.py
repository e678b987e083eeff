"""Client of the SDK in a process of its own, which a run kills with SIGKILL.

Run as `python -m support.system_model.writer_process URL SECONDS`, with the lag of the client. Requests and
responses are pickles after their length in four bytes.
"""

from __future__ import annotations

import datetime as dt
import logging
import pickle
import struct
import sys
from typing import IO, Any

import snowmelt
from snowmelt.client.channel import Channel

_LENGTH = struct.Struct(">I")
_TIMEOUT = dt.timedelta(seconds=90)


def send_message(stream: IO[bytes], message: Any) -> None:
    """Write a message and flush it."""
    body = pickle.dumps(message)
    stream.write(_LENGTH.pack(len(body)) + body)
    stream.flush()


def receive_message(stream: IO[bytes]) -> Any:
    """Return the next message.

    Raises:
        EOFError: If the other process has ended.
    """
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    return pickle.loads(stream.read(_LENGTH.unpack(head)[0]))


class Writer:
    """Channels of a client by the number of their handle. Each method is a request."""

    def __init__(self, url: str, lag_s: float) -> None:
        self._client = snowmelt.Client(url, max_client_lag=dt.timedelta(seconds=lag_s))
        self._channels: dict[int, Channel] = {}

    def open(self, handle: int, name: str, table: str, on_error: str, evolves: bool) -> str | None:
        channel = self._client.open_channel(
            name,
            table=table,
            on_error=on_error,
            compatibility="strict",
            schema_evolution=evolves,
        )
        self._channels[handle] = channel
        return channel.latest_committed_offset_token()

    def insert_rows(self, handle: int, rows: Any, token: str) -> list[tuple[int, str]]:
        result = self._channels[handle].insert_rows(rows, token)
        return [(error.row_index, str(error.error)) for error in result.errors]

    def insert_each(self, handle: int, rows: Any, tokens: list[str]) -> list[tuple[int, str]]:
        """Insert each row by a call of its own, with a token of its own."""
        channel = self._channels[handle]
        results = [channel.insert_row(row, token) for row, token in zip(rows, tokens, strict=True)]
        return [
            (index, str(error.error))
            for index, result in enumerate(results)
            for error in result.errors
        ]

    def insert_arrow(self, handle: int, data: Any, token: str) -> list[tuple[int, str]]:
        result = self._channels[handle].insert_arrow(data, token)
        return [(error.row_index, str(error.error)) for error in result.errors]

    def flush(self, handle: int) -> str | None:
        self._channels[handle].flush(_TIMEOUT)
        return self.token(handle)

    def advance(self, handle: int, token: str) -> None:
        self._channels[handle].advance(token)

    def token(self, handle: int) -> str | None:
        return self._channels[handle].latest_committed_offset_token()

    def resume(self, handle: int) -> str | None:
        return self._channels[handle].resume()

    def close(self, handle: int, drop: bool) -> None:
        self._channels.pop(handle).close(drop=drop)


def main() -> None:
    """Serve requests until the input ends."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING)
    requests, responses = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    writer = Writer(sys.argv[1], float(sys.argv[2]))
    while True:
        try:
            method, arguments = receive_message(requests)
        except EOFError:
            return
        try:
            response = ("ok", getattr(writer, method)(**arguments))
        except Exception as error:
            response = (type(error).__name__, str(error))
        send_message(responses, response)


if __name__ == "__main__":
    main()
