"""`snowmelt tail`: each line is loaded once, despite kills, rotation, truncation and new files."""

from __future__ import annotations

import contextlib
import datetime as dt
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import snowmelt
from fixtures.service import KeyPair, ServiceProcess, prepare_loading
from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.security.encryption_keys import KeyRing, load_master_key
from snowmelt.client.line_source import parse_json_row
from snowmelt.clock import SystemClock
from snowmelt.config import Settings
from snowmelt.loaders.file_tail import FileTail, TailOptions
from snowmelt.schema.types import TableName
from snowmelt.storage.store_factory import open_store
from snowmelt.table.table_reader import read_table
from support import forked_processes

if TYPE_CHECKING:
    from snowmelt.client.line_source import ParsedLine

pytestmark = pytest.mark.slow

_numbers = itertools.count()


class Tailing:
    """A folder of logs, and the table for their lines."""

    def __init__(self, service: ServiceProcess, key_pair: KeyPair, folder: Path) -> None:
        self.service = service
        self.database = f"TAIL_{next(_numbers)}"
        prepare_loading(service, key_pair, self.database)
        self.logs = folder / "logs"
        self.logs.mkdir()
        self.key = folder / "key.pem"
        self.key.write_text(key_pair.private_pem)
        self.output = folder / "output"
        self._next = 0

    def command(self, *more: str, pattern: str = "*.log") -> list[Any]:
        where = ["--url", self.service.url, "--user", "loader", "--private-key", str(self.key)]
        files = [str(self.logs / pattern), "--table", f"{self.database}.public.t"]
        return [sys.executable, "-m", "snowmelt", "tail", *files, *where, *more]

    def once(self, *more: str, **options: str) -> tuple[int, Any]:
        done = forked_processes.run(
            self.command("--once", *more, **options), capture_output=True, text=True, timeout=120
        )
        return done.returncode, done.stdout + done.stderr

    def start(self, *more: str, **options: str) -> forked_processes.Popen:
        with self.output.open("ab") as output:
            return forked_processes.Popen(
                self.command(*more, **options), stdout=output, stderr=output, env=os.environ
            )

    @contextlib.contextmanager
    def following(
        self, parse: Callable[[bytes, int], ParsedLine] = parse_json_row, **options: Any
    ) -> Iterator[FileTail]:
        """Yield a tail in this process."""
        wanted = TailOptions(
            patterns=[str(self.logs / "*.log")],
            table=f"{self.database}.public.t",
            make_parser=lambda: parse,
            **options,
        )
        with snowmelt.Client(self.service.url, user="loader", private_key=str(self.key)) as client:
            yield FileTail(wanted, client, SystemClock(), lambda _: None)

    def write(self, name: str, count: int, *, end: str = "\n") -> None:
        """Append numbered lines to a file."""
        numbers = range(self._next, self._next + count)
        self._next += count
        lines = "\n".join(json.dumps({"id": number, "name": name}) for number in numbers)
        self.append(name, lines + end)

    def append(self, name: str, text: str) -> None:
        with (self.logs / name).open("a") as file:
            file.write(text)

    def rows(self, column: str = "ID") -> Any:
        settings = Settings.load(self.service.data_dir)
        database = open_and_upgrade_database(settings.catalog_url)
        try:
            keyring = KeyRing(load_master_key(settings.keys_dir))
            name = TableName(self.database, "PUBLIC", "T")
            rows = read_table(database, keyring, open_store(settings.stage_url), name)
            return rows[column].to_pylist()
        finally:
            database.close()

    def ids(self) -> list[Any]:
        return sorted(int(number) for number in self.rows())

    def wait_for(self, count: int) -> None:
        give_up_at = time.monotonic() + 200
        while len(found := self.ids()) < count:
            assert time.monotonic() < give_up_at, f"{len(found)} of {count}\n{self.said()}"
            time.sleep(0.1)
        assert found == list(range(count))

    def said(self) -> str:
        return self.output.read_text()

    def tokens(self) -> list[Any]:
        result = self.service.sql(f"SHOW CHANNELS IN TABLE {self.database}.public.t")
        place = [name.lower() for name in result.columns].index("offset_token")
        return sorted(row[place] for row in result.rows)


