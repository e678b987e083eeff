"""Random statements of random roles do what an independent model of the grants says.

After the statements, all decisions on tables and buckets are compared for all roles: those of the
listings, of readers and writers, and of the S3 endpoint.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import random
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from snowmelt.catalog.db.database import Database, open_and_upgrade_database
from snowmelt.catalog.objects import s3_buckets, tables
from snowmelt.catalog.security.access_control import VisibleObjects, require_table_privilege
from snowmelt.catalog.statements.executor import execute_statement
from snowmelt.catalog.views.visibility import read_visibility
from snowmelt.clock import ManualClock
from snowmelt.errors import (
    AlreadyExists,
    DatabaseNotFound,
    NotFound,
    NotRestorable,
    PipeNotFound,
    PrivilegeMissing,
    RoleNotGranted,
    SchemaNotFound,
    SnowmeltError,
    TableNotFound,
)
from snowmelt.schema.types import TableName
from support.privilege_model import (
    ADMINISTRATOR,
    PRIVILEGES,
    PUBLIC,
    ROLES,
    Model,
    Outcome,
    Step,
    choose_step,
    make_setup,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

_STEPS = 200
_HIDDEN = (
    *(NotFound, DatabaseNotFound, SchemaNotFound, TableNotFound, PipeNotFound, NotRestorable),
)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Database]:
    with contextlib.closing(open_and_upgrade_database(f"sqlite:///{tmp_path}/c.db")) as opened:
        yield opened


class _Service:
    """Executes steps on a catalog. Each one is a second after the one before."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._clock = ManualClock(dt.datetime(2026, 11, 24, 12, tzinfo=dt.UTC))

    def execute(self, text: str) -> None:
        """Execute a statement as administrator, without a user."""
        execute_statement(self._database, text, clock=self._clock)

    def run(self, step: Step) -> tuple[Outcome, SnowmeltError | None]:
        """Execute a step, and return its outcome and its error."""
        self._clock.advance(1)
        try:
            execute_statement(
                self._database, step.text, user=step.user, role=step.role, clock=self._clock
            )
        except RoleNotGranted as error:
            return Outcome.ROLE_NOT_GRANTED, error
        except _HIDDEN as error:
            return Outcome.HIDDEN, error
        except PrivilegeMissing as error:
            return Outcome.DENIED, error
        except AlreadyExists as error:
            return Outcome.CONFLICT, error
        return Outcome.OK, None


@pytest.mark.parametrize("seed", range(3))
def test_statements_need_exactly_the_privileges_of_the_reference(
    catalog: Database, seed: int
) -> None:
    service, model = _Service(catalog), Model()
    for user, roles in model.members.items():
        service.execute(f"CREATE USER {user}")
        if user == "U1":
            service.execute(f"GRANT ROLE {ADMINISTRATOR} TO USER {user}")
            roles.add(ADMINISTRATOR)
    chance = random.Random(seed)
    outcomes: dict[tuple[str, Outcome], int] = {}
    history = []
    setup = make_setup()
    for number in range(_STEPS):
        step = setup.pop(0) if setup else choose_step(chance, model)
        expected = model.run(step)
        found, error = service.run(step)
        history.append(f"{step.user} {step.role}: {step.text} -> {found}")
        assert found == expected, (error, *history[-30:])
        outcomes[step.verb, found] = outcomes.get((step.verb, found), 0) + 1
        if number % 50 == 49:
            with catalog.reading() as connection:
                _compare_decisions(connection, model)
    # The walk was not only rejections.
    assert len([verb for verb, outcome in outcomes if outcome is Outcome.OK]) >= 12


def _compare_decisions(connection: Connection, model: Model) -> None:
    paths = model.list_tables()
    records = {path: tables.find_table(connection, TableName(*path)) for path in paths}
    assert len(tables.list_tables(connection)) == len(paths)
    for role in (*ROLES, PUBLIC, ADMINISTRATOR):
        listed = VisibleObjects(connection, role)
        visibility = read_visibility(connection, role)
        for path, record in records.items():
            can_select = model.may(role, path, "SELECT")
            assert listed.can_select_from(record) == can_select, (role, path)
            assert visibility.can_read(record.table_id) == can_select, (role, path)
            assert visibility.can_see_tokens(record.table_id) == model.may(
                role, path, "SELECT", "INSERT"
            )
            assert listed.includes_table(record) == model.may(role, path, *PRIVILEGES["TABLE"])
            for privilege in PRIVILEGES["TABLE"]:
                allowed = model.may(role, path, privilege)
                try:
                    require_table_privilege(connection, role, record, privilege)
                except (DatabaseNotFound, SchemaNotFound, TableNotFound):
                    assert not allowed, (role, path, privilege)
                else:
                    assert allowed, (role, path, privilege)
        for bucket in s3_buckets.list_buckets(connection):
            held = s3_buckets.bucket_privileges(connection, {role, PUBLIC}, bucket)
            expected = model.buckets.children[bucket.name].held(role)
            for privilege in PRIVILEGES["BUCKET"]:
                allowed = held.is_owner or privilege in held.prefixes_by_privilege
                assert allowed == (privilege in expected), (role, bucket.name, privilege)
