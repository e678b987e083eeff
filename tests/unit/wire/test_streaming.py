"""A column goes over the wire and comes back the same."""

from __future__ import annotations

import msgspec
import pytest

from snowmelt.errors import Unsupported
from snowmelt.schema.types import Column, LogicalType
from snowmelt.wire import streaming
from snowmelt.wire.streaming import ColumnMetadata
from support.chunk_data import every_type


@pytest.mark.parametrize("nullable", [True, False])
def test_every_type_comes_back(nullable: bool) -> None:
    for column in every_type(nullable=nullable).columns:
        encoded = msgspec.json.encode(streaming.column_to_message(column))
        assert (
            streaming.column_from_message(msgspec.json.decode(encoded, type=ColumnMetadata))
            == column
        )


def test_names_are_sent_as_sql_writes_them() -> None:
    column = Column('a"b', LogicalType.REAL, 1)
    assert streaming.column_to_message(column).name == '"a""b"'
    assert streaming.column_from_message(streaming.column_to_message(column)) == column


def test_a_collation_is_unsupported() -> None:
    sent = msgspec.structs.replace(
        streaming.column_to_message(Column("A", LogicalType.REAL, 1)), collation="en"
    )
    with pytest.raises(Unsupported):
        streaming.column_from_message(sent)
