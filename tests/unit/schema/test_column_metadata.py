"""A column survives its description on the wire."""

from __future__ import annotations

import pytest

from snowmelt.errors import Unsupported
from snowmelt.schema.column_metadata import column_fields, column_from_fields
from snowmelt.schema.types import Column, Kind

COLUMNS = [
    Column("ID", Kind.FIXED, 1, nullable=False, precision=38, scale=0),
    Column('odd "name"', Kind.TEXT, 2, length=10, byte_length=40),
    Column("B", Kind.BINARY, 3, byte_length=8),
    Column("R", Kind.REAL, 4),
    Column("T", Kind.TIME, 5, scale=4),
    *(
        Column(f"{kind}_{scale}", kind, 6 + scale, scale=scale)
        for kind in (Kind.TIMESTAMP_NTZ, Kind.TIMESTAMP_LTZ, Kind.TIMESTAMP_TZ)
        for scale in range(10)
    ),
    Column("V", Kind.VARIANT, 20),
    Column("A", Kind.ARRAY, 21),
    Column("O", Kind.OBJECT, 22),
    Column("D", Kind.DATE, 23),
    Column("F", Kind.BOOLEAN, 24),
]


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.name)
def test_a_column_is_read_back_as_it_was_described(column):
    fields = dict(column_fields(column))
    assert column_from_fields(fields) == column
    assert fields["name"] == column.display_name


def test_documents_and_times_carry_what_the_official_client_needs():
    assert column_fields(COLUMNS[1])["name"] == '"odd ""name"""'
    assert column_fields(Column("V", Kind.VARIANT, 1))["byte_length"] == 16_777_216
    assert column_fields(Column("T", Kind.TIME, 1, scale=9))["precision"] == 0
    assert column_fields(Column("T", Kind.TEXT, 1, length=10_000_000))["byte_length"] == 16_777_216


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
def test_a_column_we_cannot_write_is_refused(change):
    with pytest.raises(Unsupported):
        column_from_fields({**column_fields(COLUMNS[0]), **change})


def test_types_are_taken_in_any_case():
    fields = {**column_fields(COLUMNS[0]), "logical_type": "fixed", "physical_type": "sb16"}
    assert column_from_fields(fields) == COLUMNS[0]
