"""One Spark session for the whole run."""

from __future__ import annotations

import warnings

import pytest


@pytest.fixture(scope="session")
def spark():
    """A session of two cores; shared, so a test sets back what it sets."""
    from snowmelt.spark.session import local_session

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = local_session("snowmelt-tests")
    yield session
    session.stop()


@pytest.fixture
def lake(spark, lakehouse):
    """The lakehouse of the test, seen through Spark."""
    from snowmelt.spark import Snowmelt

    return Snowmelt(
        spark,
        catalog=lakehouse.database,
        stage=lakehouse.stage.url,
        warehouse=lakehouse.warehouse.url,
        keys=lakehouse.keyring,
        clock=lakehouse.clock,
    )
