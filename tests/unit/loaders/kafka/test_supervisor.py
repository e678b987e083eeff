"""The file of a supervisor, and restarts of its connectors."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from snowmelt.clock import SystemClock
from snowmelt.errors import ConfigurationError
from snowmelt.loaders.kafka.supervisor import (
    KafkaSupervisor,
    read_supervisor_settings,
    serving_metrics,
)

FILE = """
[defaults]
brokers = "kafka:9092"
table = "d.public.t"

[connectors.a]
topics = ["one"]

[connectors.b]
topics = ["two", "three"]
table = "d.public.u"
evolve = true
lag_report_seconds = 0
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "connectors.toml"


def test_defaults_are_those_of_each_connector(file: Path) -> None:
    file.write_text(FILE)
    first, second = read_supervisor_settings(file).connectors
    assert (first.options.name, first.group, first.brokers) == ("a", "snowmelt-a", "kafka:9092")
    assert (first.options.find_table("one"), first.options.evolve) == ("d.public.t", False)
    assert (second.options.find_table("two"), second.options.evolve) == ("d.public.u", True)
    assert (first.options.lag_report_seconds, second.options.lag_report_seconds) == (10, 0)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has no connector"),
        ("connector = 1", "Setting connector: expected one of metrics, defaults, connectors"),
        ("[connectors]\na = 1", "Setting a: expected a section, got 1"),
        ("[connectors.a]\ntopic = 't'", r"Setting connectors\.a\.topic: .*topics"),
        (f"metrics = 'x'\n{FILE}", "expected host:port, got 'x'"),
        (FILE.replace('"one"', '"two"').replace("d.public.u", "d.public.T"), "a and b both stream topic two"),
        ("[", "cannot read it"),
    ],
)  # fmt: skip
def test_an_invalid_file_is_rejected_with_the_setting(file: Path, text: str, reason: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=reason):
        read_supervisor_settings(file)


def test_a_port_in_use_is_an_error_of_the_setting(file: Path) -> None:
    file.write_text(FILE)
    supervisor = KafkaSupervisor(read_supervisor_settings(file), _make_nothing, SystemClock())
    with (
        serving_metrics("127.0.0.1:0", supervisor) as port,
        pytest.raises(ConfigurationError, match="in use"),
        serving_metrics(f"127.0.0.1:{port}", supervisor),
    ):
        raise AssertionError


def _make_nothing(*_: object) -> Any:
    raise OSError("no connector can be made")


def test_a_failure_while_a_connector_is_made_is_kept_and_retried(file: Path) -> None:
    file.write_text(FILE)
    stop = threading.Event()
    supervisor = KafkaSupervisor(read_supervisor_settings(file), _make_nothing, SystemClock())
    running = threading.Thread(target=supervisor.run, args=(stop,))
    running.start()
    while any(each.failure is None for each in supervisor.statuses):
        stop.wait(0.01)
    stop.set()
    running.join()
    assert {each.failure for each in supervisor.statuses} == {"no connector can be made"}
    assert not any(each.is_running for each in supervisor.statuses)


def test_the_file_in_the_documentation_is_valid(file: Path) -> None:
    page = Path(__file__).parents[4] / "docs" / "how-to" / "run-kafka-connectors.md"
    file.write_text(page.read_text().partition("```toml\n")[2].partition("```")[0])
    settings = read_supervisor_settings(file)
    assert settings.metrics == "127.0.0.1:9188"
    clicks, logs = settings.connectors
    assert clicks.options.find_table("clicks") == "demo.public.clicks"
    assert logs.options.find_table("app.logs") == "demo.public.app"
