"""A command of the shell is a filter, and its failure is the load's."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from snowmelt.errors import LoadRefused, PhaseFailed
from snowmelt.load.filters import definition
from snowmelt.load.phase_protocols import ByteReader
from support.phases import built


def command(cmd: str, **more: Any) -> Any:
    return built(definition("ExternalCommand"), {"cmd": cmd, **more})


def piped(cmd: str, *pieces: bytes, **more: str) -> bytes:
    return b"".join(command(cmd, **more).run(ByteReader(pieces)))


def test_bytes_go_through_the_command() -> None:
    assert piped("tr a-z A-Z", b"some ", b"text\n") == b"SOME TEXT\n"
    assert piped("cat") == b""
    data = os.urandom(3_000_000)
    assert piped("cat", data, data) == data * 2


def test_a_command_may_write_first_read_little_and_write_much() -> None:
    assert piped("echo head; cat", b"body") == b"head\nbody"
    assert piped("head -c 3", *[b"x" * 100_000] * 50) == b"xxx"
    assert len(piped("cat >/dev/null; head -c 5000000 /dev/zero", b"x" * 1_000_000)) == 5_000_000


def test_it_finds_the_name_of_its_node() -> None:
    assert piped("echo $CURRENT_NODE_NAME", b"", node="v_db_node0001") == b"v_db_node0001\n"


@pytest.mark.parametrize(
    ("cmd", "said"),
    [
        ("cat; exit 3", r"the command exited with status 3 \(cat; exit 3\)"),
        ("cat; echo oh no >&2", "exited with status 0 and wrote: oh no"),
        ("exec kill -9 $$", "was killed by signal 9"),
        ("no-such-command-here", "exited with status 127 and wrote: .*not found"),
    ],
)
def test_a_failing_or_complaining_command_fails_the_filter(cmd: str, said: str) -> None:
    with pytest.raises(PhaseFailed, match=said):
        piped(cmd, b"some text")


def test_a_flood_of_complaints_is_kept_in_part() -> None:
    with pytest.raises(PhaseFailed) as failure:
        piped("head -c 1000000 /dev/zero | tr '\\0' x >&2", b"")
    assert len(str(failure.value)) < 10_000


def gone(pid: int) -> bool:
    for _ in range(2000):
        try:
            status = Path(f"/proc/{pid}/stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return True
        if status.rsplit(")", 1)[1].split()[0] == "Z":
            return True
        time.sleep(0.05)
    return False


def test_leaving_early_kills_the_command_and_its_children() -> None:
    run = command("sleep 600 & echo $!; cat").run(ByteReader([b"text"]))
    child = int(next(run).split()[0])
    assert Path(f"/proc/{child}").exists()
    run.close()
    assert gone(child)


@pytest.mark.slow
def test_cancel_ends_a_command_that_does_nothing() -> None:
    made = command("sleep 600")
    timer = threading.Timer(0.3, made.cancel)
    timer.start()
    with pytest.raises(PhaseFailed, match="signal 9"):
        list(made.run(ByteReader([b"text"])))
    timer.join()
    made.cancel()


def test_a_command_that_starts_after_the_cancel_is_ended_at_once() -> None:
    made = command("sleep 600")
    made.cancel()
    with pytest.raises(PhaseFailed, match="signal 9"):
        list(made.run(ByteReader([b"text"])))


def test_an_error_of_the_input_kills_the_command() -> None:
    def broken() -> Iterator[bytes]:
        yield b"text"
        raise PhaseFailed(reason="no more")

    with pytest.raises(PhaseFailed, match="no more"):
        list(command("cat").run(ByteReader(broken())))


def test_no_command_is_refused() -> None:
    with pytest.raises(LoadRefused, match="empty"):
        command(" ")
