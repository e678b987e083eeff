"""User code as steps of a load: errors say where, and a cancel is answered soon."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from textwrap import dedent

import pytest

from snowmelt.errors import LoadCancelled, LoadFailed
from snowmelt.load.phase_registry import LoadFunctions, UserLoadFunction
from snowmelt.load.portion import InputFile, Portion
from snowmelt.load.stack import LoadStack, run_portion
from snowmelt.load.task import LoadStep, LoadTask, StackPlan
from support.user_code import HEAD, target

CODE = (
    HEAD
    + """
import threading

class Upper(vertica_sdk.UDFilter):
    def setup(self, srvInterface):
        self.bad = srvInterface.getParamReader().getString("bad").encode()
        self.read = 0
    def process(self, srvInterface, inputbuffer, inputstate, outputbuffer):
        data = inputbuffer.read()
        if self.bad in data:
            raise ValueError("bad byte")
        outputbuffer.write(data.upper())
        return StreamState.DONE if inputstate == InputState.END_OF_FILE else StreamState.INPUT_NEEDED

class UpperFactory(vertica_sdk.FilterFactory):
    def getParameterType(self, srvInterface, parameterTypes):
        parameterTypes.addVarchar(10, "bad")
    def prepare(self, srvInterface, planContext):
        return Upper()

class Blocks(vertica_sdk.UDFilter):
    cancelled = threading.Event()
    begun = threading.Event()
    def process(self, srvInterface, inputbuffer, inputstate, outputbuffer):
        print("blocked", flush=True)
        self.begun.set()
        threading.Event().wait()
    def cancel(self, srvInterface):
        print("cancelled", flush=True)
        self.cancelled.set()

class Pairs:
    def process(self, srv, inp, state, writer):
        for line in inp.read().splitlines():
            left, _, right = line.partition(b"=")
            writer.setInt(0, int(left)); writer.setString(1, right.decode()); writer.next()
        return StreamState.DONE if state == InputState.END_OF_FILE else StreamState.INPUT_NEEDED
"""
)
# As the parsers of the SDK's examples that a file may be cut for.
CODE += """
class Lines:
    def setup(self, srv, types):
        self.skip, self.last = False, False
    def process(self, srv, inp, state, writer):
        self.skip = self.skip or (state == InputState.START_OF_PORTION and inp.getOffset() == 0)
        while True:
            window = inp.peek()
            end = window.find(b"\\n") + 1
            if not end and state == InputState.END_OF_FILE:
                return StreamState.DONE
            if not end and self.skip and state == InputState.END_OF_PORTION:
                return StreamState.DONE
            if not end:
                self.last = state == InputState.END_OF_PORTION
                if self.skip:
                    inp.advance()
                return StreamState.INPUT_NEEDED
            line = inp.read(end)
            if self.skip:
                self.skip = False
                continue
            writer.setInt(0, int(line))
            writer.next()
            if self.last:
                return StreamState.DONE

class LinesFactory(vertica_sdk.ParserFactory):
    def prepare(self, srvInterface, perColumnParamReader, planContext, returnType):
        return Lines()
    def canApportionParser(self):
        return True
