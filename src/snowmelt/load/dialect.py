"""SQL of COPY expressions: Vertica's, which is PostgreSQL's with additions, turned into DuckDB's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlglot import ErrorLevel, exp
from sqlglot.dialects.dialect import build_date_delta
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.dialects.postgres import Postgres
from sqlglot.errors import ParseError, SqlglotError
from sqlglot.parsers.postgres import PostgresParser

from snowmelt.errors import LoadRefused
from snowmelt.schema.types import display_name

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Mapping

# What reads more than the row, or makes another number of rows.
_REFUSED_NODES = (
    exp.Query,
    exp.Table,
    exp.Window,
    exp.AggFunc,
    exp.Star,
    exp.Parameter,
    exp.Placeholder,
    exp.UDTF,
    exp.Explode,
    exp.Command,
)
_REFUSED_NAMES = frozenset(
    {
        "CURRENT_SETTING",
        "GETVARIABLE",
        "GETENV",
        "NEXTVAL",
        "CURRVAL",
        "QUERY",
        "QUERY_TABLE",
        "CURRENT_QUERY",
        "CURRENT_DATABASE",
        "CURRENT_SCHEMA",
        "CURRENT_SCHEMAS",
        "TXID_CURRENT",
        "UNNEST",
        "GENERATE_SUBSCRIPTS",
        "VERSION",
        "WRITE_LOG",
    }
)
_NOW = frozenset({"NOW", "GETDATE", "SYSDATE", "STATEMENT_TIMESTAMP", "TRANSACTION_TIMESTAMP"})


class _Vertica(Postgres):
    """Vertica's SQL as far as expressions go; `/` of whole numbers is not cut."""

    TYPED_DIVISION = False

    class Parser(PostgresParser):
        FUNCTIONS = {  # noqa: RUF012 - declared as a plain dictionary by sqlglot
            **PostgresParser.FUNCTIONS,
            "IFF": lambda args: exp.If(this=args[0], true=args[1], false=args[2]),
            "ZEROIFNULL": lambda args: exp.Coalesce(
                this=args[0], expressions=[exp.Literal.number(0)]
            ),
            "NULLIFZERO": lambda args: exp.Nullif(this=args[0], expression=exp.Literal.number(0)),
            "DATEADD": build_date_delta(exp.DateAdd),
            "REGEXP_SUBSTR": exp.RegexpExtract.from_arg_list,
            "INSTR": exp.StrPosition.from_arg_list,
            "BTRIM": exp.Trim.from_arg_list,
        }


def translate(
    sql: str, columns: Mapping[str, str], started_at: dt.datetime | None, *, what: str
) -> tuple[str, frozenset[str]]:
    """Return an expression for DuckDB, and the columns in it.

    `columns` maps internal names that may be used to what stands for them in DuckDB; `what` is
    how errors call the expression. `started_at`, aware, is what the expression sees as now.

    Raises:
        LoadRefused: It is no expression, or one of more than the columns of its row.
    """

    def refuse(reason: str) -> LoadRefused:
        return LoadRefused(what=what, reason=reason)

    try:
        return _translated(_parsed(sql, refuse), columns, started_at, refuse)
    except RecursionError:
        raise refuse("it is nested too deeply") from None


def _translated(
    tree: exp.Select,
    columns: Mapping[str, str],
    started_at: dt.datetime | None,
    refuse: Callable[[str], LoadRefused],
) -> tuple[str, frozenset[str]]:
    used: set[str] = set()
    for node in list(tree.walk()):
        _check(node, refuse)
        if isinstance(node, exp.Column):
            name = _name(node, columns, refuse)
            used.add(name)
            node.replace(exp.maybe_parse(columns[name], dialect="duckdb"))
    expression = tree.selects[0]
    if started_at is not None:
        expression = expression.transform(lambda node: _moment(node, started_at))
    try:
        written = expression.sql(DuckDB, unsupported_level=ErrorLevel.RAISE)
    except SqlglotError as error:
        raise refuse(f"it has no meaning here: {error}") from None
    return written, frozenset(used)


def _parsed(sql: str, refuse: Callable[[str], LoadRefused]) -> exp.Select:
    try:
        trees = _Vertica().parse(f"SELECT {sql}\n")
    except ParseError as error:
        raise refuse(f"it cannot be understood: {error.errors[0]['description']}") from None
    except SqlglotError as error:
        raise refuse(f"it cannot be understood: {error}") from None
    tree = trees[0] if len(trees) == 1 else None
    if not isinstance(tree, exp.Select):
        raise refuse("it is not one expression")
    given = [name for name, value in tree.args.items() if value and name != "expressions"]
    if given or len(tree.expressions) != 1 or isinstance(tree.expressions[0], exp.Alias):
        raise refuse("it is not one expression")
    return tree


def _check(node: exp.Expr, refuse: Callable[[str], LoadRefused]) -> None:
    if isinstance(node, _REFUSED_NODES) and node.parent is not None:
        raise refuse(f"it may use the columns of its row alone, not {_shown(node)}")
    if isinstance(node, exp.Anonymous | exp.Func):
        name = node.name if isinstance(node, exp.Anonymous) else node.sql_name()
        if name.upper() in _REFUSED_NAMES or name.upper().startswith(("PG_", "DUCKDB_")):
            raise refuse(f"function {name} is not available")


def _shown(node: exp.Expr) -> str:
    return node.sql(_Vertica)[:60]


def _name(
    node: exp.Column, columns: Mapping[str, str], refuse: Callable[[str], LoadRefused]
) -> str:
    if node.table:
        raise refuse(f"columns have one part, unlike {_shown(node)}")
    identifier = node.this
    name = str(identifier.name if identifier.args.get("quoted") else identifier.name.upper())
    if name not in columns:
        parsed = ", ".join(map(display_name, columns)) or "none"
        raise refuse(f"there is no parsed column {display_name(name)}; there are {parsed}")
    return name


def _moment(node: exp.Expr, at: dt.datetime) -> exp.Expr:
    named = isinstance(node, exp.Anonymous) and node.name.upper() in _NOW
    if named or isinstance(node, exp.CurrentTimestamp):
        return exp.cast(exp.Literal.string(at.isoformat()), exp.DataType.Type.TIMESTAMPTZ)
    if isinstance(node, exp.CurrentDate):
        return exp.cast(exp.Literal.string(at.date().isoformat()), exp.DataType.Type.DATE)
    return node
