"""Conditions on columns of every type, in the languages of engines, and rows whose files can be pruned."""

from __future__ import annotations

import datetime as dt
import math
import random
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from support.edge_values import COLUMNS, EPOCH, EXACT, REJECTED, UTC, Column, Row

# Other tests cover names that need quotes, and documents, whose text has no order.
TESTED = tuple(
    column for column in COLUMNS if column.family != "document" and column.name.isascii()
    and column.name.isupper()
)  # fmt: skip
OPERATORS = ("=", "<>", "<", "<=", ">", ">=")


@dataclass(frozen=True)
class Condition:
    """Comparison of a column with a value, or a test for NULL.

    The value has the form that an Iceberg reader returns. `operator` is one of `OPERATORS`, `IS
    NULL`, `IS NOT NULL`, `IN` (a list of values) or `STARTS WITH`.
    """

    column: Column
    operator: str
    value: Any = None


def convert_to_reader(column: Column, value: Any) -> Any:
    """Return the value that an Iceberg reader returns for an inserted value."""
    wanted: Any = column.wanted(value)
    match column.family:
        case "number":
            scale = int(column.sql.rstrip(")").partition(",")[2])
            return Decimal(wanted).quantize(Decimal(1).scaleb(-scale), context=EXACT)
        case "time":
            return (EPOCH + dt.timedelta(microseconds=wanted // 1000)).time()
        case "NTZ":
            return EPOCH + dt.timedelta(microseconds=wanted // 1000)
        case "LTZ" | "TZ":
            ns = wanted[0] if column.family == "TZ" else wanted
            return (EPOCH + dt.timedelta(microseconds=ns // 1000)).replace(tzinfo=UTC)
    return value


def _sort_key(column: Column, value: Any) -> Any:
    found = convert_to_reader(column, value)
    if column.family == "float":
        return (math.isnan(found), 0.0 if math.isnan(found) else found)
    return found


def make_batches(seed: int, batches: int, rows: int) -> list[list[dict[str, Any]]]:
    """Return rows by ID in batches.

    Ranges of batches overlap only at their ends; one batch is NULL.
    """
    chance = random.Random(seed)
    count = batches * rows
    ordered: dict[str, list[Any]] = {}
    for column in TESTED:
        values: list[Any] = []
        while len(values) < count:
            value = column.make(chance)
            if column.wanted(value) is not REJECTED and not _is_too_long(value):
                values.append(value)
        ordered[column.name] = sorted(values, key=lambda each: _sort_key(column, each))
    made: list[list[dict[str, Any]]] = []
    for batch in range(batches):
        lines = []
        for number in range(batch * rows, (batch + 1) * rows):
            line: dict[str, Any] = {"id": number}
            for column in TESTED:
                if batch != batches // 2 and chance.random() > 0.05:
                    line[column.key] = _to_python(column, ordered[column.name][number])
            lines.append(line)
        made.append(lines)
    chance.shuffle(made)
    return made


def _is_too_long(value: Any) -> bool:
    return isinstance(value, str | bytes) and len(value) > 5000


def _to_python(column: Column, value: Any) -> Any:
    return Row(0, column, value).python()


def make_conditions(seed: int, count: int) -> list[Condition]:
    """Return random conditions on edge values, some of which equal values of rows."""
    chance = random.Random(seed)
    made: list[Condition] = []
    while len(made) < count:
        column = chance.choice(TESTED)
        values = [column.make(chance) for _ in range(3)]
        if any(column.wanted(each) is REJECTED or _is_too_long(each) for each in values):
            continue
        found = [convert_to_reader(column, each) for each in values]
        operator = chance.choice(
            [*OPERATORS, *OPERATORS, "IS NULL", "IS NOT NULL", "IN", "STARTS WITH"]
        )
        if operator == "STARTS WITH" and column.family != "text":
            continue
        if operator in {"IN", "STARTS WITH"} and any(each != each for each in found):
            continue
        made.append(Condition(column, operator, found if operator == "IN" else found[0]))
    return made


def write_sql(condition: Condition) -> str:
    """Write a condition in DuckDB's SQL."""
    column = f'"{condition.column.name}"'
    match condition.operator:
        case "IS NULL" | "IS NOT NULL":
            return f"{column} {condition.operator}"
        case "IN":
            listed = ", ".join(_write_literal(condition.column, each) for each in condition.value)
            return f"{column} IN ({listed})"
        case "STARTS WITH":
            return f"starts_with({column}, {_write_literal(condition.column, condition.value)})"
    return f"{column} {condition.operator} {_write_literal(condition.column, condition.value)}"


def _write_literal(column: Column, value: Any) -> str:
    match column.family:
        case "float":
            return f"CAST('{value!r}' AS DOUBLE)"
        case "number":
            return f"CAST('{value:f}' AS DECIMAL({column.sql.removeprefix('NUMBER(').rstrip(')')}))"
        case "text":
            return " || ".join(
                ["''", *(f"chr({ord(char)})" if char in "\0'" else f"'{char}'" for char in value)]
            )
        case "binary":
            return f"from_hex('{value.hex()}')"
        case "date":
            return f"DATE '{value.isoformat()}'"
        case "time":
            return f"TIME '{value.isoformat()}'"
        case "NTZ":
            return f"TIMESTAMP '{value.isoformat(' ')}'"
    return f"TIMESTAMPTZ '{value.isoformat(' ')}'"
