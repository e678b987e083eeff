"""Estimates of external function calls from Spark's plan, with warnings about repeated calls.

Spark decides where calls are made, so the estimate comes from its plan. Each ArrowEvalPython node
sends all rows that reach it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING

from sqlglot import exp

from snowmelt.catalog.sql.lexer import SqlRules, tokenize
from snowmelt.functions.caller.plan import CallRecord
from snowmelt.functions.definition import Volatility
from snowmelt.spark.sql.table_references import parse_statement

if TYPE_CHECKING:
    from snowmelt.spark.functions.registry import RegisteredFunction, RewrittenQuery

_UDF_NODE = "ArrowEvalPython"
_PLAN_END = "== Physical Plan =="
_TREE_CHARACTERS = " :+-|*()0123456789"
_ROW_COUNT = re.compile(r"rowCount=([0-9.E+]+)")
_GLOBAL_SORT = re.compile(r"Sort .*\], true\b")
_RANGE_REPARTITION = re.compile(r"RepartitionByExpression .* (?:ASC|DESC) NULLS ")
_EXPRESSION_ID = re.compile(r"#\d+L?")
_MULTIPLYING_NODES = ("Join", "Generate", "Expand", "Union")
_CONDITIONAL_EXPRESSIONS = (exp.Case, exp.If, exp.Coalesce, exp.Nullif)


@dataclass(frozen=True, slots=True)
class FunctionCallEstimate:
    """Estimated calls of one function by a query.

    `places` is the number of plan nodes that call the function. `rows` is an upper bound of the
    rows at all nodes. `calls` is a lower bound of the calls for these rows; each partition may need
    one more. Both are None if Spark does not know the number of rows. In a dry run every value is
    NULL, so its counts are wrong for filters and joins on values.
    """

    function: str
    places: int
    rows: int | None
    calls: int | None
    warnings: tuple[str, ...] = ()

    def __str__(self) -> str:
        rows = "an unknown number of rows" if self.rows is None else _format_count(self.rows, "row")
        calls = "" if self.calls is None else f" in {_format_count(self.calls, 'call')}"
        places = _format_count(self.places, "place")
        text = f"{self.function}: {rows}{calls}, at {places} of the plan"
        return "\n  ".join([text, *self.warnings])


@dataclass(slots=True)
class _PlanNode:
    """Operator of the optimized plan. `ancestors` are ordered from the nearest."""

    text: str
    depth: int
    ancestors: list[_PlanNode]
    children: list[_PlanNode] = field(default_factory=list)

    @property
    def max_rows(self) -> int | None:
        """Maximum number of rows that the operator returns, or None if unknown."""
        found = _ROW_COUNT.search(self.text)
        if found:
            return int(float(found[1]))
        if len(self.children) != 1 or self.text.startswith(_MULTIPLYING_NODES):
            return None
        return self.children[0].max_rows


def _format_count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def estimate_calls(
    query: RewrittenQuery, plan: str, *, table_rows: int | None
) -> list[FunctionCallEstimate]:
    """Estimate the calls of each function in a query.

    Args:
        query: The rewritten query.
        plan: Spark's explanation of the query in the mode `cost`.
        table_rows: Row count for a plan that reads one table, if Spark does not know it.
    """
    lines = list(_parse_plan(plan))
    conditional = _find_conditional_calls(query)
    result = []
    for registered in query.functions:
        nodes = [
            line
            for line in lines
            if line.text.startswith(_UDF_NODE) and registered.private_name in line.text
        ]
        # A range sort first samples its input, so everything below it is computed twice.
        nodes = [node for each in nodes for node in [each] * (1 + _is_computed_twice(each))]
        rows = [_estimate_rows(node, table_rows) for node in nodes]
        known = [each for each in rows if each is not None]
        caller = registered.use.plan
        most = caller.function.max_batch_rows or caller.options.max_batch_rows
        distinct = list({id(node): node for node in nodes}.values())
        total = sum(known) if len(known) == len(rows) else None
        result.append(
            FunctionCallEstimate(
                registered.public_name,
                len(distinct),
                total,
                None if total is None else sum(ceil(each / most) for each in known),
                tuple(_list_warnings(registered, distinct, registered.private_name in conditional)),
            )
        )
    return result


def measure_dry_run_calls(
    estimates: Sequence[FunctionCallEstimate], query: RewrittenQuery, records: Sequence[CallRecord]
) -> list[FunctionCallEstimate]:
    """Replace estimates with the counts of a dry run."""
    result = []
    for each, registered in zip(estimates, query.functions, strict=True):
        name = str(registered.definition.name)
        mine = [record for record in records if record.function == name and record.batch_id]
        rows = sum(record.rows_sent for record in mine)
        result.append(
            FunctionCallEstimate(each.function, each.places, rows, len(mine), each.warnings)
        )
    return result


def _parse_plan(plan: str) -> Iterator[_PlanNode]:
    path: list[_PlanNode] = []
    for text in plan.partition(_PLAN_END)[0].splitlines():
        bare = text.lstrip(_TREE_CHARACTERS)
        if not bare or bare.startswith("=="):
            continue
        depth = len(text) - len(bare)
        while path and path[-1].depth >= depth:
            path.pop()
        line = _PlanNode(bare, depth, path[::-1])
        if path:
            path[-1].children.append(line)
        path.append(line)
        yield line


def _estimate_rows(node: _PlanNode, table_rows: int | None) -> int | None:
    if node.max_rows is not None or table_rows is None:
        return node.max_rows
    below = node.children
    while len(below) == 1:
        if below[0].text.startswith(_MULTIPLYING_NODES):
            # This union has the chunks and the native files of one table.
            return table_rows if below[0].text.startswith("Union") else None
        below = below[0].children
    return None if below else table_rows


def _list_warnings(
    registered: RegisteredFunction, nodes: Sequence[_PlanNode], conditional: bool
) -> Iterator[str]:
    name = registered.public_name
    after = (node.text.partition(registered.private_name)[2] for node in nodes)
    same = [_EXPRESSION_ID.sub("", text.partition("], [")[0]) for text in after]
    if len(set(same)) < len(same):
        yield (
            f"Spark calls {name} more than once for the same rows, for example for a filter on its "
            "alias, or for a WITH that is read twice. Store its values in a table first."
        )
    if any(map(_is_computed_twice, nodes)):
        yield (
            f"Spark calls {name} twice for ORDER BY, because it sorts by a sample of the values. Store "
            "the values in a table first."
        )
    if conditional:
        yield (
            f"Spark calls {name} for all rows, also for those that CASE, COALESCE or IF excludes. Exclude "
            "them in a WHERE of a subquery."
        )
    volatile = registered.definition.function.volatility is Volatility.VOLATILE
    if volatile and any(_is_filtered_late(node) for node in nodes):
        yield (
            f"Spark calls {name} before a filter that does not need its values, because it is VOLATILE. "
            "Filter in a subquery, or make the function IMMUTABLE."
        )


def _is_computed_twice(node: _PlanNode) -> bool:
    """Return True if Spark sorts by range above a call, and therefore computes it twice."""
    for at, above in enumerate(node.ancestors):
        if _RANGE_REPARTITION.match(above.text):
            return True
        # With a limit directly above, Spark takes the top rows of each partition without sampling.
        limited = at + 1 < len(node.ancestors) and node.ancestors[at + 1].text.startswith(
            "LocalLimit"
        )
        if _GLOBAL_SORT.match(above.text) and not limited:
            return True
    return False


def _is_filtered_late(node: _PlanNode) -> bool:
    for above in node.ancestors:
        if above.text.startswith("Filter "):
            condition = above.text.partition(", Statistics")[0]
            if "pythonUDF" not in condition and "isnotnull" not in condition:
                return True
        elif not above.text.startswith(("Project ", _UDF_NODE)):
            return False
    return False


def _find_conditional_calls(query: RewrittenQuery) -> set[str]:
    """Return the private names of functions inside conditional expressions."""
    tree = parse_statement(tokenize(query.text, SqlRules.SPARK))
    if tree is None:
        return set()
    return {
        call.name
        for call in tree.find_all(exp.Anonymous)
        if call.name.startswith("snowmelt_")
        and call.find_ancestor(*_CONDITIONAL_EXPRESSIONS) is not None
    }
