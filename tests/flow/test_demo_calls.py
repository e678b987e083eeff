"""The demo's airport service, called without Spark, has every airport of the flights."""

from __future__ import annotations

import os
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest

from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.model.records import ACCOUNTADMIN
from snowmelt.catalog.objects.external_functions import FunctionName, list_callable_functions
from snowmelt.catalog.statements.executor import execute_statement
from snowmelt.cli.flights_demo import dataset, scenario
from snowmelt.clock import SystemClock
from snowmelt.functions.caller.pipeline import call_function
from snowmelt.functions.caller.plan import CallPlan, QueryPosition
from support.call_logs import InMemoryCallLog


@pytest.mark.slow
def test_the_service_answers_for_each_route_what_the_source_comes_to(tmp_path: Path) -> None:
    flights = dataset.load_flights()
    expected = scenario.compute_expected_calls(flights)
    routes = Counter(zip(flights["origin"].to_pylist(), flights["dest"].to_pylist(), strict=True))
    ledger = InMemoryCallLog()
    with (
        closing(open_and_upgrade_database(str(tmp_path / "catalog.db"))) as database,
        scenario.AirportServiceProcess(tmp_path / "airports.log") as service,
    ):
        for statement in (
            "CREATE DATABASE demo",
            *scenario.build_function_statements(service.url),
        ):
            execute_statement(database, statement, user=None, clock=SystemClock())

        def ask(function: str, *columns: list[str]) -> list[Any]:
            name = FunctionName("DEMO", "PUBLIC", function)
            with database.reading() as connection:
                [found] = [
                    each
                    for each in list_callable_functions(connection, ACCOUNTADMIN, name)
                    if len(each.function.signature.arguments) == len(columns)
                ]
            plan = CallPlan(found.function, found.integration, "UTC")
            batch = pa.RecordBatch.from_arrays(
                [pa.array(each) for each in columns], names=[str(at) for at in range(len(columns))]
            )
            return cast(
                "list[Any]",
                pa.chunked_array(
                    call_function(plan, QueryPosition("demo", 0, 0), [batch], ledger)
                ).to_pylist(),
            )

        miles = ask("MILES", *(list(each) for each in zip(*routes, strict=True)))
        places = ask("PLACE", [dest for dest, _ in expected.farthest])
    known = [(each, flown) for each, flown in zip(miles, routes.values(), strict=True) if each]
    assert sum(flown for _, flown in known) == expected.flights > 329_000
    assert sum(round(each) * flown for each, flown in known) == expected.miles
    assert [name in place for (_, name), place in zip(expected.farthest, places, strict=True)] == (
        [True] * 5
    )
    assert [(record.rows, record.attempts, record.outcome) for record in ledger.records] == [
        (len(routes), 1, "ok"),
        (5, 1, "ok"),
    ]


def test_the_service_ends_with_its_context(tmp_path: Path) -> None:
    with scenario.AirportServiceProcess(tmp_path / "airports.log") as service:
        process = service._process
        os.kill(process.pid, 0)
    assert process.returncode is not None
