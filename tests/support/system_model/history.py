"""Steps of a run: chosen from a seed, and checked against the model at intervals."""

from __future__ import annotations

import random
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from support.system_model import (
    column_operations,
    concurrent_operations,
    engine_operations,
    load_operations,
    pipe_operations,
    row_api_operations,
    sdk_operations,
    spark_operations,
    table_operations,
)
from support.system_model.checks import check, check_integrity
from support.system_model.readers import duckdb_reader
from support.system_model.run import SCHEMAS, Run, TooManyDifferences
from support.system_model.site import running_site
from support.system_model.writers import Writer

Operation = Callable[[Run], None]

# Operations with their relative frequency.
OPERATIONS: dict[Operation, float] = {
    sdk_operations.insert_any: 40,
    sdk_operations.flush_any: 6,
    sdk_operations.advance_any: 2,
    sdk_operations.request_token: 3,
    sdk_operations.reopen_any: 2,
    sdk_operations.resume_any: 1,
    sdk_operations.close_any: 4,
    sdk_operations.open_any: 4,
    sdk_operations.kill_writer: 1,
    sdk_operations.kill_service: 1,
    row_api_operations.append_any: 14,
    row_api_operations.open_any: 1,
    row_api_operations.append_stale: 1,
    row_api_operations.append_elastic: 3,
    row_api_operations.drop_any: 1,
    table_operations.create_any: 2,
    table_operations.replace_any: 0.5,
    table_operations.drop_any: 1,
    table_operations.undrop_any: 3,
    table_operations.truncate_any: 1.5,
    table_operations.rename_any: 4,
    table_operations.exchange_any: 2,
    column_operations.add_any: 3,
    column_operations.drop_any: 2,
    column_operations.rename_any: 2.5,
    column_operations.widen_any: 2.5,
    column_operations.drop_required_any: 1,
    column_operations.change_default_any: 2,
    load_operations.copy_any: 3,
    load_operations.migrate_any: 0.25,
    load_operations.maintain: 0.2,
    engine_operations.append_any: 2,
    engine_operations.delete_any: 2,
    engine_operations.overwrite_any: 2,
    engine_operations.commit_beside_statement: 3,
    engine_operations.insert_with_duckdb: 1,
    pipe_operations.create_any: 1,
    pipe_operations.append_any: 5,
    concurrent_operations.commit_beside_steps: 3,
    # Does nothing in a run without Spark.
    spark_operations.change_any: 4,
}
_CLIENT_LAGS_S = (0.1, 0.3, 1)
_WRITERS = 3
_FOCUS_FACTOR = 8


@dataclass(frozen=True)
class HistoryOptions:
    """What a run does. It ends after `steps`, or after `seconds` if there are no steps."""

    seed: int
    steps: int = 0
    seconds: float = 600
    postgres: bool = False
    bucket: bool = False
    # Interpreter of the environment of the engines. None: DuckDB does not read.
    engine_python: Path | None = None
    # Run INSERT, DELETE, UPDATE and MERGE in a Spark session.
    spark: bool = False
    # Modules whose operations are more frequent, such as "engine_operations".
    focus: tuple[str, ...] = ()


@dataclass(frozen=True)
class HistoryResult:
    """Steps that a run has done, what it has counted, and the differences that it has found."""

    steps: int
    counts: Counter[str]
    differences: list[str]


def run_history(folder: Path, options: HistoryOptions) -> HistoryResult:
    """Run random operations in a folder, and compare the service with the model."""
    source = random.Random(f"{options.seed}/site")
    with running_site(
        folder,
        postgres=options.postgres,
        bucket=options.bucket,
        migrate_max_age_s=source.choice([1, 3, 6]),
    ) as site:
        run = Run(site, options.seed)
        steps = 0
        try:
            _prepare(run, source)
            with (
                duckdb_reader(run, options.engine_python) as run.duckdb,
                spark_operations.spark_statements(run, enabled=options.spark) as run.spark,
            ):
                weights = _make_weights(options.focus)
                until = time.monotonic() + options.seconds
                next_check, checks = 25, 0
                while steps < options.steps or (not options.steps and time.monotonic() < until):
                    steps += 1
                    _run_step(run, steps, weights)
                    if steps >= next_check:
                        checks += 1
                        check(run, with_engines=checks % 3 == 0)
                        next_check = steps + source.randint(15, 60)
                run.begin_step(steps + 1)
                check(run, with_engines=True)
                check_integrity(run)
        except TooManyDifferences:
            pass
        except Exception:
            run.differences.append(f"step {steps} failed: {traceback.format_exc()}")
        finally:
            run.stop()
    return HistoryResult(steps, run.counts, run.differences)


def _prepare(run: Run, source: random.Random) -> None:
    run.change("CREATE DATABASE DEMO")
    run.change('CREATE SCHEMA DEMO."s two"')
    for number in range(_WRITERS):
        run.writers.append(Writer(run.site, number, source.choice(_CLIENT_LAGS_S)))
    table_operations.create_table(run, SCHEMAS[0], "T1")
    table_operations.create_table(run, SCHEMAS[0], "T2")
    table_operations.create_table(run, SCHEMAS[1], "T1")


def _make_weights(focus: Sequence[str]) -> list[float]:
    """Return the relative frequencies of the operations."""
    return [
        weight * (_FOCUS_FACTOR if _module_name(operation) in focus else 1)
        for operation, weight in OPERATIONS.items()
    ]


def _module_name(operation: Operation) -> str:
    return operation.__module__.rpartition(".")[2]


def _run_step(run: Run, step: int, weights: Sequence[float]) -> None:
    run.begin_step(step)
    if not run.tables:
        table_operations.create_table(run, SCHEMAS[0], "T1")
    [operation] = run.source.choices(list(OPERATIONS), weights)
    run.log(_module_name(operation), operation.__name__)
    operation(run)
