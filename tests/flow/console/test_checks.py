"""Checks and traces in a real browser: a lost blob is found, and a token leads to its blob and file."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator

import pytest

from fixtures.browser import ConsoleUser, access_key, migrate
from snowmelt.testing import LocalService

pytestmark = pytest.mark.slow
A_WHILE = dt.timedelta(seconds=200)


@pytest.fixture(scope="module")
def console_service() -> Iterator[LocalService]:
    with LocalService(console="read") as service:
        yield service


def commit(service: LocalService, table: str, ids: list[int], token: str) -> None:
    with service.client() as client:
        channel = client.open_channel("events-0", table=table)
        channel.insert_rows([{"id": each} for each in ids], offset_token=token)
        channel.wait_for_commit(token, timeout=A_WHILE)


def test_a_token_and_a_row_lead_to_blob_and_native_file(
    person: ConsoleUser, console_service: LocalService
) -> None:
    table = console_service.create_table("traced.public.t", "id INT")
    commit(console_service, table, [1, 2], "first")
    migrate(console_service, table)
    commit(console_service, table, [7], "second")
    person.log_in(access_key(console_service))
    page = person.go("/channels/TRACED/PUBLIC/T/EVENTS-0")
    page.get_by_role("link", name="second").click()
    page.get_by_text("The rows wait on the stage for migration").wait_for()
    page.get_by_label("Offset token").fill("first")
    page.get_by_label("Trace a channel").get_by_role("button").click()
    page.get_by_text("The rows are in a native file").wait_for()
    page.get_by_role("cell", name="0 to 1").wait_for()
    assert re.search(r"T\w*/.*\.parquet", page.locator("main").inner_text())
    page.get_by_text("This page as command, SQL and JSON").click()
    page.get_by_text("snowmelt trace TRACED.PUBLIC.T").wait_for()
    page.get_by_label("Rows with").fill("id = 7")
    page.get_by_label("Trace rows").get_by_role("button").click()
    page.get_by_role("columnheader", name="ID", exact=True).wait_for()
    page.get_by_role("link", name='"events-0"').or_(
        page.get_by_role("link", name="EVENTS-0")
    ).click()
    page.get_by_role("heading", name="Channel EVENTS-0").wait_for()


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ("no_such = 1", "Invalid condition"),
        ("1=1); SELECT (1", "more than one statement"),
        ("id IN (SELECT 1 FROM read_text('/etc/passwd'))", "Invalid condition"),
    ],
)
def test_a_condition_that_is_none_is_refused(
    condition: str, said: str, person: ConsoleUser, console_service: LocalService
) -> None:
    if not console_service.sql("SHOW TABLES LIKE 'COND' IN ACCOUNT").rows:
        table = console_service.create_table("conditions.public.cond", "id INT")
        commit(console_service, table, [1], "1")
    person.log_in(access_key(console_service))
    page = person.go("/tables/CONDITIONS/PUBLIC/COND/trace")
    page.get_by_label("Rows with").fill(condition)
    page.get_by_label("Trace rows").get_by_role("button").click()
    page.get_by_role("alert").filter(has_text=said).wait_for()


def test_a_lost_blob_is_found_with_its_remedy(
    person: ConsoleUser, console_service: LocalService
) -> None:
    table = console_service.create_table("lost.public.t", "id INT")
    commit(console_service, table, [1], "only")
    person.log_in(access_key(console_service))
    page = person.go("/checks")
    page.get_by_text("not run yet").wait_for()
    page.get_by_role("button", name="Check now").click()
    page.get_by_text("Every committed row is where the catalog says.").wait_for()
    page.get_by_role("cell", name="catalog", exact=True).wait_for()
    folder = console_service.embedded.settings.data_dir / "stage"
    newest = max(
        (each for each in folder.rglob("*") if each.is_file()),
        key=lambda each: each.stat().st_mtime_ns,
    )
    newest.unlink()
    page.get_by_role("button", name="Check now").click()
    page.get_by_role("cell", name="blob-missing").wait_for()
    page = person.go("/")
    problem = page.locator(".findings li").filter(has_text="LOST.PUBLIC.T found blob-missing")
    problem.get_by_text("Restore the blob from a backup of the stage").wait_for()
