"""Driver process on a standalone cluster. Reports when the tasks of a step run, and its result.

python cluster_driver.py MASTER DATA_FOLDER FILES WRITTEN. WRITTEN is START:END, the half-open range
of the IDs that a DataFrame writes.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from snowmelt.clock import SystemClock
from snowmelt.spark import Snowmelt
from snowmelt.spark.session import local_session

if TYPE_CHECKING:
    from pyspark.core.status import StatusTracker


T = "demo.public.t"
COUNTED = f"SELECT count(*) n, count(DISTINCT id) ids, CAST(sum(id) AS BIGINT) total FROM {T}"
CLOCK = SystemClock()


def told(**given: object) -> None:
    print(json.dumps(given), flush=True)


class Steps:
    def __init__(self, master: str, data: str) -> None:
        sizes = {"spark.executor.memory": "512m", "spark.executor.cores": "1"}
        self.spark = local_session("cluster", master, sizes | {"spark.driver.memory": "1g"})
        self.lake = Snowmelt(
            self.spark,
            catalog=os.environ["SNOWMELT_CATALOG_URL"],
            stage=os.environ["SNOWMELT_STAGE_URL"],
            warehouse=os.environ["SNOWMELT_WAREHOUSE_URL"],
            keys=f"{data}/keys",
        )

    def await_executors(self, count: int = 2) -> None:
        status = self.spark.sparkContext._jsc.sc().statusTracker()
        while len(status.getExecutorInfos()) < count + 1:
            CLOCK.sleep(0.05)

    def run(self, name: str, work: Callable[[], list[int]]) -> None:
        """Run a step. Report its first running task, and wait until a worker is dead.

        Spark reports tasks with a delay. If it reports no task during the step, report one at the
        end.
        """
        self.await_executors()
        over = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(name, over), daemon=True)
        watcher.start()
        try:
            result = work()
        finally:
            over.set()
        watcher.join()
        told(done=name, result=result)

    def write(self, first: int, last: int) -> list[int]:
        """Append a DataFrame of more tasks than the cluster has cores."""
        frame = self.spark.range(first, last, 1, 6).selectExpr("id", "'written' AS name")
        frame.write.format("snowmelt").mode("append").option("table", T).save()
        query = f"SELECT count(*), count(DISTINCT id) FROM {T} WHERE name = 'written'"
        return [int(each) for each in self.lake.sql(query).collect()[0]]

    def count(self) -> list[int]:
        return [int(each) for each in self.lake.sql(COUNTED).collect()[0]]

    def _watch(self, name: str, over: threading.Event) -> None:
        tracker = self.spark.sparkContext.statusTracker()
        while not (over.wait(0.01) or _has_tasks(tracker)):
            continue
        told(running=name)
        sys.stdin.readline()


def _has_tasks(tracker: StatusTracker) -> bool:
    found = map(tracker.getStageInfo, tracker.getActiveStageIds())
    return any(info is not None and info.numActiveTasks for info in found)


def main() -> None:
    master, data, files, written = sys.argv[1:]
    first, last = map(int, written.split(":"))
    steps = Steps(master, data)
    steps.run("query of chunks", steps.count)
    steps.run("migrate", lambda: [done.rows for done in steps.lake.migrate(T)])
    steps.run("query of files", steps.count)
    copy = f"COPY {T} FROM '{files}/*.csv'"
    steps.run("copy", lambda: [int(row.rows_loaded) for row in steps.lake.sql(copy).collect()])
    steps.run("write", lambda: steps.write(first, last))
    told(done="end", result=steps.count())
    steps.spark.stop()


if __name__ == "__main__":
    main()
