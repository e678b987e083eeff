"""The demo's COPY step: load files, show rejected records, join them with the streamed flights."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pyarrow.compute as pc
from rich.table import Table

from snowmelt.cli.flights_demo import dataset, raw_files

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Protocol

    import pyarrow as pa
    from rich.console import Console

    from snowmelt.spark.snowmelt_session import Snowmelt

    class PromiseRecorder(Protocol):
        """Notes one line of the closing table."""

        def __call__(self, what: str, promised: object, seen: object, *, kept: bool) -> None:
            """Note it."""


_MAX_SHOWN_REJECTS = 5
_MANUFACTURER_QUERY = (
    f"SELECT p.manufacturer, count(*) AS flights FROM {dataset.TABLE} f "
    f"JOIN {raw_files.PLANES} p ON f.tailnum = p.tailnum GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 3"
)
_FOG_QUERY = (
    f"SELECT count(*) FROM {dataset.TABLE} f JOIN {raw_files.WEATHER} w "
    "ON f.origin = w.origin AND f.time_hour = w.time_hour WHERE w.visib < 1"
)


def run_copy_chapter(
    lake: Snowmelt, folder: Path, console: Console, promise: PromiseRecorder
) -> None:
    """Load the files of `folder`, made here, and ask about them and the flights together."""
    expected = raw_files.write_raw_files(folder)
    for statement in (
        *raw_files.CREATE_TABLE_STATEMENTS,
        f"CREATE LIBRARY stations AS '{folder / 'remarks.py'}' LANGUAGE 'Python'",
        "CREATE FILTER Remarks AS LANGUAGE 'Python' NAME 'RemarksFactory' LIBRARY stations",
    ):
        lake.sql(statement)
    rows = {
        raw_files.WEATHER: len(expected.weather_keys),
        raw_files.PLANES: len(expected.manufacturer_by_plane),
    }
    rejects = 0
    for table, statement in raw_files.build_copy_statements(folder).items():
        console.print(f"[dim]{statement}[/dim]")
        copied = lake.copy(statement)
        rejects += copied.totals.rejects
        promise(
            f"rows of {table} from files",
            f"{rows[table]:,}",
            f"{copied.totals.rows:,}",
            kept=copied.totals.rows == rows[table],
        )
        again = lake.copy(statement)
        promise(
            "the same files again",
            "nothing",
            f"{again.totals.rows:,} rows",
            kept=again.load_id is None,
        )
    _show_rejects(lake, console)
    promise(
        "broken records kept, with reasons",
        expected.rejects,
        rejects,
        kept=rejects == expected.rejects,
    )
    _check_joins(lake, expected, promise)


def _show_rejects(lake: Snowmelt, console: Console) -> None:
    found = lake.sql(
        "SELECT substring_index(file_name, '/', -1), row_number, rejected_data, rejected_reason "
        f"FROM {raw_files.REJECTS} ORDER BY row_number, 1 LIMIT {_MAX_SHOWN_REJECTS}"
    ).collect()
    table = Table(title=f"The first of {raw_files.REJECTS}")
    for heading in ("file", "row", "record", "reason"):
        table.add_column(heading, overflow="fold")
    for file, row, record, reason in found:
        table.add_row(str(file), str(row), str(record), str(reason))
    console.print(table)


def _check_joins(
    lake: Snowmelt, expected: raw_files.ExpectedFileResults, promise: PromiseRecorder
) -> None:
    flights = dataset.load_flights()
    wanted = _count_by_manufacturer(flights, expected)
    makers = [(str(maker), int(count)) for maker, count in lake.sql(_MANUFACTURER_QUERY).collect()]
    shown = ", ".join(f"{maker} {count:,}" for maker, count in makers)
    promise("flights joined with planes", "as the source", shown, kept=makers == wanted)
    foggy = _count_foggy_flights(flights, expected)
    seen = int(lake.sql(_FOG_QUERY).collect()[0][0])
    promise("flights joined with weather, in fog", f"{foggy:,}", f"{seen:,}", kept=seen == foggy)


def _count_by_manufacturer(
    flights: pa.Table, expected: raw_files.ExpectedFileResults
) -> list[tuple[str, int]]:
    tails = Counter(flights["tailnum"].to_pylist())
    makers: Counter[str] = Counter()
    for tail, maker in expected.manufacturer_by_plane.items():
        makers[maker] += tails[tail]
    return sorted(makers.items(), key=lambda item: (-item[1], item[0]))[:3]


def _count_foggy_flights(flights: pa.Table, expected: raw_files.ExpectedFileResults) -> int:
    hours = pc.strftime(flights["time_hour"], format="%Y-%m-%dT%H:%M:%SZ").to_pylist()
    left = Counter(zip(flights["origin"].to_pylist(), hours, strict=True))
    return sum(left[hour] for hour in expected.foggy_hours)
