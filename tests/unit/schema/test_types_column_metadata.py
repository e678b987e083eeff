"""A column survives its description on the wire."""

from __future__ import annotations

import pytest

from snowmelt.catalog.sql.lexer import tokenize
from snowmelt.errors import Unsupported
from snowmelt.schema.types import Column, LogicalType, column_from_fields, column_to_fields

COLUMNS = [
    Column("ID", LogicalType.FIXED, 1, nullable=False, precision=38, scale=0),
    Column('odd "name"', LogicalType.TEXT, 2, length=10, byte_length=40),
    Column("B", LogicalType.BINARY, 3, byte_length=8),
    Column("R", LogicalType.REAL, 4),
    Column("T", LogicalType.TIME, 5, scale=4),
    *(
        Column(f"{kind}_{scale}", kind, 6 + scale, scale=scale)
        for kind in (LogicalType.TIMESTAMP_NTZ, LogicalType.TIMESTAMP_LTZ, LogicalType.TIMESTAMP_TZ)
        for scale in range(10)
    ),
    Column("V", LogicalType.VARIANT, 20),
    Column("A", LogicalType.ARRAY, 21),
    Column("O", LogicalType.OBJECT, 22),
    Column("D", LogicalType.DATE, 23),
    Column("F", LogicalType.BOOLEAN, 24),
]


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.name)
def test_a_column_is_read_back_as_it_was_described(column: Column) -> None:
    fields = dict(column_to_fields(column))
    assert column_from_fields(fields) == column
    assert fields["name"] == column.display_name


def test_documents_and_times_carry_what_the_official_client_needs() -> None:
    assert column_to_fields(COLUMNS[1])["name"] == '"odd ""name"""'
    assert column_to_fields(Column("V", LogicalType.VARIANT, 1))["byte_length"] == 16_777_216
    assert column_to_fields(Column("T", LogicalType.TIME, 1, scale=9))["precision"] == 0
    assert (
        column_to_fields(Column("T", LogicalType.TEXT, 1, length=10_000_000))["byte_length"]
        == 16_777_216
    )


@pytest.mark.parametrize(
    "change",
    [
        {"collation": "en-ci"},
        {"logical_type": "ANY"},
        {"precision": None},
        {"scale": None},
        {"physical_type": "SB8"},
    ],
)
def test_a_column_we_cannot_write_is_refused(change: dict[str, None] | dict[str, str]) -> None:
    with pytest.raises(Unsupported):
        column_from_fields({**column_to_fields(COLUMNS[0]), **change})


def test_types_are_taken_in_any_case() -> None:
    fields = {**column_to_fields(COLUMNS[0]), "logical_type": "fixed", "physical_type": "sb16"}
    assert column_from_fields(fields) == COLUMNS[0]


def test_a_default_in_sql_is_read_as_the_same_text() -> None:
    text = "it's \\n"
    written = Column("T", LogicalType.TEXT, 1, length=9, default=text).default_sql
    assert written == "'it''s \\\\n'"
    assert tokenize(written)[0].text == text
