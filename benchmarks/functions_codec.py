"""Benchmark of the caller's CPU time per row: splitting, encoding, batch IDs and decoding.

Runs without network and Spark. Columns of 4,096 rows are converted to requests, and prepared
responses to columns. The baseline is the minimum for a caller in Python: msgspec converts between
lists and bytes, without row numbers and Arrow. Measures the CPU time of one thread. Variants take
turns in several rounds; the best round of each counts.

    python benchmarks/functions_codec.py [--rounds 7]
"""

from __future__ import annotations

import argparse
import datetime as dt
import time
from decimal import Decimal
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
from report import Report

from snowmelt.functions.caller.arrow_types import to_arrow_type
from snowmelt.functions.caller.batcher import CallBatcher
from snowmelt.functions.caller.plan import CallPlan, QueryPosition
from snowmelt.functions.caller.request_deduplication import RequestBuilder
from snowmelt.functions.caller.request_encoder import RequestEncoder
from snowmelt.functions.caller.response_decoder import ResponseDecoder
from snowmelt.functions.definition import ApiIntegration, ExternalFunction
from snowmelt.functions.signature import FunctionArgument, FunctionSignature, parse_sql_type_text
from snowmelt.functions.wire.messages import RequestWriter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ARRIVING, ARRIVALS = 4096, 5
INSTANT = dt.datetime(2026, 3, 14, 15, 9, 26, 535_897, dt.UTC)
TYPES: dict[str, Callable[[int], Any]] = {
    "VARCHAR": lambda at: f"{at:039}",
    "NUMBER(18,0)": lambda at: at * 7919,
    "NUMBER(38,0)": lambda at: Decimal(at * 7919),
    "NUMBER(38,10)": lambda at: Decimal(f"{at}.0123456789"),
    "FLOAT": lambda at: at / 7,
    "BOOLEAN": lambda at: at % 2 == 0,
    "DATE": lambda at: INSTANT.date() + dt.timedelta(at),
    "TIMESTAMP_NTZ": lambda at: INSTANT.replace(tzinfo=None) + dt.timedelta(seconds=at),
    "TIMESTAMP_LTZ": lambda at: INSTANT + dt.timedelta(seconds=at),
    "BINARY": lambda at: b"%039d" % at,
    "VARIANT": lambda at: f'{{"city":"Warsaw","at":{at}}}',
}


def _plan() -> CallPlan:
    text, whole = parse_sql_type_text("VARCHAR"), parse_sql_type_text("NUMBER(18,0)")
    signature = FunctionSignature(
        "f", (FunctionArgument("a", text), FunctionArgument("b", whole)), text
    )
    function = ExternalFunction(signature, "http://127.0.0.1/f", "I")
    return CallPlan(function, ApiIntegration("I", "http", ("http://127.0.0.1/",)), "UTC")


def _arriving() -> list[list[pa.Array]]:
    return [
        [
            pa.array([TYPES["VARCHAR"](start + at) for at in range(ARRIVING)]),
            pa.array([TYPES["NUMBER(18,0)"](start + at) for at in range(ARRIVING)]),
        ]
        for start in range(0, ARRIVALS * ARRIVING, ARRIVING)
    ]


class _Chain:
    """The steps of processing incoming rows, each as a generator."""

    def __init__(self, most: int) -> None:
        self.plan, self.most, self.columns = _plan(), most, _arriving()
        self.encoder = msgspec.json.Encoder()
        self.decoder = msgspec.json.Decoder(dict[str, list[tuple[int, str | None]]])
        self.replies = {
            batch.rows: self.encoder.encode({"data": list(enumerate(batch.columns[0].to_pylist()))})
            for batch in self.batches()
        }
        self.lists = [[c.to_pylist() for c in batch.columns] for batch in self.batches()]
        self.reader = ResponseDecoder(self.plan.function.signature.returns)

    def batches(self) -> Iterator[Any]:
        return CallBatcher(self.most, 4_000_000).split_batches(iter(self.columns))

    def cut(self) -> None:
        for _ in self.batches():
            pass

    def written(self) -> None:
        composer = RequestBuilder(self.plan, QueryPosition("query", 0, 0))
        for batch in self.batches():
            composer.build_work(batch)

    def whole(self) -> None:
        composer = RequestBuilder(self.plan, QueryPosition("query", 0, 0))
        for batch in self.batches():
            work = composer.build_work(batch)
            answers = self.reader.decode(self.replies[batch.rows], batch.rows)
            work.spread_to_rows(answers.values)

    def least(self) -> None:
        for texts, integers in self.lists:
            rows = list(zip(range(len(texts)), texts, integers, strict=True))
            self.encoder.encode({"data": rows})
            self.decoder.decode(self.replies[len(texts)])


def _best(ways: dict[str, Callable[[], object]], rows: int, rounds: int) -> dict[str, float]:
    """Return the nanoseconds of CPU time per row in the best round."""
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for name, way in ways.items():
            times = max(1, 100_000 // rows)
            start = time.process_time_ns()
            for _ in range(times):
                way()
            best[name] = min(best[name], (time.process_time_ns() - start) / times / rows)
    return best


def _chains(report: Report, rounds: int) -> None:
    for most in (100, 1000, 4000):
        chain = _Chain(most)
        ways: dict[str, Callable[[], object]] = {
            "lists and msgspec alone": chain.least,
            "cut": chain.cut,
            "cut, written, named": chain.written,
            "cut, written, named, read": chain.whole,
        }
        best = _best(ways, ARRIVALS * ARRIVING, rounds)
        for name, cost in best.items():
            ratio = cost / best["lists and msgspec alone"]
            report.add(most, name, f"{cost:.0f}", f"{1000 / cost:.1f}", f"{ratio:.2f}")


def _types(report: Report, rounds: int, count: int = 1000) -> None:
    for name, value in TYPES.items():
        sql_type = parse_sql_type_text(name)
        argument = FunctionArgument("a", sql_type)
        column = pa.array([value(at) for at in range(count)], to_arrow_type(sql_type))
        values: list[Any] = column.to_pylist()
        if name == "VARIANT":
            values = [msgspec.Raw(text) for text in values]
        writer, slow = RequestEncoder([argument]), RequestWriter([argument])
        body, reader = writer.encode_body(count, [column]), ResponseDecoder(sql_type)
        ways: dict[str, Callable[[], object]] = {
            "write": partial(writer.encode_body, count, [column]),
            "write value by value": partial(slow.encode_body, count, [values]),
            "read": partial(reader.decode, body, count),
        }
        best = _best(ways, count, rounds)
        for way, cost in best.items():
            ratio = f"{cost / best['write value by value']:.2f}" if way == "write" else ""
            report.add(count, f"{name}: {way}", f"{cost:.0f}", f"{1000 / cost:.1f}", ratio)


def main() -> None:
    """Measure, print and store the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    report = Report(
        "functions_codec",
        "What does a row cost the caller besides the call?",
        ("rows a batch", "work", "CPU ns a row", "M rows/s", "of the other way"),
    )
    _chains(report, options.rounds)
    _types(report, options.rounds)
    report.remark("Rows of a text of 39 characters and an integer; a text comes back.")
    report.remark(
        "`of the other way`: CPU time over that of lists and msgspec alone, which knows no Arrow, no "
        "batch ids and no row numbers; by type, over that of the writer that looks at each value."
    )
    report.keep()


if __name__ == "__main__":
    main()
