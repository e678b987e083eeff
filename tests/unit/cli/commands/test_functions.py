"""`snowmelt functions`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from snowmelt.cli.main import main
from snowmelt.functions.proxy.faults import FAULT_KINDS

if TYPE_CHECKING:
    from unit.cli.conftest import Finished


GEO = """
from snowmelt.functions.service import RemoteService

svc = RemoteService("geo")

@svc.function
def middle(a: float, b: float) -> float:
    return (a + b) / 2
"""
HANDLER = """
import json

def handler(event, context):
    rows = json.loads(event["body"])["data"]
    return {"headers": {"x": b"bytes"}, "body": json.dumps({"data": [[n, v * 2] for n, v in rows]})}
"""


@contextlib.contextmanager
def running(tmp_path: Path, *arguments: Any) -> Iterator[Any]:
    """Run an action in a process of its own; yields its URL."""
    process = subprocess.Popen(
        [sys.executable, "-m", "snowmelt", "functions", *arguments, "--port", "0"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={name: value for name, value in os.environ.items() if "SNOWMELT" not in name},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        line = process.stdout.readline()
        assert " on http://127.0.0.1:" in line, line + process.stderr.read()
        yield line.split(" on ")[1].strip()
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=200)
        assert process.returncode == 0, errors


def rows(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.slow
def test_a_service_is_hosted_called_recorded_disturbed_and_replayed(
    snowmelt: Callable[..., Finished], tmp_path: Path
) -> None:
    (tmp_path / "geo.py").write_text(GEO)
    (tmp_path / "points.csv").write_text("a,b\n1,2\n3,\n5.5,6\n")
    call = ("--csv", "points.csv", "--arguments", "(a FLOAT, b FLOAT)", "--returns", "FLOAT")
    shown = ["a,b,middle", "1,2,1.5", "3,,", "5.5,6,5.75"]
    with contextlib.ExitStack() as stack:
        service = stack.enter_context(running(tmp_path, "serve", "geo.py"))
        rough = stack.enter_context(
            running(tmp_path, "faults", service, "--fault", "503:each=1", "--fault", "md5:after=99")
        )
        kept = stack.enter_context(running(tmp_path, "record", rough, "--out", "calls.jsonl"))
        called = (
            "functions",
            "call",
            f"{kept}/middle",
            *call,
            "--format",
            "csv",
            "--batch-rows",
            "2",
        )
        assert rows(snowmelt(*called)) == shown
    with running(tmp_path, "replay", "calls.jsonl") as replayed:
        called = (
            "functions",
            "call",
            f"{replayed}/middle",
            *call,
            "--format",
            "csv",
            "--batch-rows",
            "2",
        )
        assert rows(snowmelt(*called)) == shown


@pytest.mark.slow
def test_a_lambda_handler_is_hosted_as_it_is(
    snowmelt: Callable[..., Finished], tmp_path: Path
) -> None:
    (tmp_path / "handler.py").write_text(HANDLER)
    with running(tmp_path, "serve", "--lambda", "handler.py:handler") as url:
        called = snowmelt(
            "functions", "call", f"{url}/double", "--csv", "-", "--arguments", "(n NUMBER)",
            "--format", "json", "--gzip", given="n\n7\n",
        )  # fmt: skip
    assert called.returncode == 0, called.stderr
    assert json.loads(called.stdout) == [{"n": "7", "double": "14"}]


def test_the_help_lists_every_fault(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["functions", "faults", "--help"])
    words = capsys.readouterr().out.replace(",", " ").split()
    assert set(FAULT_KINDS) <= set(words)


def test_statements_are_printed(snowmelt: Callable[..., Finished], tmp_path: Path) -> None:
    (tmp_path / "geo.py").write_text(GEO)
    done = snowmelt(
        "functions", "sql", "geo.py", "--url", "https://x.example", "--integration", "g"
    )
    assert rows(done) == [
        "CREATE OR REPLACE EXTERNAL FUNCTION middle(A FLOAT, B FLOAT)",
        "RETURNS FLOAT",
        "RETURNS NULL ON NULL INPUT",
        "API_INTEGRATION = g",
        "AS 'https://x.example/middle';",
    ]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("serve", "none.py"), "File none.py not found."),
        (("serve", "empty.py"), "empty.py defines no RemoteService."),
        (("serve", "--lambda", "empty.py:handler"), "empty.py has no function handler."),
        (
            ("serve", "--lambda", "empty.py"),
            "Invalid handler empty.py. Expected FILE.py:FUNCTION, for example handler.py:handler.",
        ),
        (("faults", "nowhere"), "nowhere is no address of a service; http://host:port/path is."),
        (("faults", "http://x", "--fault", "oops"), "There is no fault oops"),
        (("replay", "empty.csv"), "No such file"),
        (
            ("call", "http://127.0.0.1:9/f", "--csv", "bad.csv", "--arguments", "(n"),
            "--arguments must",
        ),
        (
            ("call", "http://127.0.0.1:9/f", "--csv", "bad.csv", "--arguments", "(n FLOAT)"),
            "Column n: a number was expected, not any text.",
        ),
        (("call", "http://127.0.0.1:9/f", "--csv", "bad.csv", "--patience", "0"), "f, batch "),
    ],
)
def test_what_goes_wrong_is_a_sentence(
    snowmelt: Callable[..., Finished], tmp_path: Path, arguments: tuple[str, ...], sentence: str
) -> None:
    (tmp_path / "empty.py").write_text("")
    (tmp_path / "bad.csv").write_text("n\nmany\n")
    done = snowmelt("functions", *arguments)
    assert done.returncode == 1
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
