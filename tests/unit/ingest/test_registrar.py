from __future__ import annotations

import contextlib
import queue
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from snowmelt import failpoints
from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.objects import tables
from snowmelt.catalog.streaming import chunks
from snowmelt.clock import SystemClock
from snowmelt.errors import (
    CatalogBusy,
    CatalogUnavailable,
    RegistrationRefused,
    ServiceBusy,
    StageUnavailable,
    SyncFailed,
    UnknownOutcome,
)
from snowmelt.ingest.registrar import GroupCommitSettings, Registrar, build_response
from snowmelt.ingest.registration_verifier import ChunkCandidate, Registrant, RegistrationVerifier
from snowmelt.ingest.stage_sync import StageSync
from snowmelt.schema.types import TableName
from snowmelt.storage.local_store import LocalStore
from snowmelt.wire.streaming import RegisterBlobsRequest, RegisterBlobsResponse

if TYPE_CHECKING:
    from unit.ingest.conftest import World


SENDER = Registrant("LOADER", None)


def trusted(world: World) -> tuple[StageSync, RegistrationVerifier]:
    verifier = world.verifier()
    return StageSync(world.stage, verifier, SystemClock()), verifier


@pytest.fixture
def registrar(world: World) -> Iterator[Registrar]:
    # One transaction for all that is submitted within a moment.
    registrar = Registrar(
        world.database,
        *trusted(world),
        clock=SystemClock(),
        settings=GroupCommitSettings(0.05, verify_threads=1),
    )
    yield registrar
    registrar.close()


def register(registrar: Registrar, *requests: RegisterBlobsRequest) -> list[Any]:
    """Submit all at once and return what each was answered: a list of codes, or an exception."""
    answers: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
    for number, request in enumerate(requests):

        def note(answer: RegisterBlobsResponse | Exception, number: int = number) -> None:
            answers.put((number, answer))

        registrar.submit(request, SENDER, note)
    arrived = sorted((answers.get(timeout=200) for _ in requests), key=lambda item: item[0])
    return [codes(answer) for _, answer in arrived]


def codes(answer: RegisterBlobsResponse | Exception) -> list[int] | Exception:
    if isinstance(answer, Exception):
        return answer
    return [
        channel.status_code
        for blob in answer.blobs
        for chunk in blob.chunks
        for channel in chunk.channels
    ]


def stored(world: World) -> int:
    with world.database.reading() as connection:
        table = tables.find_table(connection, TableName("DEMO", "PUBLIC", "T"))
        found = chunks.list_chunks(connection, table.table_id, 0, table.last_seq)
        assert len(found) == table.last_seq
    return len(found)


def rows(count: int = 2) -> list[dict[str, Any]]:
    return [{"id": number, "x": 0.5, "name": "n"} for number in range(count)]


def several(world: World, count: int = 4) -> list[RegisterBlobsRequest]:
    opened = [world.open(f"CH{number}") for number in range(count)]
    return [world.request(world.blob(each, 1, rows())) for each in opened]


def raising(error: Exception) -> Callable[[], None]:
    def action() -> None:
        raise error

    return action


def test_waiting_registrations_share_a_transaction(world: World, registrar: Registrar) -> None:
    # The first one opens a group of its own; the others wait out the pause after it.
    requests = several(world, 8)
    passages = []
    failpoints.arm(failpoints.Failpoint.AFTER_REGISTRATION, lambda: passages.append(1), passage=3)
    assert register(registrar, *requests) == [[0]] * 8
    assert stored(world) == 8
    assert not passages, "eight registrations took at most two transactions"


def test_a_failing_group_is_registered_one_by_one(world: World, registrar: Registrar) -> None:
    requests = several(world)
    failpoints.arm(failpoints.Failpoint.INSIDE_REGISTRATION, raising(RuntimeError("on purpose")))
    answers = register(registrar, *requests)
    # Only a registration that was alone in the failing transaction is asked to come again.
    assert all(answer in ([0], [10]) for answer in answers)
    assert answers.count([10]) <= 1
    assert register(registrar, *requests) == [[0]] * 4
    assert stored(world) == 4


def test_an_unknown_outcome_is_code_10_and_sending_again_settles_it(
    world: World, registrar: Registrar
) -> None:
    (request,) = several(world, 1)
    failpoints.arm(failpoints.Failpoint.AFTER_REGISTRATION, raising(UnknownOutcome()))
    assert register(registrar, request) == [[10]]
    assert register(registrar, request) == [[0]]
    assert stored(world) == 1


def test_a_stage_that_cannot_be_made_durable_registers_nothing(
    world: World, registrar: Registrar
) -> None:
    (request,) = several(world, 1)
    failpoints.arm(
        failpoints.Failpoint.BEFORE_REGISTRATION, raising(StageUnavailable(reason="disk full"))
    )
    (answer,) = register(registrar, request)
    assert isinstance(answer, StageUnavailable)
    assert stored(world) == 0
    assert register(registrar, request) == [[0]]


