"""Spark, for the commands that need it: started when first needed, stopped at the end."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from snowmelt.config import Settings
    from snowmelt.spark.lake import Snowmelt


@contextlib.contextmanager
def spark_session() -> Iterator[SparkSession]:
    """Start a local Spark session; at the end it is stopped.

    Raises:
        JavaMissing: There is no Java.
    """
    from snowmelt.spark.session import local_session

    spark = local_session()
    try:
        yield spark
    finally:
        spark.stop()


@contextlib.contextmanager
def opened_lake(settings: Settings, *, role: str) -> Iterator[Snowmelt]:
    """Open the settings' catalog in a local Spark session, for queries of a role.

    Raises:
        JavaMissing: There is no Java.
        CatalogUnavailable: The database cannot be reached.
    """
    from snowmelt.spark.lake import Snowmelt

    settings.data_dir.mkdir(parents=True, exist_ok=True)
    with (
        spark_session() as spark,
        Snowmelt(
            spark,
            catalog=settings.catalog_url,
            stage=settings.stage_url,
            warehouse=settings.warehouse_url,
            keys=settings.keys_dir,
            role=role,
        ) as lake,
    ):
        yield lake
