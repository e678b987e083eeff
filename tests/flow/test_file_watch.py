"""A file watch loads each new file once. An invalid file does not stop others."""

from __future__ import annotations

import contextlib
import datetime as dt
import gzip
import os
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from fixtures.chunks import Lakehouse
from fixtures.copy import Copying
from snowmelt.catalog.jobs.load_history import list_loads
from snowmelt.catalog.objects.file_pipes import PipeFileState
from snowmelt.clock import ManualClock
from snowmelt.errors import StatementError, TableNotFound
from snowmelt.loaders.copy_job import CopyResult
from snowmelt.loaders.file_pipe_check import parse_watched_copy
from snowmelt.loaders.file_watch import BatchLimits, FileWatch, MemoryJournal
from snowmelt.loaders.load_task_execution import LocalTaskRunner
from snowmelt.schema.types import TableName


@pytest.fixture
def copying(tmp_path: Path) -> Iterator[Copying]:
    clock = ManualClock(dt.datetime.now(dt.UTC))
    with contextlib.closing(Lakehouse(tmp_path / "house", clock)) as house:
        house.create()
        yield Copying(house)


EAGER = BatchLimits(age_s=0.0, stable_s=0.0)


def make_watch(
    copying: Copying,
    *,
    limits: BatchLimits = EAGER,
    pattern: str = "*",
    options: str = "",
    journal: MemoryJournal | None = None,
) -> FileWatch:
    text = f"COPY numbers FROM '{copying.folder}/{pattern}' {options}"
    return FileWatch(copying.context, text, LocalTaskRunner(), limits=limits, journal=journal)


def count_rows(results: list[CopyResult]) -> int:
    return sum(each.totals.rows for each in results)


def test_each_file_is_loaded_once(copying: Copying) -> None:
    watch = make_watch(copying)
    assert watch.run_round() == []
    copying.file("1.csv", "1|a\n2|b\n")
    copying.file("2.csv.gz", gzip.compress(b"3|c\n"))
    assert count_rows(watch.run_round()) == 3
    copying.house.clock.advance(1)
    assert watch.run_round() == []
    copying.file("0.csv", "4|d\n")
    assert count_rows(watch.run_round()) == 1
    # A new process has no state of the first one.
    assert make_watch(copying).run_round() == []
    assert sorted(copying.house.read_numbers()) == [1, 2, 3, 4]


def test_a_batch_is_due_by_age_files_or_bytes(copying: Copying) -> None:
    limits = BatchLimits(age_s=10, files=3, bytes=60, stable_s=0)
    watch = make_watch(copying, limits=limits)
    # No load ended shortly before.
    copying.file("first.csv", "9|a\n")
    assert len(watch.run_round()) == 1
    for number in range(2):
        copying.file(f"{number}.csv", f"{number}|a\n")
    assert watch.run_round() == []
    assert watch.status.waiting_files == 2
    copying.house.clock.advance(10)
    assert [each.totals.files for each in watch.run_round()] == [2]
    for number in range(3, 7):
        copying.file(f"{number}.csv", f"{number}|a\n")
    copying.house.clock.advance(1)
    assert [each.totals.files for each in watch.run_round()] == [3]
    copying.file("8.csv", f"8|{'x' * 60}\n")
    copying.house.clock.advance(1)
    assert [each.totals.files for each in watch.run_round()] == [1, 1]


def test_a_file_that_grows_waits_until_it_is_complete(copying: Copying) -> None:
    watch = make_watch(copying, limits=BatchLimits(age_s=0, stable_s=5))
    copying.file("1.csv", "1|a\n")
    assert watch.run_round() == []
    copying.house.clock.advance(4)
    copying.file("1.csv", "1|a\n2|b\n")
    assert watch.run_round() == []
    copying.house.clock.advance(4)
    assert watch.run_round() == []
    copying.house.clock.advance(2)
    assert count_rows(watch.run_round()) == 2


def move_in(copying: Copying, name: str, content: str) -> None:
    part = copying.folder.with_name("part")
    part.write_text(content)
    part.rename(copying.folder / name)


def test_a_file_that_is_moved_in_is_loaded_at_once(copying: Copying) -> None:
    limits = BatchLimits(age_s=1000, stable_s=1000)
    watch = make_watch(copying, limits=limits, pattern="**/*.csv")
    assert watch.run_round() == []
    waited: list[bool] = []
    thread = threading.Thread(target=lambda: waited.append(watch.wait_for_files(600)))
    thread.start()
    move_in(copying, "1.csv", "1|a\n")
    thread.join()
    assert waited == [True]
    move_in(copying, "no.txt", "7|a\n")
    move_in(copying, ".hidden.csv", "8|a\n")
    assert count_rows(watch.run_round()) == 1
    # Files shortly after a load are a batch.
    (copying.folder / "new" / "deep").mkdir(parents=True)
    assert watch.wait_for_files(600)
    move_in(copying, "new/deep/2.csv", "2|b\n")
    assert watch.wait_for_files(600)
    assert watch.run_round() == []
    assert watch.status.waiting_files == 1
    copying.house.clock.advance(1000)
    assert count_rows(watch.run_round()) == 1
    # A writer that closed a file may open it again.
    copying.house.clock.advance(1000)
    copying.file("3.csv", "3|c\n")
    assert watch.wait_for_files(600)
    assert watch.run_round() == []
    copying.house.clock.advance(1000)
    assert count_rows(watch.run_round()) == 1
    assert sorted(copying.house.read_numbers()) == [1, 2, 3]