@pytest.fixture
def tailing(shared_service: ServiceProcess, key_pair: KeyPair, tmp_path: Path) -> Tailing:
    return Tailing(shared_service, key_pair, tmp_path)


def test_once_goes_on_where_it_was_and_removes_what_is_done(tailing: Tailing) -> None:
    tailing.write("messages_1.log", 20)
    tailing.write("messages_2.log", 5, end="")
    code, said = tailing.once()
    assert code == 0
    assert said.startswith("24 rows of 2 files committed; the last line is incomplete in /")
    assert said.endswith("messages_2.log.\n")
    assert tailing.tokens() == ["messages_1.log:20", "messages_2.log:4"]
    tailing.write("messages_1.log", 2)
    tailing.append("messages_1.log", '{"id": "x"}\nno json\n')
    tailing.append("messages_2.log", "\n")
    code, said = tailing.once("--errors", str(tailing.output), "--delete")
    assert code == 0
    assert "3 rows of 2 files committed, 2 lines rejected, 2 files removed." in said
    refused = [json.loads(line) for line in tailing.said().splitlines()]
    assert [each["place"] for each in refused] == ["messages_1.log:24", "messages_1.log:23"]
    assert tailing.ids() == list(range(27))
    assert list(tailing.logs.iterdir()) == []
    assert tailing.tokens() == []


def test_dates_of_logs_are_read_as_people_write_them_and_meet_no_zone(tailing: Tailing) -> None:
    tailing.service.sql(f"ALTER TABLE {tailing.database}.public.t ADD COLUMN clock TIMESTAMP_NTZ")
    written = {
        # This time does not exist in Los Angeles.
        "2024-03-10 02:30:00": dt.datetime(2024, 3, 10, 2, 30),
        "03/10/2024 02:30:00": dt.datetime(2024, 3, 10, 2, 30),
        "Sun, 10 Mar 2024 02:30:00 +0100": dt.datetime(2024, 3, 10, 2, 30),
        "1710037800": dt.datetime(2024, 3, 10, 2, 30),
        "20240310": None,
    }
    lines = [json.dumps({"id": n, "clock": text}) for n, text in enumerate(written)]
    tailing.append("a.log", "\n".join(lines) + "\n")
    code, said = tailing.once()
    assert "Ambiguous digits '20240310'" in said
    assert tailing.rows("CLOCK") == [at for at in written.values() if at is not None]
    assert code == 0


def test_forms_of_lines(tailing: Tailing, tmp_path: Path) -> None:
    (tailing.logs / "a.csv").write_text('id;name\n1;"x;y"\n2;\n')
    (tailing.logs / "b.csv").write_text("name;id\nz;3\n", "utf-8-sig")
    done = tmp_path / "done"
    more = ("--csv", "--header", "--delimiter", ";", "--move-to", str(done))
    code, said = tailing.once(*more, pattern="*.csv")
    assert (code, said) == (0, "3 rows of 2 files committed, 2 files removed.\n")
    assert sorted(path.name for path in done.iterdir()) == ["a.csv", "b.csv"]
    tailing.service.sql(f"ALTER TABLE {tailing.database}.public.t ALTER COLUMN id DROP NOT NULL")
    (tailing.logs / "c.txt").write_text("a whole line: ß\r\n", "latin-1", newline="")
    whole = ("--column", "name", "--encoding")
    assert tailing.once(*whole, "latin-1", pattern="*.txt")[0] == 0
    assert "split at single bytes" in tailing.once(*whole, "utf-16", pattern="*.txt")[1]
    names = tailing.rows("NAME")
    assert sorted(names, key=str) == [None, "a whole line: ß", "x;y", "z"]
    tailing.service.sql(
        f"ALTER TABLE {tailing.database}.public.t SET ENABLE_SCHEMA_EVOLUTION = TRUE",
        f"GRANT EVOLVE SCHEMA ON TABLE {tailing.database}.public.t TO ROLE loading",
    )
    (tailing.logs / "d.jsonl").write_text('{"id": 4, "weight": 1.5}\n')
    # Not even a privileged user can read it.
    (tailing.logs / "c.jsonl").symlink_to("/proc/self/mem")
    code, said = tailing.once("--evolve", pattern="*.jsonl")
    assert code == 0
    assert "1 row of 1 file committed; unreadable: /" in said
    assert "c.jsonl cannot be read" in said
    assert sorted(tailing.rows("WEIGHT"), key=str) == [Decimal("1.5"), None, None, None, None]


