"""Failures of user code fail only its load, with an error that names filter, file and cause."""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from textwrap import dedent

import pytest

from fixtures.copy import Copying
from snowmelt.errors import LoadFailed, UserCodeFailed
from snowmelt.load.task import LoadTask
from snowmelt.load.udx import worker_process
from snowmelt.load.udx.shared_progress_page import UserCodeLimits
from snowmelt.loaders.load_task_execution import LoadTaskPlan, LocalTaskRunner, PortionResult

CODE = """
import logging, os, re, signal, sys, warnings

def passed(reader):
    yield from reader

def ends(reader):
    os._exit(0)
    yield b""

def chooses(reader):
    for piece in reader:
        if b"!" in piece:
            os._exit(0)
        yield piece

def stops(reader):
    for piece in reader:
        yield piece
        os.kill(os.getpid(), signal.SIGKILL)

def interrupts(reader):
    yield next(iter(reader))
    raise KeyboardInterrupt("no")

def exits(reader):
    yield from reader
    sys.exit(0)

def generates(reader):
    yield from reader
    raise GeneratorExit

def floods(reader):
    while True:
        yield bytes(1 << 20)

def eats(reader):
    held = []
    while True:
        held.append(b"x" * (1 << 24))
    yield b""

def hangs(reader):
    # One call into C that keeps the interpreter's lock.
    re.match(r"(a+)+$", "a" * 40 + "b")
    yield b""

def says(reader):
    print("said to nobody")
    sys.stdout.flush()
    os.write(1, b"written to descriptor 1")
    logging.getLogger("mine").error("told %s", "by filter")
    warnings.warn("careful")
    yield from reader

class Planned:
    def plan(self, srv, context):
        os._exit(0)

    def prepare(self, srv, context):
        pass
"""
STATEMENTS = [
    "CREATE LIBRARY wild AS '{}' LANGUAGE 'Python'",
    *(
        f"CREATE FILTER {name} AS NAME '{name}' LIBRARY wild"
        for name in re.findall(r"^(?:def|class) (\w+)", CODE, re.MULTILINE)
    ),
]


@pytest.fixture
def wild(copying: Copying) -> Iterator[Copying]:
    path = copying.folder / "wild.py"
    path.write_text(CODE)
    for each in STATEMENTS:
        copying.sql(each.format(path))
    limits = UserCodeLimits(memory_bytes=1 << 30, output_bytes=1 << 22, call_s=2)
    copying.context = replace(copying.context, user_code_limits=limits)
    yield copying
    worker_process.close_idle_process()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("ends", "its process exited with status 0 before it returned"),
        ("stops", "its process was killed by signal 9 (SIGKILL)"),
        ("interrupts", "it raised KeyboardInterrupt: no (WILD/wild.py, line"),
        ("exits", "it raised SystemExit: 0 (WILD/wild.py, line"),
        ("generates", "it raised GeneratorExit:"),
        ("floods", "more than the limit of 4,194,304 (`user_code_output_bytes`)"),
        ("eats", "it raised MemoryError"),
        ("hangs", "it has not returned for 2 s (`user_code_call_s`)"),
    ],
)
def test_a_filter_that_harms_its_process_fails_the_load_and_is_named(
    name: str, told: str, wild: Copying
) -> None:
    path = wild.file("a.csv", "1|one\n2|two\n")
    with pytest.raises(LoadFailed) as info:
        wild.copy(f"COPY numbers FROM {path} FILTER passed() FILTER {name}()")
    text = str(info.value)
    assert f"{path[1:-1]}, filter {name}()" in text
    assert told in text
    assert wild.house.read_numbers() == []
    assert wild.states() == ["failed"]


def test_code_that_ends_while_a_load_is_planned_refuses_it(wild: Copying) -> None:
    path = wild.file("a.csv", "1|one\n")
    with pytest.raises(
        UserCodeFailed, match=r"filter planned\(\): its process exited with status 0"
    ):
        wild.copy(f"COPY numbers FROM {path} FILTER planned()")
    wild.sql(f"CREATE OR REPLACE LIBRARY wild AS '{wild.folder / 'wild.py'}' LANGUAGE 'Python'")


