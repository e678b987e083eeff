"""`snowmelt copy`, and COPY in `snowmelt sql`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from unit.cli.conftest import Finished


SLEEPER = """
import time
from pathlib import Path

class Sleeper:
    def __init__(self):
        self.cancelled = False

    def setup(self, srv):
        pass

    def process(self, srv, inputbuffer, inputstate, outputbuffer):
        open("begun", "w").close()
        time.sleep(120)

    def destroy(self, srv):
        pass

    def cancel(self, srv):
        open("cancelled", "w").close()

class SleeperFactory:
    def prepare(self, srv, context):
        return Sleeper()
"""


@pytest.fixture
def table(snowmelt: Callable[..., Finished], tmp_path: Path) -> str:
    snowmelt("sql", "CREATE DATABASE demo; CREATE TABLE demo.public.t (id NUMBER(9,0), w VARCHAR)")
    (tmp_path / "a.csv").write_text("1|one\nx|two\n3|three\n")
    return "COPY demo.public.t FROM 'a.csv'"


@pytest.mark.slow
def test_a_file_that_was_rejected_as_a_whole_is_not_loaded_before(
    snowmelt: Callable[..., Finished], table: str
) -> None:
    rejected = snowmelt("copy", f"{table} DELIMITER ','")
    assert rejected.stdout.startswith("DEMO.PUBLIC.T: 0 rows of 1 file")
    assert snowmelt("copy", table).stdout.startswith("DEMO.PUBLIC.T: 2 rows of 1 file")


@pytest.mark.slow
def test_a_file_that_has_changed_is_loaded_again_with_a_warning(
    snowmelt: Callable[..., Finished], table: str, tmp_path: Path
) -> None:
    snowmelt("copy", table)
    with (tmp_path / "a.csv").open("a") as file:
        file.write("4|four\n")
    again = snowmelt("copy", table)
    assert again.stdout.startswith("DEMO.PUBLIC.T: 3 rows of 1 file")
    assert "a.csv has changed since an earlier load, whose rows stay in the table" in again.stderr
    forced = snowmelt("copy", f"{table} FORCE")
    assert "loaded again" not in forced.stderr


@pytest.mark.slow
def test_a_load_tells_what_it_did(snowmelt: Callable[..., Finished], table: str) -> None:
    told = snowmelt("copy", table)
    assert told.returncode == 0
    assert told.stdout.startswith("DEMO.PUBLIC.T: 2 rows of 1 file, 20 bytes (load ")
    assert "1 record rejected, not kept" in told.stderr
    assert "1 × column 1 (ID NUMBER(9,0))" in told.stderr
    again = snowmelt("copy", table)
    assert again.stdout == (
        "DEMO.PUBLIC.T: nothing to load, 1 file loaded before; FORCE loads it again\n"
    )


@pytest.mark.slow
def test_a_file_that_changed_is_named_when_it_is_loaded_again(
    snowmelt: Callable[..., Finished], table: str, tmp_path: Path
) -> None:
    assert "loaded again" not in snowmelt("copy", table).stderr
    with (tmp_path / "a.csv").open("a") as file:
        file.write("4|four\n")
    again = snowmelt("copy", table)
    assert again.stdout.startswith("DEMO.PUBLIC.T: 3 rows of 1 file, 27 bytes (load ")
    assert f"loaded again: {tmp_path / 'a.csv'} has changed since an earlier load" in again.stderr


@pytest.mark.slow
def test_a_load_tells_other_programs(snowmelt: Callable[..., Finished], table: str) -> None:
    told = snowmelt("copy", table + " REJECTED DATA AS TABLE demo.public.r", "--format", "json")
    [row] = json.loads(told.stdout)
    assert (row["rows_loaded"], row["rows_rejected"]) == (2, 1)
    assert row["rejected_to"] == "DEMO.PUBLIC.R"


@pytest.mark.slow
def test_a_script_loads_too(snowmelt_process: Callable[..., Finished], table: str) -> None:
    script = f"{table}; COPY t FROM STDIN"
    told = snowmelt_process("sql", script, "--database", "demo", given="7|seven\n")
    assert told.returncode == 0, told.stderr
    assert [line.split(" (")[0] for line in told.stdout.splitlines()] == [
        "DEMO.PUBLIC.T: 2 rows of 1 file, 20 bytes",
        "DEMO.PUBLIC.T: 1 row of 1 file, 8 bytes",
    ]


@pytest.mark.slow
def test_what_fails_is_one_sentence(
    snowmelt: Callable[..., Finished], table: str, tmp_path: Path
) -> None:
    told = snowmelt("copy", table + " ABORT ON ERROR")
    assert told.returncode == 1
    assert "a.csv, record 2: column 1" in told.stderr
    told = snowmelt("copy", "COPY demo.public.t FROM")
    assert "(line 1, column" in told.stderr
    told = snowmelt("copy")
    assert "Give one COPY statement" in told.stderr
    (tmp_path / "load.sql").write_text(table + ";\n")
    assert snowmelt("copy", "-f", "load.sql").returncode == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_a_warning_is_one_sentence(
    snowmelt: Callable[..., Finished], table: str, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(SLEEPER.replace("time.sleep(120)", "inputbuffer.read()"))
    snowmelt("sql", "CREATE LIBRARY own AS 'own.py'")
    snowmelt("sql", "CREATE FILTER f AS NAME 'SleeperFactory' LIBRARY own")
    told = snowmelt("copy", table + " FILTER f(x=1)")
    assert told.stderr.startswith(
        "snowmelt: warning: filter F declares no parameter x; it is ignored\n"
        "snowmelt: COPY DEMO.PUBLIC.T: "
    )


@pytest.mark.slow
def test_an_interrupted_load_answers_at_once_and_loads_nothing(
    snowmelt: Callable[..., Finished], table: str, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(SLEEPER)
    snowmelt("sql", "CREATE LIBRARY own AS 'own.py'")
    snowmelt("sql", "CREATE FILTER sleeper AS NAME 'SleeperFactory' LIBRARY own")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SNOWMELT_")}
    child = subprocess.Popen(
        [sys.executable, "-m", "snowmelt", "copy", table + " WITH FILTER sleeper()"],
        cwd=tmp_path,
        env=environment,
        stderr=subprocess.PIPE,
    )
    assert child.stderr is not None
    until = time.monotonic() + 200
    while not (tmp_path / "begun").exists():
        assert child.poll() is None, child.stderr.read().decode()
        assert time.monotonic() < until
        time.sleep(0.02)
    began = time.monotonic()
    child.send_signal(signal.SIGINT)
    # The signal itself where it came while text was executed: see test_main.
    assert child.wait(200) in (130, -signal.SIGINT)
    child.stderr.close()
    assert time.monotonic() - began < 30
    assert (tmp_path / "cancelled").exists()
    assert "2 rows of 1 file" in snowmelt("copy", table).stdout


@pytest.mark.slow
def test_a_filter_that_ends_its_process_is_no_success(
    snowmelt_process: Callable[..., Finished],
    snowmelt: Callable[..., Finished],
    table: str,
    tmp_path: Path,
) -> None:
    (tmp_path / "own.py").write_text(
        "import os\ndef ends(reader):\n    os._exit(0)\n    yield b''\n"
        "def says(reader):\n    print('between')\n    yield from reader\n"
    )
    snowmelt("sql", "CREATE LIBRARY own AS 'own.py'")
    snowmelt("sql", "CREATE FILTER ends AS NAME 'ends' LIBRARY own")
    snowmelt("sql", "CREATE FILTER says AS NAME 'says' LIBRARY own")
    told = snowmelt_process("copy", f"{table} FILTER ends()")
    assert told.returncode == 1
    assert "a.csv, filter ends(): its process exited with status 0" in told.stderr
    told = snowmelt_process("copy", f"{table} FILTER says()", "--format", "json")
    assert json.loads(told.stdout)[0]["rows_loaded"] == 2
    assert "between" in told.stderr


@pytest.mark.slow
def test_a_check_of_a_filter_that_ends_its_process_is_no_success(
    snowmelt_process: Callable[..., Finished], tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text("import os\ndef ends(data):\n    os._exit(0)\n")
    told = snowmelt_process("load", "check", "own.py")
    assert told.returncode == 1
    assert "own.py, its filter: its process exited with status 0" in told.stderr


@pytest.mark.slow
@pytest.mark.spark
def test_a_java_that_is_killed_is_one_sentence(
    snowmelt: Callable[..., Finished], table: str, tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(SLEEPER)
    snowmelt("sql", "CREATE LIBRARY own AS 'own.py'")
    snowmelt("sql", "CREATE FILTER sleeper AS NAME 'SleeperFactory' LIBRARY own")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SNOWMELT_")}
    child = subprocess.Popen(
        [sys.executable, "-m", "snowmelt", "copy", "--spark", table + " FILTER sleeper()"],
        cwd=tmp_path,
        env=environment,
        stderr=subprocess.PIPE,
    )
    assert child.stderr is not None
    until = time.monotonic() + 300
    while not (tmp_path / "begun").exists():
        assert child.poll() is None, child.stderr.read().decode()
        assert time.monotonic() < until
        time.sleep(0.1)
    [java] = [
        int(status.parent.name)
        for status in Path("/proc").glob("[0-9]*/status")
        if (text := _text(status)).startswith("Name:\tjava\n") and f"PPid:\t{child.pid}\n" in text
    ]
    os.kill(java, signal.SIGKILL)
    _, said = child.communicate(timeout=120)
    assert child.returncode == 1
    [sentence] = said.decode().splitlines()
    assert sentence.startswith("snowmelt: The Java process of Spark was killed by signal 9 while")


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


@pytest.mark.slow
def test_create_makes_the_table_of_the_first_file_once(
    snowmelt: Callable[..., Finished], tmp_path: Path
) -> None:
    snowmelt("sql", "CREATE DATABASE demo")
    (tmp_path / "a.csv").write_text("id,born\n1,1815-12-10\n")
    text = "COPY demo.public.made FROM '*.csv' DELIMITER ',' SKIP 1"
    done = snowmelt("copy", "--create", text)
    assert "CREATE TABLE DEMO.PUBLIC.MADE (ID NUMBER(38,0), BORN DATE)" in done.stderr
    assert done.stdout.startswith("DEMO.PUBLIC.MADE: 1 row of 1 file")
    (tmp_path / "b.csv").write_text("id,born\n2,1906-12-09\n")
    again = snowmelt("copy", "--create", text)
    assert "CREATE TABLE" not in again.stderr
    assert again.stdout.startswith("DEMO.PUBLIC.MADE: 1 row of 1 file")
