"""One portion through its steps: what fails is placed, what is cancelled is closed, all adds up."""

from __future__ import annotations

import gzip
import threading
from typing import TYPE_CHECKING, Any

import pytest

from snowmelt.errors import InternalError, LoadCancelled, LoadFailed, LoadRefused
from snowmelt.load.copy_ast import InputCompression
from snowmelt.load.phase_protocols import ParseTarget
from snowmelt.load.phase_registry import LoadFunctions, UserLoadFunction
from snowmelt.load.portion import InputFile, Portion
from snowmelt.load.stack import LoadStack, PortionRun, run_portion
from snowmelt.load.task import LoadStep, LoadTask, StackPlan
from snowmelt.schema.types import Column, LogicalType, TableSchema

if TYPE_CHECKING:
    from pathlib import Path

TABLE = TableSchema(1, (Column("A", LogicalType.FIXED, 1, precision=38, scale=0),))
LIBRARY = '''
import pyarrow as pa

from snowmelt.errors import PhaseFailed
from snowmelt.load.phase_protocols import ParsedBatch
from snowmelt.load.portion import InputFile


class Numbers:
    """Numbers without an end; tells what happened to it."""
    told = []

    def __init__(self, fails=False):
        self.fails = fails

    def files(self):
        return [InputFile("numbers")]

    def read(self, portion):
        try:
            number = 0
            while True:
                yield b"".join(b"%d\\n" % (number + more) for more in range(100))
                number += 100
                if self.fails and number == 1000:
                    raise PhaseFailed(reason="the wire broke", offset=3890)
        finally:
            self.told.append("closed")

    def cancel(self):
        self.told.append("cancelled")


class Messages:
    def files(self):
        return [InputFile("messages")]

    def read_records(self, portion):
        yield pa.array([b"1", b"", b"23"], pa.binary())[1:]
        yield pa.array([b"4"], pa.binary())


class NullMessages(Messages):
    def read_records(self, portion):
        yield pa.array([b"1", None], pa.binary())


def swallow(reader):
    try:
        for piece in reader:
            yield piece
    except Exception:
        pass


def broken(reader, secret="x", times=1):
    for piece in reader:
        yield piece
        raise ValueError("no more of this")


def texts(reader):
    yield "not bytes"


class Miscounting:
    splittable = False

    def parse(self, reader, target, portion):
        yield ParsedBatch(pa.table({"A": pa.array([1], pa.decimal128(38, 0))}), (), 2)
'''


def functions() -> LoadFunctions:
    names = {
        "source": ("Numbers", "Messages", "NullMessages"),
        "filter": ("swallow", "broken", "texts"),
        "parser": ("Miscounting",),
    }
    return LoadFunctions(
        tuple(
            UserLoadFunction(kind, name, name, "made")  # type: ignore[arg-type]
            for kind, all_names in names.items()
            for name in all_names
        ),
        {"made": {"made.py": LIBRARY.encode()}},
    )


def plan(
    *filters: LoadStep,
    source: LoadStep | None = None,
    parser: LoadStep | None = None,
    **options: Any,
) -> StackPlan:
    return StackPlan(
        source=source or LoadStep("source", "File", {"file": "x"}),
        filters=filters,
        parser=parser or LoadStep("parser", "Delimited"),
        target=ParseTarget(TABLE),
        table=TABLE,
        **options,
    )


def run_of(path: str, stack: StackPlan, size: int | None = None) -> PortionRun:
    return run_portion(LoadTask(0, Portion(InputFile(path, size)), stack), functions())


def rows_of(run: PortionRun) -> list[int]:
    return [int(value) for block in run for value in block.rows.column("A").to_pylist()]


@pytest.fixture
def numbers(tmp_path: Path) -> str:
    path = tmp_path / "numbers"
    path.write_bytes(b"".join(b"%d\n" % n for n in range(10)))
    return str(path)


def test_bytes_records_rows_and_rejects_are_counted(numbers: str) -> None:
    run = run_of(numbers, plan(LoadStep("filter", "SearchAndReplace", {"pattern": "3", "replace_with": "xx"})), 20)  # fmt: skip
    assert rows_of(run) == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    counts = run.counts
    assert (counts.bytes_in, counts.bytes_parsed) == (20, 21)
    assert (counts.records, counts.rows, counts.rejects, counts.reject_limit_reached) == (
        10,
        9,
        1,
        False,
    )


def test_a_failing_filter_is_named_with_file_byte_and_parameters(tmp_path: Path) -> None:
    path = tmp_path / "broken.gz"
    path.write_bytes(gzip.compress(b"1\n" * 100_000)[:-20])
    with pytest.raises(LoadFailed) as failed:
        rows_of(run_of(str(path), plan(LoadStep("filter", "GZip", {"max_output": 10_000_000}))))
    text = str(failed.value)
    assert text.startswith(f"{path}, filter GZip(max_output=10000000), a")
    assert "of the file: " in text


def test_what_code_of_users_raises_is_placed_and_secrets_are_not_shown(numbers: str) -> None:
    step = LoadStep("filter", "broken", {"secret": "tell nobody", "times": 2})
    with pytest.raises(LoadFailed, match="no more of this") as failed:
        rows_of(run_of(numbers, plan(LoadStep("filter", "LineEndings"), step)))
    text = str(failed.value)
    assert text.startswith(f"{numbers}, filter broken(secret=…, times=2), ")
    assert "20 of its input" in text or "20 bytes of its input" in text
    assert "tell nobody" not in text


def test_a_step_is_shown_without_what_may_be_secret() -> None:
    step = LoadStep(
        "source", "Url", {"url": "https://me:pass@there/x", "api_token": "t", "n": "y" * 99}
    )
    assert str(step).startswith("source Url(url='https://…@there/x', api_token=…, n='yyy")
    assert len(str(step)) < 130


