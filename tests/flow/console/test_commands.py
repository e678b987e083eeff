"""Commands `top`, `loads` and `migrations`, which show the console's data in a terminal."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator

import pytest

from snowmelt.cli.main import main
from snowmelt.testing import LocalService

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def service() -> Iterator[LocalService]:
    with LocalService() as running:
        running.create_table("demo.public.t", "id INT")
        with running.client() as client:
            channel = client.open_channel("c", table="demo.public.t")
            channel.insert_rows([{"id": 1}], offset_token="1")
            channel.wait_for_commit("1", timeout=dt.timedelta(seconds=200))
        yield running


def connection_options(service: LocalService) -> list[str]:
    key = str(service.embedded.private_key_file)
    return ["--url", service.url, "--user", "EMBEDDED", "--private-key", key]


def test_top_shows_the_overview_once(
    service: LocalService, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", "--once", *connection_options(service)]) == 0
    shown = capsys.readouterr().out
    assert "The catalog shows no problem" in shown
    assert "DEMO.PUBLIC.T" in shown
    assert "rows/s" in shown
    assert main(["top", "--once", "--format", "json", *connection_options(service)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["role"] == "ACCOUNTADMIN"
    assert found["tables"][0]["name"] == "DEMO.PUBLIC.T"
    assert found["activity"]["p50_s"] > 0


@pytest.mark.parametrize("command", ["loads", "migrations"])
def test_lists_are_empty_at_first_here_and_elsewhere(
    command: str, service: LocalService, capsys: pytest.CaptureFixture[str]
) -> None:
    here = ["--data-dir", str(service.embedded.settings.data_dir)]
    for options in (here, connection_options(service)):
        assert main([command, "list", "--format", "json", *options]) == 0
        assert capsys.readouterr().out.strip() in {"", "[]"}
