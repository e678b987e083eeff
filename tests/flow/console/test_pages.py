"""Pages in a browser: replay a rejected row, run a query and a select, and escape hostile names."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
import sqlalchemy as sa

from fixtures.browser import ConsoleUser, access_key, open_browser
from snowmelt.buckets.bucket import UploadCompletion
from snowmelt.buckets.bucket_registry import BucketRegistry
from snowmelt.catalog import model
from snowmelt.server.console.layout import SECTIONS
from snowmelt.storage.local_store import LocalStore
from snowmelt.testing import LocalService

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow
A_WHILE = dt.timedelta(seconds=200)
HOSTILE = "<img src=x onerror=alert(1)>"


def send(
    service: LocalService, table: str, rows: list[dict[str, Any]], channel: str = "c-0"
) -> None:
    with service.client() as client:
        opened = client.open_channel(f'"{channel}"', table=table, on_error="continue")
        opened.insert_rows(rows, offset_token=HOSTILE)
        opened.wait_for_commit(HOSTILE, timeout=A_WHILE)


def text_of(page: Page) -> str:
    return page.locator("main").inner_text()


def test_a_rejected_row_is_replayed_after_its_reason_is_gone(
    person: ConsoleUser, console_service: LocalService
) -> None:
    table = console_service.create_table(
        "replayed.public.t", "id INT, name VARCHAR(3)", "ERROR_TABLE = replayed.public.errors"
    )
    send(console_service, table, [{"id": 1, "name": "abc"}, {"id": 2, "name": "too long"}])
    person.log_in(access_key(console_service))
    page = person.go("/tables/REPLAYED/PUBLIC/T/rejected")
    page.get_by_text("too long").first.wait_for()
    # The rows of one channel are found from its page.
    channel = "c'\\1"
    send(console_service, table, [{"id": 3, "name": "other"}], channel=channel)
    path = f"/channels/REPLAYED/PUBLIC/T/{quote(channel)}"
    person.go(path).get_by_role("link", name="1", exact=True).click()
    page.get_by_role("heading", name=f"Rejected rows of channel {channel}").wait_for()
    page.get_by_text("other").first.wait_for()
    assert page.locator("main tbody tr").count() == 1
    page.get_by_role("link", name="all rejected rows").click()
    page.get_by_text('"name":"too long"').wait_for()
    console_service.sql(f"ALTER TABLE {table} ALTER COLUMN name SET DATA TYPE VARCHAR(20)")
    page.get_by_role("button", name="Dry run").click()
    page.get_by_text("Rows to insert: 2").wait_for()
    assert len(console_service.rows(table)) == 1
    page.get_by_role("button", name="Replay").click()
    page.get_by_text("Inserted rows: 2").wait_for()
    rows = console_service.rows(table)
    assert {row["NAME"] for row in rows} == {"abc", "too long", "other"}
    page.get_by_role("link", name="Table REPLAYED.PUBLIC.T").click()
    page.get_by_role("heading", name="Columns").wait_for()
    assert "VARCHAR(20)" in text_of(page)


def test_a_query_runs_and_what_is_none_is_refused(
    person: ConsoleUser, console_service: LocalService
) -> None:
    table = console_service.create_table("queried.public.t", "id INT, name VARCHAR")
    send(console_service, table, [{"id": 7, "name": HOSTILE}])
    person.log_in(access_key(console_service))
    page = person.go("/query")
    page.get_by_label("SELECT over one table").fill(f"SELECT name FROM {table} WHERE id = 7")
    page.get_by_role("button", name="Run").click()
    page.get_by_role("cell", name=HOSTILE).wait_for()
    page.get_by_label("SELECT over one table").fill(f"DROP TABLE {table}")
    page.keyboard.press("Control+Enter")
    page.get_by_text("only queries run here").wait_for()
    # Statements for files lead to their page.
    page.get_by_label("SELECT over one table").fill("SELECT * FROM S3Object s")
    page.keyboard.press("Control+Enter")
    page.get_by_role("alert").get_by_role("link", name="Select from a file").wait_for()
    assert console_service.rows(table)


def test_markup_in_names_values_and_tokens_is_text(
    person: ConsoleUser, console_service: LocalService
) -> None:
    name = f'hostile.public."{HOSTILE}"'
    console_service.sql("CREATE DATABASE hostile")
    console_service.sql(f'CREATE TABLE {name} (id INT, "{HOSTILE}" VARCHAR)')
    send(console_service, name, [{"id": 1}], channel=HOSTILE)
    person.log_in(access_key(console_service))
    page = person.go("/")
    for path in ("/channels", "/tables", "/loads", "/migrations", "/functions"):
        person.go(path)
        assert page.locator("main img").count() == 0
    page = person.go("/channels?find=img")
    page.get_by_role("link", name=HOSTILE).first.click()
    page.get_by_role("heading", name=f"Channel {HOSTILE}").wait_for()
    page.get_by_text(HOSTILE).first.wait_for()
    page = person.go("/tables?find=img")
    page.get_by_role("link", name=HOSTILE).first.click()
    page.get_by_role("link", name="Sample rows").click()
    page.get_by_role("columnheader", name=HOSTILE).wait_for()
    for path in (f"/channels?find={HOSTILE}", f"/query?sql={HOSTILE}", f"/select?bucket={HOSTILE}"):
        person.go(path)
        assert page.locator("main img").count() == 0
    # `person` fails if a dialog opened or a script raised an error.


def test_partitions_of_kafka_show_their_lag_and_stall(
    person: ConsoleUser, console_service: LocalService
) -> None:
    table = console_service.create_table("topics.public.t", "id INT")
    with console_service.client() as client:
        for name, token in (("clicks:P0", "41"), ("clicks:P0:end", "50"), ("clicks:P1:end", "0")):
            channel = client.open_channel(f'"{name}"', table=table)
            channel.advance(token)
            channel.wait_for_commit(token, timeout=A_WHILE)
    person.log_in(access_key(console_service))
    page = person.go("/")
    page.get_by_role("link", name="Kafka").click()
    from playwright.sync_api import expect

    rows = page.locator("table").nth(1).locator("tbody tr")
    lagging, done = rows.nth(0).locator("td"), rows.nth(1).locator("td")
    for cells, expected in (
        (lagging, ["clicks", "0", "◐ catching up", "8", "41", "50"]),
        (done, ["clicks", "1", "● current", "0", "–", "0"]),
    ):
        for number, text in enumerate(expected):
            expect(cells.nth(number)).to_have_text(text)
    # Without commits for 5 minutes, it is a problem of the overview.
    column = model.channels.c.last_commit_at
    older = sa.type_coerce(column, sa.BigInteger) - 360 * 1_000_000
    with console_service.embedded.service.database.writing() as connection:
        connection.execute(
            sa.update(model.channels)
            .where(model.channels.c.name == "clicks:P0")
            .values(last_commit_at=older)
        )
    page.get_by_text("1 partition had no commit for 5 minutes").wait_for()
    person.go("/").get_by_text("Kafka topic clicks: 8 messages not yet in table").wait_for()


@pytest.fixture(params=["light", "dark"])
def viewer(
    request: pytest.FixtureRequest, browser: Browser, console_service: LocalService
) -> Iterator[ConsoleUser]:
    # Axe runs inside the page, so bypass the console's content security policy.
    user = open_browser(browser, console_service.url, color_scheme=request.param, bypass_csp=True)
    yield user
    user.context.close()


def test_axe_finds_nothing(viewer: ConsoleUser, console_service: LocalService) -> None:
    from axe_playwright_python.sync_playwright import Axe

    if not console_service.sql("SHOW TABLES LIKE 'SEEN' IN ACCOUNT").rows:
        table = console_service.create_table("viewed.public.seen", "id INT")
        send(console_service, table, [{"id": 1}])
    viewer.log_in(access_key(console_service))
    axe = Axe()
    paths = [path for _, path, _ in SECTIONS]
    found = []
    for path in [
        *paths,
        "/tables/VIEWED/PUBLIC/SEEN",
        "/channels/VIEWED/PUBLIC/SEEN/c-0",
        "/tables/VIEWED/PUBLIC/SEEN/trace",
        "/login",
    ]:
        page = viewer.go(path)
        for violation in axe.run(page).response["violations"]:
            targets = [node["target"] for node in violation["nodes"]]
            found.append((path, violation["id"], targets[:3]))
    assert found == []


@pytest.mark.parametrize("width", [320, 1280])
def test_no_page_is_wider_than_its_window(
    width: int, browser: Browser, console_service: LocalService
) -> None:
    user = open_browser(browser, console_service.url, viewport={"width": width, "height": 900})
    user.log_in(access_key(console_service))
    for path in [path for _, path, _ in SECTIONS]:
        page = user.go(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
    user.context.close()


def test_a_monitor_sees_counts_and_neither_rows_nor_tokens(
    browser: Browser, console_service: LocalService
) -> None:
    table = console_service.create_table(
        "monitored.public.t", "id INT, name VARCHAR", "ERROR_TABLE = monitored.public.errors"
    )
    secret = "value-of-a-row"
    send(console_service, table, [{"id": 4, "name": secret}, {"id": secret}])
    console_service.sql(
        "CREATE ROLE watcher",
        "CREATE USER watching DEFAULT_ROLE = watcher",
        "GRANT ROLE watcher TO USER watching",
        "GRANT MONITOR ON DATABASE monitored TO ROLE watcher",
        # SELECT on another database gives no access to pages of the monitored one.
        "CREATE DATABASE elsewhere",
        "CREATE TABLE elsewhere.public.t (id INT)",
        "GRANT USAGE ON DATABASE elsewhere TO ROLE watcher",
        "GRANT USAGE ON SCHEMA elsewhere.public TO ROLE watcher",
        "GRANT SELECT ON TABLE elsewhere.public.t TO ROLE watcher",
    )
    user = open_browser(browser, console_service.url)
    page = user.log_in(access_key(console_service, "watching"))
    assert "Rows per second" not in text_of(page), "figures of the account need MONITOR on it"
    names = user.go("/tables").locator("tbody td:first-child").all_text_contents()
    assert names == [
        "ELSEWHERE.PUBLIC.T",
        "MONITORED.PUBLIC.ERRORS",
        "MONITORED.PUBLIC.T",
    ]
    told = ""
    paths = ["/", "/channels", "/channels/MONITORED/PUBLIC/T/c-0", "/tables/MONITORED/PUBLIC/T"]
    paths += [f"/tables/MONITORED/PUBLIC/{each}/rows" for each in ("T", "ERRORS")]
    for path in [*paths, "/tables/MONITORED/PUBLIC/T/rejected", "/api/v1/channels"]:
        told += user.go(path).content()
    told += user.go("/api/v1/channels?sort=token&limit=1").content()
    assert '"privilege_missing"' in told, "the order would reveal tokens"
    assert secret not in told
    assert "onerror" not in told, "the offset token of the channel"
    assert re.search("hidden: needs SELECT or INSERT", told)
    assert "There is no table" in text_of(user.go("/tables/VIEWED/PUBLIC/SEEN"))
    user.context.close()


def test_a_select_runs_on_an_object(person: ConsoleUser, console_service: LocalService) -> None:
    service = console_service.embedded.service
    console_service.sql("CREATE BUCKET people")
    files = LocalStore(service.settings.objects_dir)
    registry = BucketRegistry(service.database, files, service.clock)
    upload = registry.access_bucket("EMBEDDED", "people").bucket.start_upload("ages.csv", {})
    upload.write(b"name,age\nann,30\nbob,40\n")
    upload.finish(UploadCompletion())
    person.log_in(access_key(console_service))
    page = person.go("/select")
    page.get_by_role("link", name="people").click()
    page.get_by_role("link", name="ages.csv").click()
    # The columns and first records are there before anything runs.
    page.get_by_role("columnheader", name="age").wait_for()
    page.get_by_role("cell", name="ann").wait_for()
    page.get_by_label("Statement").fill("SELECT s.nme FROM S3Object s")
    page.get_by_role("button", name="Run").click()
    page.get_by_role("alert").filter(has_text="unknown column nme").wait_for()
    assert page.get_by_label("Bucket").input_value() == "people"
    assert page.get_by_label("Statement").input_value() == "SELECT s.nme FROM S3Object s"
    page.get_by_role("link", name="ages.csv").wait_for()
    statement = "SELECT s.name FROM S3Object s WHERE CAST(s.age AS INT) > 35"
    page.get_by_label("Statement").fill(statement)
    page.get_by_role("button", name="Run").click()
    page.get_by_role("cell", name="bob").first.wait_for()
    assert "23 B" in text_of(page), "bytes scanned"
    page.get_by_text("in Python (boto3) and with the AWS CLI").click()
    said = text_of(page)
    assert "aws --endpoint-url" in said
    assert "select_object_content(Bucket='people', Key='ages.csv'" in said