def test_a_failing_source_is_named_with_its_byte() -> None:
    source = LoadStep("source", "Numbers", {"fails": True})
    with pytest.raises(LoadFailed) as failed:
        rows_of(run_of("numbers", plan(source=source)))
    assert str(failed.value) == (
        "numbers, source Numbers(fails=True), at byte 3,890 of the file: the wire broke."
    )


def test_a_failure_that_a_filter_swallows_is_seen_all_the_same() -> None:
    source = LoadStep("source", "Numbers", {"fails": True})
    with pytest.raises(LoadFailed, match="the wire broke"):
        rows_of(run_of("numbers", plan(LoadStep("filter", "swallow"), source=source)))


def test_a_filter_that_yields_no_bytes_fails(numbers: str) -> None:
    with pytest.raises(LoadFailed, match=r"filter texts\(\).*yielded str"):
        rows_of(run_of(numbers, plan(LoadStep("filter", "texts"))))


def test_a_file_of_another_length_than_listed_fails(numbers: str) -> None:
    with pytest.raises(LoadFailed, match=numbers):
        rows_of(run_of(numbers, plan(), 19))


def test_a_parser_whose_counts_do_not_add_up_is_an_error_of_its_own(numbers: str) -> None:
    with pytest.raises(InternalError, match="2 records are not 1 rows and 0 rejects"):
        rows_of(run_of(numbers, plan(parser=LoadStep("parser", "Miscounting"))))


def test_the_limit_of_rejects_ends_the_run_and_keeps_them(tmp_path: Path) -> None:
    path = tmp_path / "bad"
    path.write_bytes(b"1\nx\ny\n2\n")
    run = run_of(str(path), plan(reject_limit=2))
    rejects = [reject for block in run for reject in block.rejects]
    assert [reject.data for reject in rejects] == [b"x", b"y"]
    assert run.counts.reject_limit_reached


def test_records_go_through_a_converting_filter() -> None:
    delimiters = LoadStep("filter", "KafkaInsertDelimiters", {"delimiter": "\n"})
    run = run_of("messages", plan(delimiters, source=LoadStep("source", "Messages")))
    # The message without bytes is a row whose only column is NULL.
    assert [block.rows.column("A").to_pylist() for block in run] == [[None, 23, 4]]
    assert run.counts.bytes_in == 3
    assert run.counts.bytes_parsed == 6


def test_records_in_front_of_a_filter_of_bytes_become_one_stream() -> None:
    run = run_of(
        "messages", plan(LoadStep("filter", "LineEndings"), source=LoadStep("source", "Messages"))
    )
    assert rows_of(run) == [234]


def test_a_record_that_is_null_fails() -> None:
    delimiters = LoadStep("filter", "KafkaInsertDelimiters", {"delimiter": "\n"})
    with pytest.raises(LoadFailed, match="a record is null"):
        rows_of(run_of("m", plan(delimiters, source=LoadStep("source", "NullMessages"))))


@pytest.mark.parametrize(
    ("filters", "reason"),
    [
        (("KafkaInsertLengths",), "Input is not from Kafka source"),
        (("LineEndings", "KafkaInsertDelimiters"), "Input is not from Kafka source"),
    ],
)
def test_steps_that_cannot_follow_one_another_are_refused(
    filters: tuple[str, ...], reason: str
) -> None:
    steps = [
        LoadStep("filter", name, {"delimiter": "x"} if "Del" in name else {}) for name in filters
    ]
    with pytest.raises(LoadRefused, match=reason):
        LoadStack(plan(*steps), functions())
    with pytest.raises(LoadRefused, match="Add FILTER KafkaInsertDelimiters"):
        LoadStack(plan(source=LoadStep("source", "Messages")), functions())


def test_leaving_early_cancels_and_closes_the_source() -> None:
    run = run_of("numbers", plan(source=LoadStep("source", "Numbers")))
    told = run._steps[0].told
    told.clear()
    blocks = iter(run)
    next(blocks)
    blocks.close()  # type: ignore[attr-defined]
    assert told == ["cancelled", "closed"]


@pytest.mark.slow
def test_a_cancel_from_another_thread_ends_the_run() -> None:
    run = run_of(
        "numbers", plan(LoadStep("filter", "LineEndings"), source=LoadStep("source", "Numbers"))
    )
    told = run._steps[0].told
    threading.Timer(0.2, run.cancel).start()
    with pytest.raises(LoadCancelled):
        rows_of(run)
    assert "cancelled" in told
    assert told[-1] == "closed"


def test_a_stack_runs_one_portion_after_the_other(numbers: str) -> None:
    stack = LoadStack(plan(), functions())
    for _ in range(2):
        run = stack.make_run(LoadTask(0, Portion(InputFile(numbers)), plan()))
        assert sum(rows_of(run)) == 45


def test_functions_of_users_hide_those_built_in_but_not_from_compressed_paths(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"1\n2\n", mtime=0x0A7C2C7C))
    own = LoadFunctions(
        (UserLoadFunction("filter", "gzip", "swallow", "made"),),
        {"made": {"made.py": LIBRARY.encode()}},
    )
    portion = Portion(InputFile(str(path)))
    named = LoadStack(plan(LoadStep("filter", "GZip")), own).make_run(LoadTask(0, portion, plan(LoadStep("filter", "GZip"))))  # fmt: skip
    assert rows_of(named) == []
    assert named.counts.rejects
    task = LoadTask(0, portion, plan(), InputCompression.GZIP)
    assert rows_of(LoadStack(plan(), own).make_run(task)) == [1, 2]
