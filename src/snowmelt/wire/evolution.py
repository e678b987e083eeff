"""Messages of our own: a client asks for columns that its rows have and the table lacks."""

from __future__ import annotations

import msgspec

from snowmelt.wire.streaming import ColumnMetadata  # noqa: TC001 - msgspec reads it


class NewColumn(msgspec.Struct):
    """A column as DDL writes it, such as `gate` and `VARCHAR`; it may be NULL."""

    name: str
    type: str


class EvolveRequest(msgspec.Struct):
    """`POST /v1/snowmelt/tables/evolve`; names are written as in SQL.

    `encryption_key_id` tells the table of an open channel whatever it is called now.
    """

    database: str | None = None
    schema: str | None = None
    table: str | None = None
    role: str | None = None
    columns: list[NewColumn] = []
    drop_not_null: list[str] = []
    encryption_key_id: int | None = None


class EvolveResponse(msgspec.Struct):
    """The table's columns as they are now, and the names of those that this request changed."""

    status_code: int
    message: str
    schema_version: int = 0
    table_columns: list[ColumnMetadata] = []
    added: list[str] = []
    dropped_not_null: list[str] = []
