"""PySpark's worker daemon with the imports that Snowmelt's tasks need.

Workers are forked from it, so each new worker starts a second or two faster. A session selects it
by `spark.python.daemon.module`.
"""

from __future__ import annotations

import socket

import pyspark.sql.worker.create_data_source
import pyspark.sql.worker.plan_data_source_read
import pyspark.worker  # noqa: F401
from pyspark import daemon

import snowmelt.spark.functions.worker
import snowmelt.spark.load_job
import snowmelt.spark.tables.partition  # noqa: F401

_pyspark_worker = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Run one task, silently also where Spark has had enough of its rows.

    A query with LIMIT closes its connections early. PySpark prints a traceback for each.
    """
    try:
        return int(_pyspark_worker(sock, authenticated))
    except ConnectionError:
        # As for a task that failed: this process ends, and the next task gets another one.
        return 1


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
