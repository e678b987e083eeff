"""How often a plan would call external functions, and where it does so more than it must.

Spark decides where calls are made, so its own plan is read: each ArrowEvalPython in it sends all
rows that reach it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING

from sqlglot import exp
from sqlglot.errors import SqlglotError

from snowmelt.functions.definition import Volatility
from snowmelt.spark.sql.query import parse_statement, statement_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from snowmelt.functions.caller.call_log import CallRecord
    from snowmelt.spark.functions.registry import Asked, Registered

_NODE = "ArrowEvalPython"
_END = "== Physical Plan =="
_TREE = " :+-|*()0123456789"
_ROWS = re.compile(r"rowCount=([0-9.E+]+)")
_GLOBAL_SORT = re.compile(r"Sort .*\], true\b")
_BY_RANGE = re.compile(r"RepartitionByExpression .* (?:ASC|DESC) NULLS ")
_EXPRESSION_ID = re.compile(r"#\d+L?")
_MULTIPLYING = ("Join", "Generate", "Expand", "Union")
_CONDITIONAL = (exp.Case, exp.If, exp.Coalesce, exp.Nullif)


@dataclass(frozen=True, slots=True)
class FunctionCalls:
    """What a query would do with one function.

    `places` is how often the plan calls it for the rows there. `rows` are those of all places, at
    most; `calls` are at least as many as that takes, and each partition may need one more. Both
    are None where Spark does not know. A dry run counts what was asked for with every value NULL: what a
    filter or a join on values would let through, it does not see.
    """

    function: str
    places: int
    rows: int | None
    calls: int | None
    warnings: tuple[str, ...] = ()

    def __str__(self) -> str:
        rows = "an unknown number of rows" if self.rows is None else _counted(self.rows, "row")
        calls = "" if self.calls is None else f" in {_counted(self.calls, 'call')}"
        places = _counted(self.places, "place")
        text = f"{self.function}: {rows}{calls}, at {places} of the plan"
        return "\n  ".join([text, *self.warnings])


@dataclass(slots=True)
class _Line:
    """One operator of the optimized plan; `above` are its ancestors, the nearest first."""

    text: str
    depth: int
    above: list[_Line]
    below: list[_Line] = field(default_factory=list)

    @property
    def rows(self) -> int | None:
        """How many rows it gives at most, where Spark knows."""
        found = _ROWS.search(self.text)
        if found:
            return int(float(found[1]))
        if len(self.below) != 1 or self.text.startswith(_MULTIPLYING):
            return None
        return self.below[0].rows


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def explained(asked: Asked, plan: str, *, table_rows: int | None) -> list[FunctionCalls]:
    """Return what a query would do with each of its functions.

    Args:
        asked: The query.
        plan: Spark's explanation of it in the mode `cost`.
        table_rows: What stands for the rows of a plan that reads one table and whose rows Spark
            does not know.
    """
    lines = list(_lines(plan))
    conditional = _conditional(asked)
    result = []
    for registered in asked.used:
        nodes = [
            line
            for line in lines
            if line.text.startswith(_NODE) and registered.private_name in line.text
        ]
        # A sort by range looks at a sample first, which computes all that is beneath once more.
        nodes = [node for each in nodes for node in [each] * (1 + _is_sampled(each))]
        rows = [_rows(node, table_rows) for node in nodes]
        known = [each for each in rows if each is not None]
        total = sum(known) if len(known) == len(rows) else None
        result.append(
            FunctionCalls(
                registered.shown,
                len({id(node) for node in nodes}),
                total,
                None if total is None else sum(ceil(each / _most(registered)) for each in known),
                tuple(
                    _warnings(
                        registered,
                        list({id(node): node for node in nodes}.values()),
                        registered.private_name in conditional,
                    )
                ),
            )
        )
    return result


def measured(
    expected: Sequence[FunctionCalls], asked: Asked, records: Sequence[CallRecord]
) -> list[FunctionCalls]:
    """Return what a dry run came to, with the places and warnings of the plan."""
    result = []
    for each, registered in zip(expected, asked.used, strict=True):
        name = str(registered.called.name)
        mine = [record for record in records if record.function == name and record.batch_id]
        rows = sum(record.rows_sent for record in mine)
        result.append(FunctionCalls(each.function, each.places, rows, len(mine), each.warnings))
    return result


def _most(registered: Registered) -> int:
    plan = registered.use.plan
    return plan.function.max_batch_rows or plan.options.max_batch_rows


def _lines(plan: str) -> Iterator[_Line]:
    path: list[_Line] = []
    for text in plan.partition(_END)[0].splitlines():
        bare = text.lstrip(_TREE)
        if not bare or bare.startswith("=="):
            continue
        depth = len(text) - len(bare)
        while path and path[-1].depth >= depth:
            path.pop()
        line = _Line(bare, depth, path[::-1])
        if path:
            path[-1].below.append(line)
        path.append(line)
        yield line


def _rows(node: _Line, table_rows: int | None) -> int | None:
    if node.rows is not None or table_rows is None:
        return node.rows
    below = node.below
    while len(below) == 1:
        if below[0].text.startswith(_MULTIPLYING):
            # Chunks and native files of one table are a union.
            return table_rows if below[0].text.startswith("Union") else None
        below = below[0].below
    return None if below else table_rows


def _warnings(registered: Registered, nodes: Sequence[_Line], conditional: bool) -> Iterator[str]:
    name = registered.shown
    same = [_EXPRESSION_ID.sub("", _arguments(node, registered)) for node in nodes]
    if len(set(same)) < len(same):
        yield (
            f"{name} is called more than once for the same rows (a filter on its alias, a WITH "
            "that is read twice, or written twice): keep its values in a table first."
        )
    if any(map(_is_sampled, nodes)):
        yield (
            f"ORDER BY over {name} calls it twice, because Spark looks at a sample first: keep its "
            "values in a table first."
        )
    if conditional:
        yield f"CASE, COALESCE and the like do not keep rows from {name}: filter before."
    volatile = registered.called.function.volatility is Volatility.VOLATILE
    if volatile and any(_filtered_late(node) for node in nodes):
        yield (
            f"{name} is VOLATILE, so it is called before a filter that needs none of its values: "
            "filter in a subquery beneath, or make it IMMUTABLE."
        )


def _is_sampled(node: _Line) -> bool:
    """Return True if Spark sorts by range above a call, and so computes it twice."""
    for at, above in enumerate(node.above):
        if _BY_RANGE.match(above.text):
            return True
        # A limit right above a sort makes it the best rows of each partition, without a sample.
        limited = at + 1 < len(node.above) and node.above[at + 1].text.startswith("LocalLimit")
        if _GLOBAL_SORT.match(above.text) and not limited:
            return True
    return False


def _arguments(node: _Line, registered: Registered) -> str:
    _, _, after = node.text.partition(registered.private_name)
    return after.partition("], [")[0]


def _filtered_late(node: _Line) -> bool:
    for above in node.above:
        if above.text.startswith("Filter "):
            condition = above.text.partition(", Statistics")[0]
            if "pythonUDF" not in condition and "isnotnull" not in condition:
                return True
        elif not above.text.startswith(("Project ", _NODE)):
            return False
    return False


def _conditional(asked: Asked) -> set[str]:
    """Return the private names of functions that stand where SQL seems to choose."""
    try:
        tree = parse_statement(asked.text, statement_tokens(asked.text))
    except SqlglotError:
        return set()
    if tree is None:
        return set()
    return {
        call.name
        for call in tree.find_all(exp.Anonymous)
        if call.name.startswith("snowmelt_") and call.find_ancestor(*_CONDITIONAL) is not None
    }
