"""Lists of the console on each kind of catalog: every page works, and paging shows each row once."""

from __future__ import annotations

import datetime as dt

import httpx
import pytest

from fixtures.browser import access_key
from snowmelt.catalog.views.channels import CHANNEL_ORDERS
from snowmelt.catalog.views.tables import TABLE_ORDERS
from snowmelt.server.console.layout import SECTIONS
from snowmelt.testing import LocalService

pytestmark = pytest.mark.slow


def test_every_list_has_every_row_once(catalog_url: str) -> None:
    with LocalService(catalog_url=catalog_url) as service:
        for number in range(3):
            service.create_table(f"listed{number}.public.t", "id INT")
        names = {f"C-{number}" for number in range(5)}
        with service.client() as client:
            for name in sorted(names):
                channel = client.open_channel(name, table="listed0.public.t")
                if name != "C-3":
                    channel.insert_rows([{"id": 1}], offset_token=name)
                    channel.wait_for_commit(name, timeout=dt.timedelta(seconds=200))
        key, secret = access_key(service)
        with httpx.Client(base_url=service.url, follow_redirects=True, timeout=120) as browser:
            fields = {"key": key, "secret": secret}
            browser.post("/console/login", data=fields, headers={"origin": service.url})
            for _, path, _ in SECTIONS:
                assert browser.get(f"/console{path}").status_code == 200, path
            for path in ("/tables/LISTED0/PUBLIC/T", "/channels/LISTED0/PUBLIC/T/C-1"):
                assert browser.get(f"/console{path}").status_code == 200, path
            for order in CHANNEL_ORDERS:
                found = walk(browser, "channels", order)
                assert sorted(str(each["name"]) for each in found) == sorted(names), order
            for order in TABLE_ORDERS:
                assert len(walk(browser, "tables", order)) == 3, order
            service.sql("ALTER TABLE listed0.public.t SET FRESHNESS = '1 day'")
            found = browser.get("/console/api/v1/channels?only=late").json()
            assert found == {"channels": [], "next": None}
            assert browser.get("/console/").status_code == 200
            for view in ("loads", "migrations", "maintenance"):
                assert browser.get(f"/console/api/v1/{view}").json()[view] == []
            refused = browser.get("/console/api/v1/channels?after=nothing")
            assert (refused.status_code, refused.json()["error"]) == (400, "request_malformed")
            assert browser.get("/console/api/v1/channels?sort=magic").status_code == 400


def walk(browser: httpx.Client, view: str, order: str) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    query = {"sort": order, "limit": "2"}
    while True:
        page = browser.get(f"/console/api/v1/{view}", params=query).json()
        found += page[view]
        if page["next"] is None:
            return found
        query["after"] = page["next"]
