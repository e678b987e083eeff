"""Snowmelt tables in Spark: the only package that imports PySpark.

`java`: the Java runtime for Spark.
`class_archive`: the archive of Spark's classes, with which Spark starts sooner.
`session`: the Spark settings that Snowmelt needs, and local sessions.
`daemon`: the Python worker daemon with preloaded imports.
`snowmelt_session`: `Snowmelt`, the public interface.
`sql`: analysis and planning of queries, system views.
`name_check`: check of table and function names before Spark starts.
`insert_statements`: CREATE TABLE AS and INSERT.
`row_changes`: DELETE, UPDATE and MERGE.
`companion_values`: nanoseconds and offsets of values that UPDATE and MERGE take from columns.
`positioned_rows`: native rows with their positions, and rewriting of files with changed rows.
`tables`: a table as a DataFrame.
`format`, `datasource`: the data source `snowmelt`.
`copy_dataframe_source`, `select`: the data sources `snowmelt-load` and `snowmelt-select`.
`functions`: external functions in a Spark session.
`task_job`: Spark jobs that run Python tasks on executors.
`load_job`: COPY as a Spark job.
`error_translation`: translation of Spark errors to Snowmelt errors.

`Snowmelt` is imported at first use, because importing PySpark takes a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from snowmelt.spark.snowmelt_session import Snowmelt

__all__ = ["Snowmelt"]


def __getattr__(name: str) -> Any:
    """Import PySpark at first use, because the import takes a second."""
    if name == "Snowmelt":
        from snowmelt.spark.snowmelt_session import Snowmelt

        return Snowmelt
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
