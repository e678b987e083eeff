"""The console in a browser: log in, and see a row arrive."""

from __future__ import annotations

import datetime as dt

import pytest

from fixtures.browser import ConsoleUser, access_key
from snowmelt.testing import LocalService

pytestmark = pytest.mark.slow
A_WHILE = dt.timedelta(seconds=200)


def test_a_row_arrives_while_someone_watches(
    person: ConsoleUser, console_service: LocalService
) -> None:
    console_service.create_table("watched.public.t", "id INT")
    page = person.log_in(access_key(console_service))
    page.get_by_role("link", name="Channels").click()
    page.get_by_text("No channel is open yet").wait_for()
    with console_service.client() as client:
        channel = client.open_channel("gate-7", table="watched.public.t")
        channel.insert_rows([{"id": 1}], offset_token="flight-1")
        channel.wait_for_commit("flight-1", timeout=A_WHILE)
        assert "<td>flight-1</td>" in channel._repr_html_()
    # The list updates without a reload.
    page.get_by_role("link", name="GATE-7").click()
    page.get_by_role("heading", name="Channel GATE-7").wait_for()
    page.get_by_text("flight-1").first.wait_for()
    page.get_by_text("chunk on the stage").wait_for()
    chart = page.get_by_role("img", name="Insert to query of each commit")
    assert chart.locator(":scope > rect").count() == 1
