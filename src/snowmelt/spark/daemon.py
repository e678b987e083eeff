"""PySpark's worker daemon with the imports of Snowmelt's tasks preloaded.

Workers are forked from the daemon, so each new worker starts one to two seconds faster. A session
selects it with `spark.python.daemon.module`.
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
    """Run one task. Prints no traceback if Spark closes the connection early.

    A query with LIMIT closes its connections early, and PySpark prints a traceback for each.
    """
    try:
        return int(_pyspark_worker(sock, authenticated))
    except ConnectionError:
        # Exit, as after a failed task. The next task gets a new process.
        return 1


if __name__ == "__main__":
    daemon.worker = worker
    daemon.manager()
