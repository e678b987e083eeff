"""CREATE TABLE … AS SELECT in `lake.sql`: a table with the columns of a query, and its rows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import types as st
from sqlglot.errors import SqlglotError

from snowmelt.errors import StatementError, Unsupported
from snowmelt.spark.queries import dotted, own_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlglot import Token

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_TYPES: dict[type[st.DataType], str] = {
    st.ByteType: "NUMBER(38,0)",
    st.ShortType: "NUMBER(38,0)",
    st.IntegerType: "NUMBER(38,0)",
    st.LongType: "NUMBER(38,0)",
    st.FloatType: "FLOAT",
    st.DoubleType: "FLOAT",
    st.BooleanType: "BOOLEAN",
    st.BinaryType: "BINARY",
    st.DateType: "DATE",
    st.TimestampType: "TIMESTAMP_LTZ(6)",
    st.TimestampNTZType: "TIMESTAMP_NTZ(6)",
    st.VariantType: "VARIANT",
    st.ArrayType: "ARRAY",
    st.StructType: "OBJECT",
    st.MapType: "OBJECT",
    st.NullType: "VARCHAR",
}


@dataclass(frozen=True, slots=True)
class Creation:
    """A CREATE TABLE … AS: `table` as it is written, and the query that makes columns and rows."""

    table: str
    query: str

    def statement(self, columns: st.StructType) -> str:
        """Return the CREATE TABLE for a query's columns.

        Raises:
            Unsupported: There is no type for one of them.
        """
        parts = [f"{_name(field.name)} {_type(field)}" for field in columns.fields]
        return f"CREATE TABLE {self.table} ({', '.join(parts)})"


def read_creation(text: str) -> Creation | None:
    """Read a CREATE TABLE … AS; None for any other statement.

    Raises:
        Unsupported: A table would be replaced, or perhaps be left as it is.
        StatementError: Columns are given besides the query's.
    """
    try:
        tokens = own_tokens(text)
    except SqlglotError:
        return None
    words = [token.text.upper() for token in tokens]
    if words[:1] != ["CREATE"]:
        return None
    at = words.index("TABLE") if "TABLE" in words[:4] else 0
    if not at:
        return None
    before = words[1:at]
    kept = words[at + 1 : at + 4] == ["IF", "NOT", "EXISTS"]
    at += 4 if kept else 1
    run = dotted(tokens, at)
    at += 2 * len(run) - 1
    query = _behind(words, at)
    if not run or query is None:
        return None
    if before or kept:
        raise Unsupported(
            what=f"{' '.join([*before, 'IF NOT EXISTS' * kept]).strip()} with CREATE TABLE … AS",
            instead="its table is made and filled in two steps; leave the words out, and DROP TABLE "
            "before",
        )
    if words[at] != "AS":
        reason = "A CREATE TABLE … AS has the columns of its query: name them there"
        raise StatementError(f"{reason}.", reason=reason)
    return Creation(_written(text, run), text[tokens[query].start :].rstrip().rstrip(";"))


def _behind(words: Sequence[str], at: int) -> int | None:
    """Return where the query begins behind AS, None where there is none."""
    depth = 0
    for place in range(at, len(words) - 1):
        depth += {"(": 1, ")": -1}.get(words[place], 0)
        if not depth and words[place] == "AS":
            return (
                place + 1 if words[place + 1] in {"SELECT", "WITH", "VALUES", "FROM", "("} else None
            )
    return None


def _written(text: str, run: Sequence[Token]) -> str:
    return text[run[0].start : run[-1].end + 1]


def _name(name: str) -> str:
    return name if _PLAIN.match(name) else '"' + name.replace('"', '""') + '"'


def _type(field: st.StructField) -> str:
    kind = field.dataType
    if isinstance(kind, st.DecimalType):
        return f"NUMBER({kind.precision},{kind.scale})"
    if isinstance(kind, st.TimeType):
        return f"TIME({kind.precision})"
    if isinstance(kind, st.StringType):
        return "VARCHAR"
    found = _TYPES.get(type(kind))
    if found is None:
        raise Unsupported(
            what=f"A column of type {kind.simpleString()} ({field.name})",
            instead="cast it in the query",
        )
    return found