def test_a_catalog_that_is_away_is_an_outage_not_a_refusal(
    world: World, registrar: Registrar
) -> None:
    (request,) = several(world, 1)
    failpoints.arm(
        failpoints.Failpoint.INSIDE_REGISTRATION, raising(CatalogUnavailable(reason="gone"))
    )
    (answer,) = register(registrar, request)
    assert isinstance(answer, CatalogUnavailable)
    assert answer.retryable
    assert stored(world) == 0


@pytest.mark.slow
def test_a_full_disk_under_the_catalog_registers_nothing_and_costs_no_row(
    world: World, registrar: Registrar
) -> None:
    requests, opened = several(world), world.open()
    # SQLite itself then says that the disk is full; the one writing connection keeps the limit.
    with world.database.writing() as connection:
        full = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {full}")
    answers: list[Any] = []
    request = requests[0]
    while not answers or answers[-1] == [0]:
        request = world.request(world.blob(opened, len(answers) + 1, rows()))
        answers += register(registrar, request)
    assert isinstance(answers[-1], CatalogUnavailable)
    assert "disk is full" in str(answers[-1])
    assert answers[-1].retryable
    assert stored(world) == len(answers) - 1
    with world.database.writing() as connection:
        connection.exec_driver_sql(f"PRAGMA max_page_count = {full * 100}")
    assert register(registrar, request, *requests) == [[0]] * 5


def test_a_catalog_that_another_process_has_locked_is_an_outage_not_a_refusal(world: World) -> None:
    (request,) = several(world, 1)
    with contextlib.closing(
        open_and_upgrade_database(world.database.url, busy_timeout_s=0.1)
    ) as impatient:
        registrar = Registrar(
            impatient, *trusted(world), clock=SystemClock(), settings=GroupCommitSettings()
        )
        with world.database.writing() as connection:
            connection.exec_driver_sql("SELECT 1")
            (answer,) = register(registrar, request)
        assert isinstance(answer, CatalogBusy)
        assert answer.retryable
        assert register(registrar, request) == [[0]]
        registrar.close()
    assert stored(world) == 1


def test_a_full_queue_asks_to_come_again(world: World) -> None:
    (request,) = several(world, 1)
    registrar = Registrar(
        world.database,
        *trusted(world),
        clock=SystemClock(),
        settings=GroupCommitSettings(max_queued_requests=0),
    )
    assert register(registrar, request) == [[7]]
    registrar.close()


def test_closing_answers_what_waits_and_refuses_what_comes_later(
    world: World, registrar: Registrar
) -> None:
    requests = several(world)
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for request in requests:
        registrar.submit(request, SENDER, answers.put)
    registrar.close()
    assert [codes(answers.get_nowait()) for _ in requests] == [[0]] * 4
    with pytest.raises(ServiceBusy):
        registrar.submit(requests[0], SENDER, answers.put)


def test_what_names_no_channel_is_refused_as_a_whole(registrar: Registrar) -> None:
    with pytest.raises(RegistrationRefused):
        registrar.submit(RegisterBlobsRequest(blobs=[]), SENDER, lambda answer: None)


class FailingDisk(LocalStore):
    """A stage whose next sync loses what was not on the disk, as the kernel does: once."""

    fails = False

    def sync(self) -> None:
        if self.fails:
            self.fails = False
            raise SyncFailed(reason="Input/output error")
        super().sync()


def test_what_a_failed_sync_may_have_lost_is_never_registered(world: World) -> None:
    stage = world.stage = FailingDisk(world.stage.root)
    pace = GroupCommitSettings(pause_s=0.0, verify_threads=1)
    registrar = Registrar(world.database, *trusted(world), clock=SystemClock(), settings=pace)
    with contextlib.closing(registrar):
        opened = world.open()
        before = world.request(world.blob(opened, 1, rows()))
        assert register(registrar, before) == [[0]]
        lost = world.request(world.blob(opened, 2, rows()))
        stage.fails = True
        assert register(registrar, lost) == [[38]]
        # The next sync succeeds, and the page cache still shows the whole blob.
        assert register(registrar, lost) == [[38]]
        assert register(registrar, before) == [[0]], "a repetition stays accepted"
        # The times of files are some milliseconds coarse.
        SystemClock().sleep(0.05)
        assert register(registrar, world.request(world.blob(opened, 2, rows()))) == [[0]]
    assert stored(world) == 2


def test_what_has_neither_offer_nor_refusal_is_not_told_as_committed(world: World) -> None:
    request = world.request(world.blob(world.open(), 1, rows()))
    assert codes(build_response(request, [ChunkCandidate(None)], iter(()))) == [10]
