"""`snowmelt kafka` says what it loaded, and refuses what means nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from fixtures.kafka import Broker

if TYPE_CHECKING:
    from unit.cli.conftest import Finished


pytestmark = pytest.mark.slow


def test_a_frame_is_loaded_and_the_next_one_finds_nothing_new(
    kafka: Broker, snowmelt: Callable[..., Finished]
) -> None:
    topic = kafka.topic("cli", [json.dumps({"n": n}).encode() for n in (1, 2)] + [b"broken"])
    snowmelt("sql", "CREATE DATABASE d; CREATE TABLE d.public.t (n INT)")
    command = ["kafka", "--topic", topic, "--table", "d.public.t", "--brokers", kafka.brokers]
    command += ["--rejects", "d.public.r", "--once"]
    first = snowmelt(*command)
    assert first.returncode == 0, first.stderr
    assert "D.PUBLIC.T: 2 rows" in first.stdout
    assert "1 record rejected, D.PUBLIC.R" in first.stderr
    second = snowmelt(*command)
    assert (second.returncode, second.stdout) == (0, "")


def test_a_topic_that_does_not_exist_is_named(
    kafka: Broker, snowmelt: Callable[..., Finished]
) -> None:
    snowmelt("sql", "CREATE DATABASE d; CREATE TABLE d.public.t (n INT)")
    done = snowmelt(
        *("kafka", "--topic", "nowhere", "--table", "d.public.t", "--brokers", kafka.brokers)
    )
    assert done.returncode != 0
    assert "topic nowhere" in done.stderr


def test_an_option_of_the_other_mode_is_refused(snowmelt: Callable[..., Finished]) -> None:
    command = ("kafka", "--topic", "t", "--table", "d.public.t")
    for options, expected in (
        (("--stream", "--once"), "--once is not supported with --stream"),
        (("--stream", "--filter", "f()"), "--filter is not supported with --stream"),
        (("--errors", "e"), "--errors is not supported without --stream"),
        (("--url", "http://127.0.0.1:1"), "--url is not supported without --stream"),
    ):
        done = snowmelt(*command, *options)
        assert (done.returncode, done.stdout) == (1, ""), done.stderr
        assert expected in done.stderr


def test_a_frame_takes_time(snowmelt: Callable[..., Finished]) -> None:
    done = snowmelt("kafka", "--topic", "t", "--table", "d.public.t", "--frame", "0")
    assert done.returncode != 0
    assert "expected --frame above 0 s" in done.stderr
