"""Contract tests run on every database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from snowmelt.catalog.db.database import Database


@pytest.fixture
def database(open_catalog: Callable[..., Database]) -> Database:
    """A fresh catalog, once on each database."""
    return open_catalog()
