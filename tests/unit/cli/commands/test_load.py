"""`snowmelt load check` over files of user code."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from unit.cli.conftest import Finished

FLAT = '''
"""Flattens lines of JSON, a byte at a time; of a line that is cut, it forgets what it has."""
import json
import vertica_sdk
from helping import plain


class Flat(vertica_sdk.UDFilter):
    def process(self, srvInterface, inputbuffer, inputstate, outputbuffer):
        line = b""
        while byte := inputbuffer.read(1):
            line += byte
            if byte == b"\\n":
                outputbuffer.write(json.dumps(plain(json.loads(line))).encode())
                line = b""
        last = inputstate == vertica_sdk.InputState.END_OF_FILE
        return vertica_sdk.StreamState.DONE if last else vertica_sdk.StreamState.INPUT_NEEDED


class FlatFactory(vertica_sdk.FilterFactory):
    def prepare(self, srvInterface, planContext):
        return Flat()
'''
HELPING = "def plain(record): return {k: v for k, v in record.items() if v is not None}\n"


@pytest.fixture
def flat(tmp_path: Path) -> None:
    (tmp_path / "flat.py").write_text(FLAT)
    (tmp_path / "helping.py").write_text(HELPING)
    (tmp_path / "lines.json").write_bytes(b'{"a": 1, "b": null}\n{"a": 2}\n')


@pytest.mark.slow
def test_a_filter_that_depends_on_chunks_is_shown_with_the_place(
    snowmelt: Callable[..., Finished], flat: None
) -> None:
    done = snowmelt("load", "check", "flat.py", "--input", "lines.json")
    assert done.returncode == 1, done.stderr
    assert (
        'pieces of 1 bytes, a new object: expected b\'{"a": 1}{"a": 2}\', got an error: '
        in done.stdout
    )
    assert "(flat/flat.py, line 14)" in done.stdout
    assert done.stdout.endswith("FlatFactory: the output DIFFERS.\n")


@pytest.mark.slow
def test_with_the_whole_input_it_passes(snowmelt: Callable[..., Finished], flat: None) -> None:
    done = snowmelt(
        "load", "check", "flat.py", "--input", "lines.json", "-p", "whole_input=true"
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("FlatFactory: the output is always the same.\n")


def test_samples_are_used_where_no_input_is_given(
    snowmelt: Callable[..., Finished], tmp_path: Path
) -> None:
    (tmp_path / "up.py").write_text("def up(data, *, times: int = 1): return data.upper() * times")
    done = snowmelt("load", "check", "up.py", "-p", "times=2")
    assert done.returncode == 0, done.stderr
    assert "every byte: " in done.stdout
    assert "1,024 bytes" in done.stdout


def test_a_filter_that_refuses_everything_is_not_praised(
    snowmelt: Callable[..., Finished], tmp_path: Path
) -> None:
    (tmp_path / "bad.py").write_text("def bad(data): raise ValueError('no')")
    (tmp_path / "a.txt").write_text("a")
    done = snowmelt("load", "check", "bad.py", "--input", "a.txt")
    assert done.returncode == 1
    assert done.stdout.endswith(
        "bad: it rejects all inputs, so its output could not be compared.\n"
    )


def test_what_cannot_be_checked_is_said_in_a_sentence(
    snowmelt: Callable[..., Finished], flat: None, tmp_path: Path
) -> None:
    (tmp_path / "two.py").write_text("def a(d): return d\ndef b(d): return d\n")
    for arguments, reason in (
        (("two.py",), "two has a, b. Specify one with --factory."),
        (("two.py", "--factory", "c"), "Library two: c not found. Defined names: a, b"),
        (("flat.py", "-p", "x"), "Invalid -p 'x'. Expected name=value."),
        (
            ("flat.py", "-p", "chunk_bytes=x"),
            "Invalid -p chunk_bytes='x': expected a value of type int.",
        ),
        (("none.py",), "none.py: No such file or directory."),
    ):
        done = snowmelt("load", "check", *arguments)
        assert done.returncode == 1
        assert reason in done.stderr
