"""`snowmelt status`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from fixtures.service import KeyPair, ServiceProcess
from support.ports import free_port

if TYPE_CHECKING:
    from unit.cli.conftest import Finished


pytestmark = pytest.mark.slow


def test_without_a_service_the_status_says_so_with_exit_code_1(
    snowmelt: Callable[..., Finished],
) -> None:
    snowmelt("sql", "CREATE DATABASE demo; CREATE TABLE demo.public.t (id NUMBER)")
    ended = snowmelt("status", port=str(free_port()))
    assert ended.returncode == 1
    lines = ended.stdout.splitlines()
    assert [line.split("  ")[0] for line in lines] == [
        *("service", "catalog", "backlog", "last commit", "freshness", "quarantine")
    ]
    assert lines[0] == (
        "service      no service of this catalog runs; start it with `snowmelt serve`"
    )
    assert "1 table, 0 channels" in lines[1]
    assert lines[2:] == [
        "backlog      0 chunks, 0 rows, 0 bytes in 0 tables",
        "last commit  none",
        "freshness    0 of 0 expected tables late",
        "quarantine   0 chunks",
    ]


def test_backlog_and_last_commit_are_those_of_the_catalog(
    snowmelt: Callable[..., Finished], loading_service: ServiceProcess, key_pair: KeyPair
) -> None:
    import snowmelt as sdk

    with sdk.Client(loading_service.url, user="loader", private_key=key_pair.private_pem) as client:
        channel = client.open_channel("C1", table="demo.public.t")
        assert repr(client) == (
            f"<Client {loading_service.url} as loader: 1 open channels, 0 bytes uncommitted>"
        )
        channel.insert_row({"id": 1}, offset_token="7")
        channel.wait_for_commit("7")
    assert repr(client) == f"<Client {loading_service.url}, closed>"
    settings = {"port": str(loading_service.port), "data_dir": str(loading_service.data_dir)}
    ended = snowmelt("status", "--format", "json", **settings)
    found = json.loads(ended.stdout)
    assert ended.returncode == 0, ended.stdout
    assert found["service"]["answers"] is True
    assert (found["backlog"]["chunks"], found["backlog"]["rows"]) == (1, 1)
    assert found["last_commit"]["offset_token"] == "7"
    # The address is that of the service that the catalog knows, not the one in the settings.
    shown = snowmelt("status", data_dir=settings["data_dir"], port=str(free_port())).stdout
    assert shown.startswith(f"service      responds at {loading_service.url}\n")
    assert " ago, channel C1" in shown


def test_a_catalog_that_is_missing_is_an_error(snowmelt: Callable[..., Finished]) -> None:
    ended = snowmelt("status")
    assert (ended.returncode, "there is no catalog" in ended.stderr) == (1, True)
