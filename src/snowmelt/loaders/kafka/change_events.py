"""Change events of Debezium, in its envelope or flattened, as rows of an append table.

Each event is one row: the fields of the row after the change (before it, for a deletion), and the columns
`CDC_OPERATION`, `CDC_TIME`, `CDC_POSITION` and, for an update, `CDC_BEFORE`.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from typing import Any

from snowmelt.json.exact import parse_row
from snowmelt.loaders.kafka.message_rows import MessageInvalid
from snowmelt.schema.types import to_internal_name

_OPERATIONS = {
    "c": "insert",
    "r": "snapshot",
    "u": "update",
    "d": "delete",
    "t": "truncate",
}
_LOGICAL_MESSAGE = "m"
# The fields that order the changes of a source: PostgreSQL, SQL Server and Db2, Oracle, MySQL, MongoDB.
_POSITION_FIELDS = (
    *("lsn", "sequence", "commit_lsn", "change_lsn", "event_serial_no", "scn", "commit_scn"),
    *("file", "pos", "row", "ord", "txId"),
)
_FLATTENED_FIELDS = ("__op", "__deleted")
# Metadata that ExtractNewRecordState can add: fields of the envelope, of `source` and of `transaction`.
_FLATTENED_METADATA = frozenset(
    f"__{prefix}{name}"
    for prefix, names in (
        ("", ("op", "deleted", "before", "after", "source", "transaction")),
        ("transaction_", ("id", "total_order", "data_collection_order")),
        *(
            (prefix, names)
            for prefix in ("", "source_")
            for names in (
                _POSITION_FIELDS,
                ("version", "connector", "name", "ts_ms", "ts_us", "ts_ns", "snapshot", "db"),
                ("schema", "table", "collection", "keyspace", "shard", "rs"),
                ("server_id", "gtid", "thread", "query", "vgtid", "lsid", "txnNumber", "wallTime"),
                ("xmin", "origin", "origin_lsn", "lcr_position", "rs_id", "ssn", "redo_thread"),
                ("user_name", "redo_sql", "row_id", "start_scn", "start_ts_ms", "commit_ts_ms"),
            )
        ),
    )
    for name in names
)
_CHANGE_COLUMNS = frozenset({"CDC_OPERATION", "CDC_TIME", "CDC_POSITION", "CDC_BEFORE"})
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def make_change_row(value: object) -> dict[str, Any] | None:
    """Return the row of a change event; None for a logical message, which has no row.

    Raises:
        MessageInvalid: If the value is not a change event.
    """
    event = value
    if isinstance(event, dict) and set(event) == {"schema", "payload"}:
        # Written by JsonConverter with `schemas.enable`.
        event = event["payload"]
    if not isinstance(event, dict):
        raise MessageInvalid("it is not a change event: its value is not an object")
    if "op" in event and any(name in event for name in ("after", "before", "message")):
        return _unpack_envelope(event)
    if any(name in event for name in _FLATTENED_FIELDS):
        return _unpack_flattened(event)
    reason = "expected `op` with `before` and `after`, or `__op` or `__deleted`"
    raise MessageInvalid(f"it is not a change event of Debezium: {reason}")


def _unpack_envelope(event: dict[str, Any]) -> dict[str, Any] | None:
    if event["op"] == _LOGICAL_MESSAGE:
        return None
    operation = _parse_operation(event["op"])
    before = event.get("before")
    row = _parse_image(before if operation == "delete" else event.get("after"))
    _check_names(row)
    source = event.get("source")
    source = source if isinstance(source, Mapping) else {}
    position = {name: source[name] for name in _POSITION_FIELDS if source.get(name) is not None}
    row["CDC_OPERATION"] = operation
    row["CDC_TIME"] = _parse_time(source.get("ts_us"), source.get("ts_ms") or event.get("ts_ms"))
    row["CDC_POSITION"] = json.dumps(position, default=str) if position else None
    if operation == "update" and before is not None:
        row["CDC_BEFORE"] = _parse_image(before)
    return row


def _unpack_flattened(event: dict[str, Any]) -> dict[str, Any]:
    """Unpack an event of Debezium's ExtractNewRecordState, whose metadata has the prefix `__`."""
    row = {name: each for name, each in event.items() if name not in _FLATTENED_METADATA}
    _check_names(row)
    if event.get("__op") is not None:
        operation = _parse_operation(event["__op"])
    else:
        # Without `add.fields=op`, an insert and an update look the same.
        operation = "delete" if event.get("__deleted") in (True, "true") else "upsert"
    position = {
        name: event[field]
        for name in _POSITION_FIELDS
        for field in (f"__{name}", f"__source_{name}")
        if event.get(field) is not None
    }
    times = event.get("__source_ts_us"), event.get("__source_ts_ms") or event.get("__ts_ms")
    row["CDC_OPERATION"] = operation
    row["CDC_TIME"] = _parse_time(*times)
    row["CDC_POSITION"] = json.dumps(position, default=str) if position else None
    return row


def _parse_operation(code: object) -> str:
    found = _OPERATIONS.get(code) if isinstance(code, str) else None
    if found is None:
        known = ", ".join(_OPERATIONS)
        raise MessageInvalid(f"its operation is {code!r}, expected one of {known}")
    return found


def _check_names(row: dict[str, Any]) -> None:
    """Reject a row if a field has the name of one of the `_CHANGE_COLUMNS`."""
    found = next((name for name in row if to_internal_name(name) in _CHANGE_COLUMNS), None)
    if found is not None:
        raise MessageInvalid(
            f"its field {found!r} has the name of a column of change events. Rename it in the source"
        )


def _parse_image(image: object) -> dict[str, Any]:
    if isinstance(image, str):
        # In events of MongoDB, the document is JSON text.
        document = parse_row(image)
        if isinstance(document, str):
            raise MessageInvalid(f"its document: {document}")
        return document
    if image is None:
        return {}
    if not isinstance(image, Mapping):
        raise MessageInvalid("its `before` or `after` is not an object")
    return dict(image)


def _parse_time(at_us: object, at_ms: object) -> dt.datetime | None:
    """Convert `at_us` (microseconds since 1970), or `at_ms` if it is None, to a time."""
    try:
        if at_us is not None:
            return _EPOCH + dt.timedelta(microseconds=int(str(at_us)))
        if at_ms is not None:
            return _EPOCH + dt.timedelta(milliseconds=int(str(at_ms)))
    except (ValueError, OverflowError) as error:
        raise MessageInvalid(f"its time is {at_us or at_ms!r}") from error
    return None
