"""Steps of a run in which an engine commits while other steps are done."""

from __future__ import annotations

import threading

from support.system_model import (
    column_operations,
    engine_operations,
    load_operations,
    pipe_operations,
    row_api_operations,
    sdk_operations,
    spark_operations,
    table_operations,
)
from support.system_model.engine_operations import Change, apply_change
from support.system_model.run import Run

# Steps that leave the table of the commit in place, so that the outcome of the commit can be found.
_BESIDE = (
    *[sdk_operations.insert_any] * 6,
    sdk_operations.flush_any,
    sdk_operations.open_any,
    sdk_operations.close_any,
    sdk_operations.kill_writer,
    sdk_operations.kill_service,
    *[row_api_operations.append_any] * 3,
    row_api_operations.append_elastic,
    pipe_operations.append_any,
    load_operations.copy_any,
    load_operations.migrate_any,
    load_operations.maintain,
    table_operations.rename_any,
    table_operations.exchange_any,
    column_operations.add_any,
    column_operations.drop_any,
    column_operations.rename_any,
    column_operations.widen_any,
    column_operations.drop_required_any,
)
_BEGINNINGS = (
    engine_operations.begin_append,
    engine_operations.begin_delete,
    engine_operations.begin_overwrite,
)


class _Commit(threading.Thread):
    """Commit of a change in the background. `finish` waits for it and raises its error."""

    def __init__(self, change: Change) -> None:
        super().__init__(daemon=True)
        self._change = change
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            self._change.commit()
        except Exception as error:
            self._error = error

    def finish(self) -> None:
        self.join()
        if self._error is not None:
            raise self._error


def commit_beside_steps(run: Run) -> None:
    """Commit a change of PyIceberg or Spark, and meanwhile do other steps."""
    source = run.source
    with_spark = run.spark is not None and source.random() < 0.6
    begun = source.choice(spark_operations.CHANGES if with_spark else _BEGINNINGS)(run)
    if begun is None:
        return
    table, change = begun
    commit = _Commit(change)
    commit.start()
    run.log("in the background:", change.engine, table.full_name)
    steps = [source.choice(_BESIDE) for _ in range(source.randint(2, 8))]
    for step in steps:
        run.log("beside:", step.__module__.rpartition(".")[2], step.__name__)
        step(run)
    change.commit = commit.finish
    apply_change(run, table, change)
