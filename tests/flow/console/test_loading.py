"""Pages of loads, pipes and calls: what came in, what could not be loaded, and what services answered."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fixtures.browser import access_key
from snowmelt.cli.main import main
from snowmelt.functions.caller.plan import CallRecord, QueryPosition
from snowmelt.spark.functions.call_log import CallLogFiles
from snowmelt.testing import LocalService

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def service() -> Iterator[LocalService]:
    with LocalService(file_batch_age_s=0.1) as running:
        running.create_table("loading.public.t", "n INT, word VARCHAR")
        yield running


@pytest.fixture(scope="module")
def browser(service: LocalService) -> Iterator[httpx.Client]:
    key, secret = access_key(service)
    with httpx.Client(base_url=service.url, follow_redirects=True, timeout=120) as client:
        fields = {"key": key, "secret": secret}
        client.post("/console/login", data=fields, headers={"origin": service.url})
        yield client


def copy(service: LocalService, folder: Path, **files: str) -> None:
    folder.mkdir()
    for name, text in files.items():
        (folder / f"{name}.csv").write_text(text)
    statement = f"COPY INTO loading.public.t FROM '{folder}/' ON_ERROR = SKIP_FILE"
    main(["copy", statement, "--data-dir", str(service.embedded.settings.data_dir), "--quiet"])


def test_a_load_without_a_loaded_file_has_failed(
    service: LocalService, browser: httpx.Client, tmp_path: Path
) -> None:
    copy(service, tmp_path / "bad", only="x,a\n")
    copy(service, tmp_path / "half", good="1,a\n", bad="x,b\n")
    copy(service, tmp_path / "good", all="2,c\n")
    found = browser.get("/console/api/v1/loads").json()["loads"]
    assert [each["state"] for each in found] == ["committed", "committed partly", "failed"]
    for state, count in (("failed", 1), ("committed", 2)):
        assert len(browser.get(f"/console/api/v1/loads?state={state}").json()["loads"]) == count
    failed = found[-1]
    page = browser.get(f"/console/loads/{failed['load_id']}").text
    assert "only.csv" in page
    problems = browser.get("/console/api/v1/overview").json()["findings"]
    [problem] = [each for each in problems if failed["load_id"] in each["sentence"]]
    assert problem["severity"] == "wrong", "its state is shown as bad"


def test_a_load_with_rejected_records_is_found_from_each_page(
    service: LocalService, browser: httpx.Client, tmp_path: Path
) -> None:
    service.create_table("loading.public.checked", "n INT, word VARCHAR")
    (tmp_path / "some.csv").write_text("n,word\n1,a\nx,b\ny,c\n")
    (tmp_path / "broken.parquet").write_bytes(b"no parquet")
    folder = str(service.embedded.settings.data_dir)
    for path, more in (
        ("some.csv", "PARSER CSV() REJECTED DATA AS TABLE loading.public.kept"),
        ("broken.parquet", "PARSER PARQUET()"),
    ):
        statement = f"COPY loading.public.checked FROM '{tmp_path}/{path}' {more}"
        main(["copy", statement, "--data-dir", folder, "--quiet"])
    found = browser.get("/console/api/v1/loads?state=rejects").json()["loads"]
    [load] = [each for each in found if each["table"] == "LOADING.PUBLIC.CHECKED"]
    assert (load["state"], load["rejects"]) == ("committed with rejects", 2)
    load_id = load["load_id"]
    path = f"/console/loads/{load_id}/rejects"
    assert f'href="{path}">2</a>' in browser.get("/console/loads?state=rejects").text
    rejected = browser.get("/console/tables/LOADING/PUBLIC/CHECKED/rejected").text
    assert "Rows that channels of this table reject are not stored" in rejected
    assert f'href="{path}">2</a>' in rejected
    problems = browser.get("/console/api/v1/overview").json()["findings"]
    [problem] = [each for each in problems if load_id in each["sentence"]]
    assert "rejected 2 records" in problem["sentence"]
    assert (problem["severity"], problem["path"]) == ("note", path)
    assert "of 1 file<" in browser.get(f"/console/loads/{load_id}").text
    # A load that failed before it counted records shows no 0.
    [failed] = [
        each
        for each in browser.get("/console/api/v1/loads?state=failed").json()["loads"]
        if each["table"] == "LOADING.PUBLIC.CHECKED"
    ]
    page = browser.get(f"/console/loads/{failed['load_id']}").text
    assert "<dt>Rejected records</dt><dd>–</dd>" in page


def test_a_pipe_shows_what_it_loaded_and_what_it_could_not(
    service: LocalService, browser: httpx.Client, tmp_path: Path
) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "good.csv").write_text("5,five\n")
    (folder / "bad.csv").write_text("no number,six\n")
    service.sql(
        "CREATE PIPE loading.public.arriving AUTO_INGEST = TRUE AS COPY INTO loading.public.t"
        f" FROM '{folder}/' ON_ERROR = SKIP_FILE"
    )
    pipe: dict[str, Any] = {}
    until = time.monotonic() + 120
    while not (pipe.get("failed_files") and pipe.get("last_load_at")):
        assert time.monotonic() < until, pipe
        [pipe] = browser.get("/console/api/v1/pipes").json()["pipes"]
        time.sleep(0.1)
    assert (pipe["name"], pipe["state"]) == ("LOADING.PUBLIC.ARRIVING", "running")
    assert "LOADING.PUBLIC.ARRIVING" in browser.get("/console/pipes").text
    page = browser.get("/console/pipes/LOADING/PUBLIC/ARRIVING").text
    assert "bad.csv" in page
    assert "ALTER PIPE LOADING.PUBLIC.ARRIVING REFRESH" in page
    problems = browser.get("/console/api/v1/overview").json()["findings"]
    assert any("could not load 1 file." in each["sentence"] for each in problems)


def test_calls_are_counted_with_their_retries_and_errors(
    service: LocalService, browser: httpx.Client
) -> None:
    assert "No function of this role was called" in browser.get("/console/functions").text
    files = CallLogFiles(service.embedded.settings.warehouse_url, "LOADING.PUBLIC.LOOKUP(NUMBER)")
    log = files.open_task_log(QueryPosition("query-1", 0, 0))
    for number in range(4):
        log.add_record(
            CallRecord(
                files.function,
                "query-1",
                f"batch-{number}",
                rows=100,
                attempts=2 if number else 1,
                status=503 if number == 3 else 200,
                outcome="failed" if number == 3 else "ok",
                error="<b>service unavailable</b>" if number == 3 else None,
                started_at=f"2026-01-01T00:00:0{number}+00:00",
                ms_calling=20.0,
            )
        )
    log.close()
    page = browser.get("/console/functions?days=7").text
    assert "LOADING.PUBLIC.LOOKUP(NUMBER)" in page
    assert "20 ms · 20 ms" in page
    assert "batch-3" in page
    assert "batch-2" not in page, "it did not fail"
    assert "&lt;b&gt;service unavailable" in page
