"""Rows that `snowmelt.Client` rejects are counted in the console; those of other clients are not known."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from snowmelt.catalog import model
from snowmelt.catalog.model.records import ACCOUNTADMIN
from snowmelt.catalog.views.channels import ChannelFilter, fetch_channels
from snowmelt.catalog.views.visibility import read_visibility
from snowmelt.client.client import Client
from snowmelt.testing import LocalService

pytestmark = pytest.mark.slow
A_WHILE = dt.timedelta(seconds=200)


@pytest.fixture
def service(catalog_url: str) -> Iterator[LocalService]:
    with LocalService(catalog_url=catalog_url) as running:
        running.create_table("counted.public.t", "id INT")
        yield running


def read(service: LocalService) -> dict[str, tuple[int | None, bool]]:
    """Return the rejected rows of each channel, and whether there is a reason."""
    with service.embedded.service.database.reading() as connection:
        visibility = read_visibility(connection, ACCOUNTADMIN)
        found = fetch_channels(
            connection, visibility, chosen=ChannelFilter(), now=service.clock.now()
        ).rows
    return {each.name: (each.rejected_rows, each.last_error is not None) for each in found}


def send(client: Client, *values: Any) -> None:
    channel = client.open_channel("C", table="counted.public.t", on_error="continue")
    for value in values:
        channel.insert_rows([{"id": value}, {"id": 1}])
    channel.close(timeout=A_WHILE)


def test_a_client_reports_the_rows_that_it_rejects(service: LocalService) -> None:
    with service.client() as client:
        send(client)
        assert read(service) == {"C": (0, False)}
        send(client, "a", "b", "c")
        assert read(service) == {"C": (3, True)}
        # Openings add up, and reports of one opening do not.
        channel = client.open_channel("C", table="counted.public.t", on_error="continue")
        channel.insert_rows([{"id": "d"}])
        for _ in range(2):
            channel.latest_committed_offset_token()
        assert read(service) == {"C": (4, True)}
    # Another client that does not report has opened it.
    with service.embedded.service.database.writing() as connection:
        sequencer = model.channels.c.client_sequencer
        connection.execute(sa.update(model.channels).values(client_sequencer=sequencer + 1))
    assert read(service) == {"C": (None, False)}
    service.sql("DROP TABLE counted.public.t")