"""
FUNCTIONS = LoadFunctions(
    (
        UserLoadFunction("filter", "up", "UpperFactory", "lib"),
        UserLoadFunction("filter", "blocks", "Blocks", "lib"),
        UserLoadFunction("parser", "pairs", "Pairs", "lib"),
        UserLoadFunction("parser", "lines", "LinesFactory", "lib"),
    ),
    {"lib": {"code.py": CODE.encode()}},
)


def task(path: Path, *filters: LoadStep, parser: str = "pairs") -> LoadTask:
    steps = tuple(FUNCTIONS.plan_step(step) for step in filters)
    source = LoadStep("source", "File", {"file": str(path)})
    plan = StackPlan(
        source=source, filters=steps, parser=LoadStep("parser", parser),
        target=target(), table=target().schema,
    )  # fmt: skip
    return LoadTask(0, Portion(InputFile(str(path))), plan)


def test_a_task_with_user_code_is_pickled_and_run(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"1=a\n2=b\n")
    spec = pickle.dumps((task(path, LoadStep("filter", "UP", {"bad": "!"})), FUNCTIONS))
    run = run_portion(*pickle.loads(spec))
    rows = [row for block in run for row in block.rows.to_pylist()]
    assert rows == [{"A": 1, "B": "A"}, {"A": 2, "B": "B"}]
    assert (run.counts.rows, run.counts.bytes_in, run.counts.bytes_parsed) == (2, 8, 8)


def test_a_file_is_cut_for_a_parser_that_says_it_can_be(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"".join(b"%d\n" % number for number in range(2000)))
    size = path.stat().st_size
    whole = task(path, parser="lines")
    stack = LoadStack(whole.plan, FUNCTIONS)
    assert stack.splittable
    for step in (1000, 997, size - 1, size):
        numbers, read = [], 0
        for number, start in enumerate(range(0, size, step)):
            length = None if start + step >= size else step
            portion = Portion(InputFile(str(path), size), start, length)
            run = stack.make_run(replace(whole, number=number, portion=portion))
            numbers += [int(row["A"]) for block in run for row in block.rows.to_pylist()]
            read += run.counts.bytes_in
        assert numbers == list(range(2000))
        assert read == size


def test_an_error_names_file_filter_and_parameters(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"1=a\n2=!\n")
    with pytest.raises(LoadFailed) as info:
        list(run_portion(task(path, LoadStep("filter", "up", {"bad": "!"})), FUNCTIONS))
    text = str(info.value)
    assert str(path) in text
    assert "filter up(bad='!')" in text
    assert "process() raised ValueError: bad byte (lib/code.py, line" in text


@pytest.mark.slow
def test_a_blocked_filter_does_not_hold_up_a_cancel(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"1=a\n")
    run = run_portion(task(path, LoadStep("filter", "blocks")), FUNCTIONS)
    from snowmelt.load.library import load_library

    blocks = load_library("lib", FUNCTIONS.libraries["lib"]).find_object("Blocks")

    def cancel_it() -> None:
        blocks.begun.wait(200)
        run.cancel()

    threading.Thread(target=cancel_it, daemon=True).start()
    # A call may last ten minutes, which is longer than a test may.
    with pytest.raises(LoadCancelled):
        list(run)
    assert blocks.cancelled.wait(60)


@pytest.mark.slow
def test_ctrl_c_ends_a_blocked_filter(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"1=a\n")
    (tmp_path / "task").write_bytes(
        pickle.dumps((task(path, LoadStep("filter", "blocks")), FUNCTIONS))
    )  # fmt: skip
    code = """
    import pickle, signal, sys
    from snowmelt.load.stack import run_portion
    # Who runs the tests in the background may have had it ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        list(run_portion(*pickle.load(open(sys.argv[1], "rb"))))
    except KeyboardInterrupt:
        print("interrupted")
    """
    command = [sys.executable, "-c", dedent(code), str(tmp_path / "task")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "blocked\n"
        process.send_signal(signal.SIGINT)
        try:
            rest, _ = process.communicate(timeout=200)
        finally:
            process.kill()
    assert rest.split() == ["cancelled", "interrupted"]


def test_user_code_leaves_no_thread_behind(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"1=a\n")
    # Those of other tests may be blocked for good.
    before = {each for each in threading.enumerate() if each.name == "snowmelt-user-code"}
    for _ in range(3):
        list(run_portion(task(path, LoadStep("filter", "up", {"bad": "!"})), FUNCTIONS))
    deadline = time.monotonic() + 60
    names: list[str] = []
    while time.monotonic() < deadline:
        names = [each.name for each in threading.enumerate() if each not in before]
        if "snowmelt-user-code" not in names:
            return
    pytest.fail(f"threads are left: {names}")
