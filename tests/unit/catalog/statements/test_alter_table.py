"""ALTER TABLE as it is written, and the place of what is wrong with it."""

from __future__ import annotations

import pytest

from snowmelt.catalog.sql.cursor import ObjectName
from snowmelt.catalog.sql.lexer import SourcePosition
from snowmelt.catalog.statements.alter_table import (
    AddColumns,
    AlterColumns,
    AlterTable,
    ClusterBy,
    ColumnChange,
    ColumnName,
    DropColumns,
    RenameColumn,
    RenameTable,
    SetProperties,
    TableChange,
)
from snowmelt.catalog.statements.executor import parse_statement
from snowmelt.errors import StatementError
from snowmelt.schema.types import Column, LogicalType

A = Column("A", LogicalType.FIXED, 0, precision=38, scale=0)


def named(name: str, column: int) -> ColumnName:
    return ColumnName(name, SourcePosition(1, column))


MEANINGS = {
    "ADD COLUMN a INT": AddColumns((A,), (SourcePosition(1, 26),), frozenset()),
    "ADD a INT NULL;": AddColumns((A,), (SourcePosition(1, 19),), frozenset()),
    "ADD COLUMN IF NOT EXISTS a INT, d DATE NOT NULL": AddColumns(
        (A, Column("D", LogicalType.DATE, 0, nullable=False)),
        (SourcePosition(1, 40), SourcePosition(1, 47)),
        frozenset({"A"}),
    ),
    'DROP COLUMN a, "b c"': DropColumns((named("A", 27), named("b c", 30)), if_exists=False),
    "DROP COLUMN IF EXISTS a": DropColumns((named("A", 37),), if_exists=True),
    "DROP a": DropColumns((named("A", 20),), if_exists=False),
    "RENAME COLUMN a TO b": RenameColumn(named("A", 29), named("B", 34)),
    "RENAME TO s.u": RenameTable(("S", "U")),
    "ALTER COLUMN a DROP NOT NULL": AlterColumns((ColumnChange(named("A", 28), None),)),
    "MODIFY a SET DATA TYPE INT, COLUMN b DROP NOT NULL": AlterColumns(
        (ColumnChange(named("A", 22), A), ColumnChange(named("B", 50), None))
    ),
    "ALTER a TYPE INT": AlterColumns((ColumnChange(named("A", 21), A),)),
    "CLUSTER BY (a, b)": ClusterBy((named("A", 27), named("B", 30))),
    "DROP CLUSTERING KEY": ClusterBy(()),
    "SET ENABLE_SCHEMA_EVOLUTION = TRUE": SetProperties({"schema_evolution": True}),
    "SET ENABLE_SCHEMA_EVOLUTION FALSE": SetProperties({"schema_evolution": False}),
    "SET DATA_RETENTION_TIME_IN_DAYS = 0, COMMENT = 'x'": SetProperties(
        {"retention_days": 0, "comment": "x"}
    ),
    "UNSET DATA_RETENTION_TIME_IN_DAYS COMMENT": SetProperties(
        {"retention_days": None, "comment": None}
    ),
}


@pytest.mark.parametrize(("text", "meaning"), MEANINGS.items(), ids=MEANINGS)
def test_a_change_means(text: str, meaning: TableChange) -> None:
    table = ObjectName(("T",), SourcePosition(1, 13))
    assert parse_statement(f"ALTER TABLE t {text}") == AlterTable(table, meaning, if_exists=False)


def test_if_exists_comes_before_the_name() -> None:
    statement = parse_statement("ALTER TABLE IF EXISTS d.s.t DROP COLUMN a")
    assert isinstance(statement, AlterTable)
    assert (statement.name.parts, statement.if_exists) == (("D", "S", "T"), True)


REFUSALS = {
    "": ("Expected ADD, DROP, ALTER, MODIFY, RENAME, CLUSTER, SET or UNSET here", 14),
    "SWAP WITH u": ("SWAP WITH is not supported: RENAME both", 15),
    "UNSET x": ("x is not a clause of a table. Valid clauses: DATA_RETENTION", 21),
    "ADD COLUMN a": ("Expected a type here", 27),
    "ADD COLUMN a INT DEFAULT 1": ("A default for the new column a is not supported", 26),
    "ADD COLUMN a INT UNIQUE": ("UNIQUE is not supported: keys", 32),
    "ADD COLUMN a INT b": ("Expected NOT NULL, a comma or the end here, not b", 32),
    "ADD COLUMN a INT, a INT": ("Column a is specified twice", 33),
    "DROP COLUMN": ("Expected the name of a column here", 26),
    "DROP COLUMN a, a": ("DROP COLUMN lists a twice", 30),
    "DROP PRIMARY KEY": ("NOT NULL is the only supported constraint", 20),
    "RENAME COLUMN a b": ("Expected TO here, not b", 31),
    "RENAME u": ("Expected COLUMN or TO here, not u", 22),
    "ALTER COLUMN a SET NOT NULL": ("SET NOT NULL is not supported: existing rows", 30),
    "ALTER COLUMN a SET DEFAULT b": ("Expected a constant, CURRENT_TIMESTAMP or NULL", 42),
    "ALTER COLUMN a INT": ("Expected SET DATA TYPE …, SET DEFAULT …, DROP DEFAULT", 30),
    "ALTER COLUMN a DROP NOT NULL, a TYPE INT": ("Column a is changed twice", 45),
    "CLUSTER BY (upper(a))": ("CLUSTER BY takes columns, not expressions", 32),
    "CLUSTER BY (a, a)": ("CLUSTER BY lists a twice", 30),
    "SET DATA_RETENTION_TIME_IN_DAYS = 91": ("The retention in days must be between 0 and 90", 49),
    "SET": ("Expected a clause of a table here", 18),
    "SET ENABLE_SCHEMA_EVOLUTION = 1": ("Expected TRUE or FALSE here, not 1", 45),
    "DROP COLUMN a CASCADE": (
        "Expected the end of the statement after this change of a table, not CASCADE",
        29,
    ),
}


@pytest.mark.parametrize(("text", "expected"), REFUSALS.items(), ids=REFUSALS)
def test_what_is_wrong_is_named_with_its_place(text: str, expected: tuple[str, int]) -> None:
    with pytest.raises(StatementError) as caught:
        parse_statement(f"ALTER TABLE t {text}")
    reason, column = expected
    assert reason in str(caught.value)
    assert (caught.value.fields["line"], caught.value.fields["column"]) == (1, column)
