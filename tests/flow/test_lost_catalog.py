"""A catalog that is deleted while a service runs, and ports that are in use before it starts."""

from __future__ import annotations

import datetime as dt
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from fixtures.service import ServiceProcess
from snowmelt.errors import CommitTimeout

pytestmark = pytest.mark.slow


@pytest.fixture
def service(loading_service: ServiceProcess) -> ServiceProcess:
    return loading_service


@pytest.mark.parametrize("happened", ["deleted", "replaced"])
def test_a_service_whose_catalog_is_gone_says_so_and_commits_nothing(
    happened: str, service: ServiceProcess, connect: Any
) -> None:
    channel = connect().open_channel("c", table="demo.public.t")
    channel.insert_row({"id": 1}, "1")
    channel.wait_for_commit("1")
    catalog = service.data_dir / "catalog.db"
    kept = catalog.rename(service.data_dir / "kept.db")
    if happened == "replaced":
        catalog.write_bytes(kept.read_bytes())
    answer = httpx.get(f"{service.url}/healthz", trust_env=False, timeout=60)
    assert answer.status_code == 503
    assert f"catalog.db was {happened} while in use" in answer.json()["catalog"]
    channel.insert_row({"id": 2}, "2")
    with pytest.raises(CommitTimeout):
        channel.wait_for_commit("2", timeout=dt.timedelta(seconds=3))
    # The restored file is the same file, so the service continues with it.
    kept.rename(catalog)
    assert httpx.get(f"{service.url}/healthz", trust_env=False, timeout=60).status_code == 200


@pytest.mark.parametrize("setting", ["port", "s3_port"])
def test_a_service_whose_port_is_taken_leaves_no_folder_behind(
    setting: str, tmp_path: Path
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = str(taken.getsockname()[1])
        ports = {"port": "0", "s3_port": "0"} | {setting: number}
        options = [f"--{name.replace('_', '-')}={value}" for name, value in ports.items()]
        ended = subprocess.run(
            [sys.executable, "-m", "snowmelt", "--data-dir", "data", "serve", *options],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
    assert ended.returncode == 1
    assert f"127.0.0.1:{number} cannot be opened" in ended.stderr
    assert not (tmp_path / "data").exists()
