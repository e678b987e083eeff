"""A request of an engine has one outcome for its idempotency key."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from fixtures.catalog import START
from snowmelt.catalog.objects.engine_requests import (
    KEY_LIFETIME,
    EngineRequest,
    IdempotencyKeyReused,
    RequestOutcome,
    claim_request,
    finish_request,
)

if TYPE_CHECKING:
    from snowmelt.catalog.db.database import Database

_REQUEST = EngineRequest("key", "ANNA", 1, b"hash")


def test_the_first_outcome_of_a_key_stays(database: Database) -> None:
    with database.writing() as connection:
        assert claim_request(connection, _REQUEST, START) is None
        assert claim_request(connection, _REQUEST, START) is None
        assert finish_request(connection, "key", '409 {"error": {}}', START)
        assert not finish_request(connection, "key", None, START)
        assert claim_request(connection, _REQUEST, START) == RequestOutcome('409 {"error": {}}')


@pytest.mark.parametrize("change", [{"user": "BEN"}, {"table_id": 2}, {"body_sha256": b"other"}])
def test_a_key_belongs_to_one_user_table_and_body(
    database: Database, change: dict[str, object]
) -> None:
    with database.writing() as connection:
        claim_request(connection, _REQUEST, START)
        with pytest.raises(IdempotencyKeyReused, match="Idempotency-Key key"):
            claim_request(connection, replace(_REQUEST, **change), START)  # type: ignore[arg-type]


def test_a_key_is_kept_for_its_lifetime(database: Database) -> None:
    second = dt.timedelta(seconds=1)
    with database.writing() as connection:
        claim_request(connection, _REQUEST, START)
        finish_request(connection, "key", None, START)
        kept = claim_request(connection, _REQUEST, START + KEY_LIFETIME)
        assert kept == RequestOutcome(None)
        assert claim_request(connection, _REQUEST, START + 2 * KEY_LIFETIME + second) is None