def test_a_file_that_cannot_be_filtered_is_left_out_with_error_tolerance(wild: Copying) -> None:
    bad, good = wild.file("a.csv", "1|one\n2|!\n"), wild.file("b.csv", "3|three\n")
    copied = wild.copy(f"COPY numbers FROM {bad}, {good} FILTER chooses() ERROR TOLERANCE")
    assert [path for path, _ in copied.failed_files] == [bad[1:-1]]
    assert "status 0" in copied.failed_files[0][1]
    assert wild.house.read_numbers() == [3]


def test_what_code_of_users_prints_stays_out_of_the_answer(
    wild: Copying, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    path = wild.file("a.csv", "1|one\n")
    with caplog.at_level(logging.INFO), pytest.warns(UserWarning, match="careful"):
        wild.copy(f"COPY numbers FROM {path} FILTER says()")
    said = capfd.readouterr()
    assert said.out == ""
    assert "said to nobody" in said.err
    assert "written to descriptor 1" in said.err
    assert "told by filter" in caplog.text


def test_a_cancelled_load_ends_its_process(wild: Copying) -> None:
    path = wild.file("a.csv", "1|one\n")

    class Interrupted(LocalTaskRunner):
        def __call__(
            self, plan: LoadTaskPlan, tasks: Sequence[LoadTask]
        ) -> Iterator[PortionResult]:
            def begun(cancel: Callable[[], None]) -> None:
                cancel()

            from snowmelt.loaders.load_task_execution import run_load_task

            for task in tasks:
                yield run_load_task(plan, task, on_begin=begun)

    with pytest.raises(Exception, match="cancelled"):
        wild.copy(f"COPY numbers FROM {path} FILTER passed()", run=Interrupted())
    assert wild.house.read_numbers() == []


def test_a_parser_and_a_source_run_in_the_same_process(wild: Copying) -> None:
    (wild.folder / "more.py").write_text(
        dedent("""
        import os, vertica_sdk
        from vertica_sdk import StreamState

        class Words(vertica_sdk.UDParser):
            def process(self, srv, inputbuffer, inputstate, streamwriter):
                os._exit(3)

        class WordsFactory(vertica_sdk.ParserFactory):
            def prepare(self, srv, columns, context, types):
                return Words()

        def numbers():
            yield b"1|one\\n"
            os._exit(4)
        """)
    )
    wild.sql(f"CREATE LIBRARY more AS '{wild.folder / 'more.py'}'")
    wild.sql("CREATE PARSER words AS NAME 'WordsFactory' LIBRARY more")
    wild.sql("CREATE SOURCE numbers AS NAME 'numbers' LIBRARY more")
    path = wild.file("a.csv", "1|one\n")
    with pytest.raises(LoadFailed, match=r"parser words\(\): its process exited with status 3"):
        wild.copy(f"COPY numbers FROM {path} PARSER words()")
    with pytest.raises(LoadFailed, match=r"source numbers\(\): its process exited with status 4"):
        wild.copy("COPY numbers SOURCE numbers()")


def test_a_library_that_ends_its_process_is_refused_by_name(wild: Copying) -> None:
    (wild.folder / "last.py").write_text("import os\nos._exit(0)\nf = None\n")
    wild.sql(f"CREATE LIBRARY last AS '{wild.folder / 'last.py'}'")
    wild.sql("CREATE FILTER f AS NAME 'f' LIBRARY last")
    path = wild.file("a.csv", "1|one\n")
    with pytest.raises(UserCodeFailed, match=r"filter f\(\): its process exited with status 0"):
        wild.copy(f"COPY numbers FROM {path} FILTER f()")


def test_rows_and_rejects_are_those_of_a_load_without_the_process(wild: Copying) -> None:
    seeded = random.Random(7)
    for number in range(6):
        lines = [
            f"{seeded.choice(['1', '22', 'x', '', '7.5'])}|{seeded.choice(['a', 'é', '', 'b|c'])}"
            for _ in range(seeded.randrange(1, 2000))
        ]
        path = wild.file(f"{number}.csv", "\n".join(lines))
        found = []
        for filters in ("", "FILTER passed() FILTER passed()"):
            wild.sql("TRUNCATE TABLE demo.public.numbers")
            copied = wild.copy(f"COPY numbers FROM {path} FORCE {filters}")
            rows = wild.house.read(columns=["N", "WORD"]).to_pylist()
            found.append((copied.totals.rejects, copied.totals.bytes, copied.reject_reasons, rows))
        assert found[0] == found[1]