def test_a_folder_that_appears_later_has_events(copying: Copying) -> None:
    text = f"COPY INTO numbers FROM '{copying.folder}/later/'"
    watch = FileWatch(
        copying.context,
        text,
        LocalTaskRunner(),
        limits=BatchLimits(age_s=1000, stable_s=1000),
    )
    assert watch.run_round() == []
    (copying.folder / "later").mkdir()
    assert watch.wait_for_files(0)
    move_in(copying, "later/1.csv", "1,a\n")
    assert watch.wait_for_files(600)
    assert count_rows(watch.run_round()) == 1


def test_places_without_folders_have_no_events(copying: Copying) -> None:
    for text in ("'s3://bucket/in/'", f"'{copying.folder}/../{copying.folder.name}/'"):
        watch = FileWatch(copying.context, f"COPY INTO numbers FROM {text}", LocalTaskRunner())
        assert not watch.wait_for_files(600)


def test_a_broken_file_stops_no_other(copying: Copying) -> None:
    journal = MemoryJournal()
    watch = make_watch(copying, journal=journal)
    copying.file("1.csv", "1|a\n")
    copying.file("2.csv.gz", gzip.compress(b"2|b\n" * 100)[:-20])
    copying.file("3.csv", "3|c\n")
    assert count_rows(watch.run_round()) == 2
    [broken] = journal.failed.values()
    assert broken.path.endswith("2.csv.gz")
    assert "truncated" in broken.error
    copying.house.clock.advance(1)
    assert watch.run_round() == []
    # A repaired file counts as a new version.
    copying.file("2.csv.gz", gzip.compress(b"2|b\n"))
    assert count_rows(watch.run_round()) == 1
    assert journal.failed == {}
    assert sorted(copying.house.read_numbers()) == [1, 2, 3]
    states = Counter(entry.file.state for entry in copying.history())
    assert states == {"LOADED": 3, "LOAD_FAILED": 1}


def test_a_failed_file_is_tried_again_later_and_by_refresh(copying: Copying) -> None:
    watch = make_watch(copying)
    copying.file("1.csv.gz", b"nothing")
    attempts = []
    for seconds in (0, 11, 61, 601, 3600):
        copying.house.clock.advance(seconds)
        attempts.append(len(watch.run_round()))
    assert attempts == [1, 1, 1, 1, 0]
    watch.refresh()
    assert len(watch.run_round()) == 1


def test_limits_of_rejects_are_per_file(copying: Copying) -> None:
    journal = MemoryJournal()
    watch = make_watch(copying, options="REJECTMAX 2", journal=journal)
    copying.file("1.csv", "1|a\nx|b\n")
    copying.file("2.csv", "x|a\ny|b\n3|c\n")
    copying.file("3.csv", "x|a\n4|d\n")
    assert count_rows(watch.run_round()) == 2
    [failed] = journal.failed.values()
    assert "2.csv: 2 records were rejected, and SKIP_FILE or REJECTMAX leaves" in failed.error
    assert sorted(copying.house.read_numbers()) == [1, 4]


def test_a_load_without_a_good_file_is_shown_as_failed_and_counts_rejects_once(
    copying: Copying,
) -> None:
    options = "REJECTMAX 2 REJECTED DATA AS TABLE demo.public.bad"
    watch = make_watch(copying, options=options)
    copying.file("1.csv", "x|a\ny|b\n3|c\n")
    for seconds in (0, 11, 61):
        copying.house.clock.advance(seconds)
        watch.run_round()
    # A refresh is a retry, too.
    watch.refresh()
    watch.run_round()
    assert copying.states() == ["failed"] * 4
    with copying.house.database.reading() as connection:
        loads = list_loads(connection)
    assert sorted(int(load.rejects or 0) for load in loads) == [0, 0, 0, 2]
    assert all("leaves out a file at 2" in str(load.message) for load in loads)
    assert len(copying.house.read(TableName("DEMO", "PUBLIC", "BAD"))) == 2
    # A good file beside it makes the load a success.
    copying.house.clock.advance(601)
    copying.file("2.csv", "4|d\n")
    watch.run_round()
    assert sorted(copying.states()) == ["committed", *["failed"] * 4]
    assert copying.house.read_numbers() == [4]


