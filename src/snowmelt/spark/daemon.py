"""PySpark's worker daemon with what every task of ours needs already imported.

Workers are forked from it: importing here saves each new one a second or two. A session takes
it by `spark.python.daemon.module`.
"""

from __future__ import annotations

import pyspark.sql.worker.create_data_source
import pyspark.sql.worker.plan_data_source_read
import pyspark.worker  # noqa: F401
from pyspark.daemon import manager

import snowmelt.spark.function_workers
import snowmelt.spark.load_tasks
import snowmelt.spark.source  # noqa: F401

if __name__ == "__main__":
    manager()
