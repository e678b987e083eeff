"""`snowmelt check`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from snowmelt.embedded import EmbeddedService

if TYPE_CHECKING:
    from unit.cli.conftest import Finished


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[EmbeddedService]:
    """A table of three rows in two chunks."""
    with EmbeddedService(tmp_path / "snowmelt-data") as embedded, embedded.client() as client:
        embedded.sql("CREATE DATABASE demo")
        embedded.sql("CREATE TABLE demo.public.t (a INT)")
        with client.open_channel("c", table="demo.public.t") as channel:
            channel.insert_rows([{"a": 1}, {"a": 2}], offset_token="2")
        with client.open_channel("c", table="demo.public.t") as channel:
            channel.insert_row({"a": 3}, offset_token="3")
        yield embedded


@pytest.mark.slow
def test_a_healthy_table_is_reported_as_such(
    snowmelt: Callable[..., Finished], embedded: EmbeddedService
) -> None:
    done = snowmelt("check", "--deep")
    assert done.stdout == (
        "DEMO.PUBLIC.T: 3 rows, 2 chunks, 1 channel, 0 native files, 0 files and 2 chunks read; 0 findings\n"
        "Nothing is wrong.\n"
    )
    assert done.returncode == 0


@pytest.mark.slow
def test_a_damaged_blob_is_a_finding_with_a_remedy(
    snowmelt: Callable[..., Finished], embedded: EmbeddedService, tmp_path: Path
) -> None:
    blob = min((tmp_path / "snowmelt-data" / "stage").rglob("*.bdec"))
    whole = blob.read_bytes()
    blob.write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    assert snowmelt("check").returncode == 0
    done = snowmelt("check", "demo.public.t", "--deep", "--format", "json")
    assert done.returncode == 1
    finding, summary = map(json.loads, done.stdout.splitlines())
    assert (finding["finding"], finding["table"], finding["seq"]) == (
        "chunk-corrupt",
        "DEMO.PUBLIC.T",
        1,
    )
    assert "Restore the blob" in finding["remedy"]
    assert summary["summary"]["findings"] == 1
    text = snowmelt("check", "--deep").stdout
    assert text.startswith("error: chunk-corrupt: Chunk 1: Corrupt blob ")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--deep", "--sample", "0%"), "Invalid value '0%'. Expected for example --sample 5%."),
        (("--deep", "--sample", "half"), "Invalid value 'half'. Expected for example --sample 5%."),
        (
            ("--deep", "--since", "99999999999d"),
            "Invalid age '99999999999d'. Give a number with s, m, h or d, up to 36500d, for example 30d.",
        ),
        (("--since", "1d"), "--sample and --since require --deep. Add --deep, or omit them."),
    ],
)
def test_wrong_use_has_a_status_of_its_own(
    snowmelt: Callable[..., Finished], options: tuple[str, ...], sentence: str
) -> None:
    done = snowmelt("check", *options)
    assert (done.returncode, done.stderr) == (3, f"snowmelt: {sentence}\n")