def test_many_small_files_become_one_native_file(copying: Copying) -> None:
    watch = make_watch(copying)
    for number in range(20):
        copying.file(f"{number:02d}.csv", f"{2 * number}|a\n{2 * number + 1}|b\nx|c\n")
    [result] = watch.run_round()
    assert (result.totals.files, result.totals.rows, result.totals.rejects) == (20, 40, 20)
    assert len(copying.house.data_files()) == 1
    assert sorted(copying.house.read_numbers()) == list(range(40))
    # Few files stay as they are.
    for number in range(3):
        copying.file(f"more{number}.csv", f"{100 + number}|a\n")
    copying.house.clock.advance(1)
    watch.run_round()
    assert len(copying.house.data_files()) == 4


def test_a_batch_of_broken_files_alone_is_recorded(copying: Copying) -> None:
    journal = MemoryJournal()
    watch = make_watch(copying, journal=journal)
    for number in range(3):
        copying.file(f"{number}.csv.gz", b"nothing")
    assert count_rows(watch.run_round()) == 0
    assert len(journal.failed) == 3
    assert {entry.file.state for entry in copying.history()} == {"LOAD_FAILED"}


def test_a_file_that_changes_after_its_load_is_reported_and_not_loaded(copying: Copying) -> None:
    journal = MemoryJournal()
    watch = make_watch(copying, journal=journal)
    copying.file("1.csv", "1|a\n")
    assert count_rows(watch.run_round()) == 1
    copying.file("1.csv", "1|a\n2|b\n")
    copying.house.clock.advance(1)
    assert watch.run_round() == []
    [changed] = journal.failed.values()
    assert changed.state is PipeFileState.CHANGED
    assert "has changed since load" in changed.error
    assert copying.house.read_numbers() == [1]


def test_a_load_of_the_same_files_by_another_process_doubles_nothing(copying: Copying) -> None:
    first = make_watch(copying, limits=BatchLimits(age_s=0, stable_s=10))
    copying.file("1.csv", "1|a\n")
    assert first.run_round() == []
    assert count_rows(make_watch(copying).run_round()) == 1
    copying.house.clock.advance(20)
    assert count_rows(first.run_round()) == 0
    assert copying.house.read_numbers() == [1]


def test_a_missing_table_is_an_error_of_the_whole_watch(copying: Copying) -> None:
    watch = make_watch(copying)
    copying.file("1.csv", "1|a\n")
    copying.sql("DROP TABLE numbers")
    with pytest.raises(TableNotFound):
        watch.run_round()
    copying.sql("UNDROP TABLE numbers")
    copying.house.clock.advance(1)
    assert count_rows(watch.run_round()) == 1


def test_files_with_signs_of_globs_in_their_names_are_loaded(copying: Copying) -> None:
    copying.file("a[1]*.csv", "1|a\n")
    os.mkfifo(copying.folder / "pipe.csv")
    (copying.folder / "folder.csv").mkdir()
    assert count_rows(make_watch(copying, pattern="*.csv").run_round()) == 1


def test_a_file_with_the_name_of_its_glob_hides_no_other(copying: Copying) -> None:
    for number, name in enumerate(["*.csv", "a.csv", "b.csv"]):
        copying.file(name, f"{number}|a\n")
    assert count_rows(make_watch(copying, pattern="*.csv").run_round()) == 3


def test_a_file_whose_name_is_not_utf_8_stops_no_other(copying: Copying) -> None:
    journal = MemoryJournal()
    watch = make_watch(copying, journal=journal)
    copying.file("1.csv", "1|a\n")
    broken = copying.folder / os.fsdecode(b"b\xff.csv")
    broken.write_text("2|b\n")
    assert count_rows(watch.run_round()) == 1
    [failed] = journal.failed.values()
    assert failed.path == f"{copying.folder}/b\\xff.csv"
    assert failed.error.endswith("b\\xff.csv: the name of the file is not UTF-8; rename the file.")
    copying.house.clock.advance(1)
    assert watch.run_round() == []
    assert list(journal.failed) == [failed.path]
    broken.rename(copying.folder / "2.csv")
    copying.house.clock.advance(1)
    assert count_rows(watch.run_round()) == 1
    assert journal.failed == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("COPY t FROM STDIN", "only folders and stores"),
        ("COPY t FROM LOCAL '/a/*'", "only folders and stores"),
        ("COPY t SOURCE KafkaSource(stream = 'a|0|0')", "only folders and stores"),
        ("COPY t FROM 'a/*'", "a/\\* is relative"),
        ("COPY t FROM 'http://h/a'", "do not list files"),
        ("COPY t FROM '/a/*' GZIP, '/b/*'", "the same compression"),
        ("COPY t FROM '/a/*' REJECTED DATA '/r'", "REJECTED DATA AS TABLE"),
        ("COPY t FROM '/a/*' FORCE", "FORCE is not supported"),
        ("COPY t FROM '/a/*' NO COMMIT", "NO COMMIT is not supported"),
        ("COPY t FROM '/a/*' STREAM NAME 's'", "STREAM NAME is not supported"),
    ],
)
def test_what_cannot_be_watched_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(StatementError, match=message):
        parse_watched_copy(text)
