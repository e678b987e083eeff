from __future__ import annotations

import datetime as dt
import socket
import stat
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from snowmelt.config import Settings
from snowmelt.embedded import EmbeddedService, embedded
from snowmelt.errors import ConfigurationError, DataFolderBusy
from snowmelt.server.lifecycle import RunningService, lock_folder
from snowmelt.wire.sites import PULL_PATH, STATE_PATH

if TYPE_CHECKING:
    from pathlib import Path


def settings(folder: Path, **changes: Any) -> Settings:
    given: dict[str, Any] = {
        "data_dir": folder,
        "port": 0,
        "s3_port": 0,
        "migrate": False,
    } | changes
    return Settings.from_environment({}, **given)


def test_a_folder_is_served_once(tmp_path: Path) -> None:
    with lock_folder(tmp_path), pytest.raises(DataFolderBusy, match="another service"):
        RunningService(settings(tmp_path))
    with lock_folder(tmp_path):
        pass


@pytest.mark.parametrize("changes", [{"dev": True}, {"verify": "off"}])
def test_what_trusts_everybody_is_refused_beyond_loopback(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    with pytest.raises(ConfigurationError, match="loopback only"):
        RunningService(settings(tmp_path, host="0.0.0.0", **changes))


@pytest.mark.parametrize("changes", [{"host": "0.0.0.0"}, {"stage_url": "memory:///"}])
def test_a_stage_that_clients_cannot_reach_by_themselves_needs_the_s3_endpoint(
    tmp_path: Path, changes: dict[str, object]
) -> None:
    with pytest.raises(ConfigurationError, match=r"s3_port: .* Set s3_port"):
        RunningService(settings(tmp_path, **changes))


def test_nothing_is_deleted_while_a_query_may_still_read_it(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"retention_s: .* for 3,000 s; it must be longer"):
        RunningService(settings(tmp_path, retention_s=3000))
    with lock_folder(tmp_path):
        pass


@pytest.mark.slow
def test_a_taken_port_is_one_sentence_and_leaves_nothing_behind(tmp_path: Path) -> None:
    with EmbeddedService(tmp_path / "a") as first:
        port = int(first.url.rpartition(":")[2])
        with pytest.raises(ConfigurationError, match="cannot be opened"):
            RunningService(settings(tmp_path / "b", port=port))
    with lock_folder(tmp_path / "b"):
        pass


@pytest.mark.slow
def test_in_development_no_token_is_needed(tmp_path: Path) -> None:
    with EmbeddedService(tmp_path, dev=True) as service:
        answer = httpx.post(f"{service.url}/v1/streaming/client/configure/", json={}, timeout=60)
        assert answer.json()["status_code"] == 0
        assert answer.json()["prefix"]
        for path in ("api/v2/statements", PULL_PATH[1:], "v1/data/pipes/d.s.p/s3Events"):
            deep = b'{"x":' + b"[" * 100_000
            headers = {"content-type": "application/json"}
            answer = httpx.post(f"{service.url}/{path}", headers=headers, content=deep, timeout=60)
            assert answer.status_code == 400, (path, answer.text)
        answer = httpx.post(
            f"{service.url}/api/v2/statements",
            json={"statement": " " * (1 << 20) + "SHOW TABLES"},
            timeout=60,
        )
        assert answer.status_code == 400
        assert "at most 1,048,576" in answer.text
        # Browsers send simple requests without a preflight, and name the page.
        simple = {"origin": "https://evil.example", "content-type": "text/plain"}
        for path in (
            "v2/streaming/data/databases/d/schemas/s/pipes/p/channels/c/rows",
            "v1/data/pipes/d.s.p/s3Events",
            "iceberg/v1/D/namespaces/S/tables/T",
        ):
            answer = httpx.post(f"{service.url}/{path}", headers=simple, content="{}", timeout=60)
            assert answer.status_code == 401, answer.text
    with EmbeddedService(tmp_path) as service:
        answer = httpx.post(f"{service.url}/v1/streaming/client/configure/", json={}, timeout=60)
        assert answer.status_code == 401


@pytest.mark.slow
def test_a_client_without_a_token_sends_no_body(tmp_path: Path) -> None:
    paths = {
        "/v2/streaming/data/databases/d/schemas/s/pipes/p/channels/c/rows": 401,
        "/v1/data/pipes/d.s.p/insertFiles": 401,
        "/api/v2/statements": 401,
        "/telemetry/send/sessionless": 413,
        STATE_PATH: 413,
    }
    with EmbeddedService(tmp_path) as service:
        port = int(service.url.rpartition(":")[2])
        for path, status in paths.items():
            with socket.create_connection(("127.0.0.1", port), timeout=120) as raw:
                head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 16000000\r\n"
                raw.sendall(f"{head}content-type: application/json\r\n\r\n".encode())
                assert raw.recv(4096).startswith(f"HTTP/1.1 {status}".encode()), path


@pytest.mark.slow
def test_keys_are_for_the_owner_only(tmp_path: Path) -> None:
    with EmbeddedService(tmp_path):
        assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700
        for file in (tmp_path / "keys").iterdir():
            assert stat.S_IMODE(file.stat().st_mode) == 0o600, file


@pytest.mark.slow
def test_an_embedded_client_streams_and_its_token_outlives_it(tmp_path: Path) -> None:
    for last in ("1", "2"):
        with embedded(tmp_path) as client:
            client.service.sql("CREATE DATABASE IF NOT EXISTS demo")
            client.service.sql("CREATE SCHEMA IF NOT EXISTS demo.public")
            client.service.sql("CREATE TABLE IF NOT EXISTS demo.public.t (id NUMBER)")
            channel = client.open_channel("c", table="demo.public.t")
            assert channel.latest_committed_offset_token() == (None if last == "1" else "1")
            channel.insert_rows([{"id": 1}], last)
            channel.wait_for_commit(last, timeout=dt.timedelta(seconds=200))
    assert (tmp_path / "catalog.db").exists()


@pytest.mark.parametrize("place", ["stage", "warehouse"])
def test_keys_among_files_that_others_read_are_refused(tmp_path: Path, place: str) -> None:
    changes = {f"{place}_url": str(tmp_path / "shared"), "keys_dir": tmp_path / "shared" / "keys"}
    with pytest.raises(ConfigurationError, match=f"keys_dir: .* is in the {place}"):
        RunningService(settings(tmp_path, **changes))
    assert not (tmp_path / "shared").exists()
