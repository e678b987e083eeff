"""Contract tests run on every database."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from fixtures.catalog import Client, World, advance
from snowmelt.catalog.statements.executor import execute_statement

if TYPE_CHECKING:
    from collections.abc import Callable

    from snowmelt.catalog.db.database import Database
    from snowmelt.catalog.statements.statement_context import StatementResult


@pytest.fixture
def database(open_catalog: Callable[..., Database]) -> Database:
    """A fresh catalog, once on each database."""
    return open_catalog()


@pytest.fixture
def run(world: World) -> Callable[..., StatementResult]:
    """Run a statement. Its short names are in the database DB."""

    def statement(text: str, **who: Any) -> StatementResult:
        return execute_statement(
            world.database, text, clock=world.clock, default_database="db", **who
        )

    return statement


@pytest.fixture
def client(world: World) -> Client:
    """A client whose channel C has the token 10."""
    client = world.client()
    client.open("C")
    assert world.codes(client.offer(advance("C", 0, 1, "10"))) == [[0]]
    return client
