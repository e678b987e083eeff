"""The page of the sites, with a real secondary: it follows, becomes silent, and replaces the primary."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import sqlalchemy as sa

from fixtures.browser import ConsoleUser, open_browser
from fixtures.service import KeyPair
from snowmelt.catalog import model
from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.client.console import ConsoleClient
from snowmelt.errors import CommitTimeout
from support.served_sites import ServedSite, ServedSites, wait_until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow


@pytest.fixture
def sites(tmp_path: Path, key_pair: KeyPair) -> Iterator[ServedSites]:
    first, second = (ServedSite(tmp_path / name) for name in ("site1", "site2"))
    found = ServedSites(tmp_path, key_pair, first, second)
    found.start()
    yield found
    found.stop()


def move_last_request(site: ServedSite, seconds: int) -> None:
    """Move the last requests of the secondaries into the past."""
    database = open_and_upgrade_database(site.settings.catalog_url)
    column = model.replica_slots.c.requested_at
    with database.writing() as connection:
        older = sa.type_coerce(column, sa.BigInteger) - seconds * 1_000_000
        connection.execute(sa.update(model.replica_slots).values({column: older}))
    database.close()


def read(page: Page) -> str:
    return page.locator("main").inner_text()


def test_the_sites_page_follows_a_failover(sites: ServedSites, browser: Browser) -> None:
    from axe_playwright_python.sync_playwright import Axe

    public = sites.key_pair.public_base64
    sites.first.sql(
        f"CREATE USER ops RSA_PUBLIC_KEY = '{public}' DEFAULT_ROLE = accountadmin",
        "GRANT ROLE accountadmin TO USER ops",
        f"CREATE USER clerk RSA_PUBLIC_KEY = '{public}' DEFAULT_ROLE = public",
    )

    def open_site(site: ServedSite, name: str) -> ConsoleUser:
        private = sites.key_pair.private_pem
        with ConsoleClient(site.url, user=name, private_key=private) as client:
            code = client.fetch("/login-codes")["code"]
        user = open_browser(browser, site.url, bypass_csp=True)
        page = user.go(f"/login#{code}")
        page.get_by_role("heading", name="Overview", level=1).wait_for()
        return user

    first = open_site(sites.first, "ops")
    page = first.page
    page.get_by_role("link", name="Sites").click()
    page.get_by_text("is the primary, and its secondary SITE").wait_for()
    page.get_by_role("cell", name="current").wait_for()

    # Rows that the secondary does not get: their tokens wait, and the overview names the site.
    sites.second.kill()
    client = sites.client(sites.first)
    channel = client.open_channel("C", table="demo.public.t")
    channel.insert_rows([{"id": 1}], offset_token="1")
    wait_until(lambda: sites.read_state(sites.first)[0] == [1], "the row is not committed")
    with pytest.raises(CommitTimeout):
        client.close(timeout=dt.timedelta(0))
    move_last_request(sites.first, 300)
    page.get_by_text("Site SITE2 has sent no request for 5.").wait_for()
    page.get_by_text("1 offset token of this site cannot be reported").wait_for()
    row = page.get_by_role("row").filter(has=page.get_by_role("cell", name="silent"))
    row.wait_for()
    behind_s = row.locator("td").nth(2)
    assert int(behind_s.inner_text().removesuffix(" s")) >= 300
    first.go("/").get_by_text("REMOVE SITE2 FROM ALLOWED_ACCOUNTS").wait_for()
    first.go("/channels/DEMO/PUBLIC/T/C").get_by_text("committed here").wait_for()
    assert Axe().run(first.go("/sites")).response["violations"] == []

    # The secondary replaces the primary, which then shows what it had alone.
    sites.first.kill()
    sites.second.start()
    second = open_site(sites.second, "ops")
    page = second.go("/sites")
    page.get_by_text(f"cannot follow the primary {sites.first.url}").wait_for()
    page.get_by_role("heading", name="If the primary is lost").wait_for()
    page.get_by_role("listitem").filter(has_text="PRIMARY FORCE").wait_for()
    assert Axe().run(page).response["violations"] == []
    sites.second.sql("ALTER FAILOVER GROUP g PRIMARY FORCE")
    page.get_by_text("Site SITE1 may follow this site").wait_for()
    sites.first.start()
    sites.wait_for_role(sites.first, "secondary")
    sites.wait_until_started_again(sites.first)
    page.get_by_text("is the primary, and its secondary SITE").wait_for()
    page = first.go("/sites")
    page.get_by_role("heading", name="Diverged changes").wait_for()
    page.get_by_text("Another site replaced this site as the primary.").wait_for()
    assert '"offset_token":"1"' in read(page)
    assert "secondary" in read(page)

    # A role without MONITOR or FAILOVER gets neither the page nor the problems.
    clerk = open_site(sites.first, "clerk")
    assert "replaced" not in read(clerk.go("/"))
    assert "lacks MONITOR on the account" in read(clerk.go("/sites"))
    for user in (first, second, clerk):
        user.context.close()
