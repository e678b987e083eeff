"""Runs the official high-performance SDK in a separate process, controlled by JSON lines.

The script reads commands from standard input. It writes results to the descriptor in its argument,
because the SDK logs to standard output.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any


class Writer:
    """One client and its channels."""

    def __init__(
        self, properties: Any, database: Any, schema: Any, pipe: Any, *, table_mode: Any
    ) -> None:
        from snowflake.ingest.streaming import StreamingIngestClient

        if table_mode:
            self.client = StreamingIngestClient.from_table(
                "writer", database, schema, pipe, properties=properties
            )
        else:
            self.client = StreamingIngestClient(
                "writer", database, schema, pipe, properties=properties
            )
        self.channels: dict[str, Any] = {}
        self.elastic: Any = None

    def open(self, name: Any, token: Any = None) -> Any:
        self.channels[name], status = self.client.open_channel(name, token)
        return status.latest_committed_offset_token

    def reopen(self, name: Any) -> Any:
        """Open a channel again that has become invalid, with the same client."""
        self.channels[name].close(wait_for_flush=False)
        return self.open(name)

    def append(self, name: Any, rows: list[Any], start: Any = None, end: Any = None) -> None:
        patiently(lambda: self.channels[name].append_rows(rows, start, end))

    def append_bytes(self, name: Any, column: Any, digits: Any, token: Any) -> None:
        """Append a row with one value of type bytes."""
        self.append(name, [{"id": 7, column: bytes.fromhex(digits)}], token, token)

    def append_python(self, name: Any, row: Any, token: Any) -> None:
        """Append a row from Python source, so that its values have Python types."""
        self.append(name, [eval(row, {"dt": datetime, "Decimal": Decimal})], token, token)

    def append_range(self, name: Any, first: Any, last: Any, batch: Any) -> None:
        """Append rows with IDs in [first, last). The token is the last ID."""
        for begin in range(first, last, batch):
            end = min(begin + batch, last)
            rows = [numbered(number) for number in range(begin, end)]
            self.append(name, rows, str(begin), str(end - 1))

    def append_elastic_bytes(self, column: Any, digits: Any) -> None:
        """Append a row with one value of type bytes in the elastic channel."""
        self.append_elastic([{"id": 8, column: bytes.fromhex(digits)}])

    def append_elastic(self, rows: list[Any]) -> None:
        if self.elastic is None:
            self.elastic = self.client.get_elastic_channel()
        patiently(lambda: self.elastic.append_rows(rows, str(len(rows))))

    def flush(self, seconds: int = 60) -> None:
        self.client.wait_for_flush(seconds)

    def commit(self, name: Any, token: Any, seconds: int = 60) -> None:
        self.channels[name].wait_for_commit(lambda given: given == token, seconds)

    def token(self, name: Any) -> Any:
        return self.channels[name].get_latest_committed_offset_token()

    def status(self, name: Any, parsed: Any = None) -> dict[Any, Any]:
        """Return a channel's status once it counts `parsed` rows.

        The SDK's status may be 1 s old.
        """
        while True:
            status = self.channels[name].get_channel_status()
            if parsed in {None, status.rows_parsed_count}:
                break
            time.sleep(0.05)
        return {
            "code": status.status_code,
            "token": status.latest_committed_offset_token,
            "parsed": status.rows_parsed_count,
            "inserted": status.rows_inserted_count,
            "errors": status.rows_error_count,
            "last_error": status.last_error_message,
            "last_error_offset": status.last_error_offset_token_upper_bound,
        }

    def drop(self, name: Any) -> None:
        self.client.drop_channel(name)

    def close(self) -> None:
        self.client.close()


def numbered(number: int) -> dict[Any, Any]:
    return {"id": number, "name": f"row {number}", "at": "2026-11-21T10:00:00"}


def patiently(append: Callable[[], Any]) -> None:
    """Append, and retry while the SDK reports that its buffer is full."""
    while True:
        try:
            append()
        except Exception as error:
            if "Receiver" not in repr(error) and "Saturated" not in str(error):
                raise
            time.sleep(0.01)
        else:
            return


def main() -> None:
    with os.fdopen(int(sys.argv[1]), "w") as answers:

        def tell(work: Callable[..., Any] | Callable[[], None]) -> None:
            try:
                told = {"answer": work()}
            except Exception as error:
                told = {"error": type(error).__name__, "text": str(error)}
            print(json.dumps(told), file=answers, flush=True)

        made = []
        tell(lambda: made.append(Writer(**json.loads(sys.stdin.readline()))))
        for line in sys.stdin:
            name, *arguments = json.loads(line)
            tell(lambda name=name, arguments=arguments: getattr(made[0], name)(*arguments))


if __name__ == "__main__":
    main()