def test_files_are_rotated_truncated_and_added_while_followed(tailing: Tailing) -> None:
    tailing.write("app.log", 10)
    process = tailing.start(pattern="app*")
    try:
        tailing.wait_for(10)
        tailing.write("app.log", 5)
        (tailing.logs / "app.log").rename(tailing.logs / "app.log.1")
        tailing.write("app.log", 7)
        tailing.write("app.log.1", 3)
        tailing.wait_for(25)
        # As by logrotate's copytruncate, with a copy whose name does not match the pattern.
        (tailing.logs / "app.log").write_bytes(b"")
        tailing.write("app.log", 9)
        tailing.write("app-2.log", 4)
        tailing.wait_for(38)
        process.terminate()
        assert process.wait(200) == 0, tailing.said()
        assert "38 rows of 4 files committed." in tailing.said()
    finally:
        process.kill()
        process.wait()
    assert tailing.once(pattern="app*")[1].startswith("0 rows")


def test_a_file_with_fewer_lines_than_committed_is_a_choice(tailing: Tailing) -> None:
    tailing.write("a.log", 10)
    tailing.once()
    path = tailing.logs / "a.log"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:4]))
    code, said = tailing.once()
    assert code == 1
    assert "Source position a.log:4 is before the committed position a.log:10" in said
    assert tailing.once("--on-backwards", "skip")[1].startswith("0 rows")
    assert tailing.once("--on-backwards", "restart")[1].startswith("4 rows")
    assert tailing.ids() == sorted([*range(10), *range(4)])


def test_kill_9_at_any_moment_loses_and_doubles_nothing(tailing: Tailing) -> None:
    dice = random.Random(7)
    kills = 0
    process = tailing.start("--delete", "--settled", "0.5")
    try:
        for turn in range(24):
            tailing.write(f"messages_{turn // 4}.log", dice.randrange(1, 400))
            time.sleep(dice.uniform(0.05, 0.6))
            if turn % 3 == 2:
                process.kill()
                process.wait()
                kills += 1
                process = tailing.start("--delete", "--settled", "0.5")
        tailing.wait_for(tailing._next)
        give_up_at = time.monotonic() + 200
        while list(tailing.logs.iterdir()):
            assert time.monotonic() < give_up_at, tailing.said()
            time.sleep(0.1)
        process.terminate()
        assert process.wait(200) == 0, tailing.said()
    finally:
        process.kill()
        process.wait()
    assert kills == 8
    assert max(Counter(tailing.ids()).values()) == 1
    assert tailing.ids() == list(range(tailing._next))


@pytest.mark.parametrize("once", [True, False])
@pytest.mark.parametrize("removal", ["delete", "move_to"])
def test_a_tail_that_is_stopped_removes_no_file_before_its_last_line(
    tailing: Tailing, tmp_path: Path, once: bool, removal: str
) -> None:
    tailing.write("a.log", 30_000)
    stop = threading.Event()

    def parse(line: bytes, number: int) -> ParsedLine:
        # The first round has ended, and all of its rows are committed.
        if number == 12_000:
            tail._client.flush()
            stop.set()
        return parse_json_row(line, number)

    target = True if removal == "delete" else tmp_path / "done"
    options: dict[str, Any] = {removal: target, "idle_before_removal_s": 0.0, "once": once}
    with tailing.following(parse, **options) as tail:
        assert 12_000 <= tail.run(stop).rows < 30_000
    assert (tailing.logs / "a.log").exists()
    assert tailing.once()[1].startswith(f"{30_000 - tail.done.rows:,} rows of 1 file")
    assert tailing.ids() == list(range(30_000))


