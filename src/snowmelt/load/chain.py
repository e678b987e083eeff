"""Which step may follow which: streams of bytes, and records with their ends beside them.

A source of records begins the side channel; filters that work on records keep it up, or end it
by writing the ends into the bytes. A filter of bytes ends it, too: what follows sees one stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.errors import LoadRefused
from snowmelt.load.phases import Filter, Parser, RecordFilter, RecordParser, RecordSource
from snowmelt.schema.types import display_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from snowmelt.load.phases import Source
    from snowmelt.load.steps import StackPlan

_MARKS = {
    "delimiter": "DELIMITER",
    "enclosed_by": "ENCLOSED BY",
    "escape": "ESCAPE",
    "null": "NULL",
}


def check_chain(
    plan: StackPlan,
    source: Source | RecordSource,
    filters: Sequence[Filter | RecordFilter],
    parser: Parser | RecordParser,
) -> None:
    """Check that each step can read what the one before it hands on.

    Raises:
        LoadRefused: One cannot; says what to put between them.
    """
    before = plan.source
    records = isinstance(source, RecordSource)
    for step, each in zip(plan.filters, filters, strict=True):
        if not reads_records(each, records=records) and not isinstance(each, Filter):
            raise LoadRefused(
                what=str(step),
                reason=f"Input is not from Kafka source: it works on records, and {before} hands "
                "on bytes without the ends of records",
            )
        records = keeps_records(each, records=records)
        before = step
    if records and not isinstance(parser, RecordParser):
        raise LoadRefused(
            what=str(plan.parser),
            reason=f"it reads one stream of bytes, and {before} hands on records whose ends are "
            "not in the bytes: put FILTER KafkaInsertDelimiters(delimiter = E'\\n') before it, or "
            "use a parser of messages such as KafkaJSONParser",
        )
    if not records and not isinstance(parser, Parser):
        raise LoadRefused(
            what=str(plan.parser),
            reason=f"Input is not from Kafka source: it parses records, and {before} hands on "
            "bytes without the ends of records",
        )


def check_column_options(plan: StackPlan, parser: Parser | RecordParser) -> None:
    """Check that a parser built in knows the marks that columns have for themselves.

    Raises:
        LoadRefused: If it would ignore one.
    """
    known: frozenset[str] = getattr(parser, "column_marks", frozenset())
    for name, options in plan.target.options.items():
        for mark, written in _MARKS.items():
            if getattr(options, mark) is not None and mark not in known:
                raise LoadRefused(
                    what=f"{written} of column {display_name(name)}",
                    reason=f"{plan.parser} has no such option for a column. Leave it out",
                )


def reads_records(step: object, *, records: bool) -> bool:
    """Tell whether a filter or parser works on records when it is given some."""
    return records and isinstance(step, RecordFilter | RecordParser)


def keeps_records(step: object, *, records: bool) -> bool:
    """Tell whether there are records behind a filter."""
    return records and isinstance(step, RecordFilter) and not step.ends_records