@pytest.mark.parametrize("removal", ["delete", "move_to"])
def test_a_file_with_several_names_is_removed_under_each_of_them(
    tailing: Tailing, tmp_path: Path, removal: str
) -> None:
    tailing.write("2026.log", 10)
    (tailing.logs / "current.log").symlink_to("2026.log")
    (tailing.logs / "a.log").hardlink_to(tailing.logs / "2026.log")
    (tmp_path / "outside").write_text('{"id": 10}\n')
    (tailing.logs / "outside.log").symlink_to(tmp_path / "outside")
    more = ("--delete",) if removal == "delete" else ("--move-to", str(tmp_path / "done"))
    code, said = tailing.once(*more)
    assert (code, said) == (0, "11 rows of 2 files committed, 2 files removed.\n")
    assert [path.name for path in tailing.logs.iterdir()] == ["current.log"]
    assert not (tailing.logs / "current.log").exists()
    assert (tmp_path / "outside").exists()
    assert tailing.once(*more)[1].startswith("0 rows of 0 files")
    assert tailing.ids() == list(range(11))


def test_a_file_that_no_pattern_matches_any_more_is_read_to_its_last_line(
    tailing: Tailing,
) -> None:
    tailing.write("a.log", 30_000)

    def parse(line: bytes, number: int) -> ParsedLine:
        if number == 10_000:
            (tailing.logs / "a.log").rename(tailing.logs / "a.1")
        return parse_json_row(line, number)

    def commit(_: object) -> None:
        tail._client.flush()

    with tailing.following(parse, once=True) as tail:
        assert tail.run(threading.Event(), commit).rows == 30_000
    assert tailing.ids() == list(range(30_000))


def test_a_deleted_file_leaves_no_position_to_a_later_file(tailing: Tailing) -> None:
    tailing.write("a.log", 10)
    tailing.write("b.log", 5)
    stop = threading.Event()

    def remove(_: object) -> None:
        if tail.done.rows == 15:
            tail._client.flush()
            if (tailing.logs / "a.log").exists():
                (tailing.logs / "a.log").unlink()
                # This file continues when its new name matches.
                (tailing.logs / "b.log").rename(tailing.logs / "b.old")
            elif not tail._files:
                stop.set()

    with tailing.following() as tail:
        tail.run(stop, remove)
    assert tailing.tokens() == ["b.log:5"]
    (tailing.logs / "b.old").rename(tailing.logs / "c.log")
    assert tailing.once()[1].startswith("0 rows of 1 file")
    assert tailing.ids() == list(range(15))


def test_a_file_overwritten_before_its_rows_are_committed_is_a_new_file(tailing: Tailing) -> None:
    tailing.write("a.log", 10)
    stop = threading.Event()

    def overwrite(_: object) -> None:
        # As by copytruncate: for some time, the file is empty.
        if tail.done.rows == 10 and tail.done.files == 1:
            (tailing.logs / "a.log").write_bytes(b"")
            tail._read_round(stop)
            tailing.write("a.log", 5)
        elif tail.done.rows == 15:
            stop.set()

    with tailing.following() as tail:
        assert tail.run(stop, overwrite).rows == 15
    assert tailing.ids() == list(range(15))


def test_files_of_two_file_systems_with_one_inode_number_are_different_files(
    tailing: Tailing, tmp_path: Path
) -> None:
    if shutil.which("unshare") is None:
        pytest.skip("a second file system needs unshare of util-linux")
    tailing.write("b.jsonl", 3)
    tailing.write("c.jsonl", 4)
    folders = [tmp_path / name for name in ("one", "two", "three")]
    for folder in folders:
        folder.mkdir()
    # The first file of each new tmpfs has the same inode number.
    script = ""
    for folder, name in zip(folders, ("b", "c", "b"), strict=True):
        script += f"mount -t tmpfs none {folder}; cp {tailing.logs}/{name}.jsonl {folder}/x.jsonl\n"
    command = [*tailing.command("--once")]
    command[command.index("tail") + 1 : command.index("--table")] = [
        str(folder / "x.jsonl") for folder in folders
    ]
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-ec", script + 'exec "$@"', "sh", *map(str, command)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    if "unshare failed" in done.stderr or "permission denied" in done.stderr:
        pytest.skip(f"a second file system needs a user namespace: {done.stderr}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("7 rows of 2 files committed; unreadable: ")
    assert "on another file system, so both would have the same channel" in done.stderr
    assert tailing.ids() == list(range(7))
