"""Supervisor of many connectors in one process: restarts with backoff, status, metrics."""

from __future__ import annotations

import logging
import threading
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snowmelt.backoff import growing_delays_s
from snowmelt.clock import Clock
from snowmelt.errors import ConfigurationError
from snowmelt.loaders.kafka.connector_settings import ConnectorSettings, parse_connector_settings

if TYPE_CHECKING:
    from prometheus_client import Metric

    from snowmelt.loaders.kafka.connector import KafkaConnector, PartitionLag

_LOG = logging.getLogger(__name__)
_INITIAL_BACKOFF_S, _MAX_BACKOFF_S = 1.0, 60.0
# A connector that ran this long starts again with the shortest delay.
_STABLE_S = 300.0
_LAG_REPORT_INTERVAL_S = 10.0
_KEYS = ("metrics", "defaults", "connectors")


@dataclass(frozen=True, slots=True)
class SupervisorSettings:
    """Connectors, and the address of the metrics (`host:port`); empty for none."""

    connectors: tuple[ConnectorSettings, ...]
    metrics: str = ""


@dataclass(slots=True)
class ConnectorStatus:
    """Status of a connector. `failure` is the error of its last end; None if it has not failed."""

    name: str
    is_running: bool = False
    restarts: int = 0
    rejected_messages: int = 0
    failure: str | None = None
    connector: KafkaConnector | None = None

    def list_lags(self) -> list[PartitionLag]:
        """Return the progress of the partitions, without a request."""
        connector = self.connector
        return [] if connector is None else connector.list_lags()


ConnectorFactory = Callable[
    [ConnectorSettings, ConnectorStatus], AbstractContextManager["KafkaConnector"]
]


def read_supervisor_settings(path: Path) -> SupervisorSettings:
    """Return the settings in a TOML file.

    Raises:
        ConfigurationError: If the file cannot be read, a name is unknown or a value invalid, or two
            connectors stream one topic into one table.
    """
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigurationError(setting=str(path), reason=f"cannot read it: {error}") from error
    for key in found:
        if key not in _KEYS:
            reason = f"expected one of {', '.join(_KEYS)} in {path}"
            raise ConfigurationError(setting=key, reason=reason)
    defaults = _read_section(found, "defaults")
    sections = _read_section(found, "connectors")
    if not sections:
        reason = f"{path} has no connector: add a section [connectors.NAME]"
        raise ConfigurationError(setting="connectors", reason=reason)
    connectors = []
    for name in sections:
        base = {"group": f"snowmelt-{name}", "lag_report_seconds": _LAG_REPORT_INTERVAL_S}
        given = {**base, **defaults, **_read_section(sections, name)}
        try:
            connectors.append(parse_connector_settings(given, name=name))
        except ConfigurationError as error:
            raise ConfigurationError(
                setting=f"connectors.{name}.{error.fields['setting']}",
                reason=error.fields["reason"],
            ) from error
    _check_targets(connectors)
    metrics = str(found.get("metrics", ""))
    if metrics:
        parse_metrics_address(metrics)
    return SupervisorSettings(tuple(connectors), metrics)


def parse_metrics_address(text: str) -> tuple[str, int]:
    """Return host and port of `host:port`.

    Raises:
        ConfigurationError: If the text has another form.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 0xFFFF:
        raise ConfigurationError(setting="metrics", reason=f"expected host:port, got {text!r}")
    return host.strip("[]"), int(port)


def _read_section(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    section = document.get(name, {})
    if not isinstance(section, dict):
        raise ConfigurationError(setting=name, reason=f"expected a section, got {section!r}")
    return section


def _check_targets(connectors: Sequence[ConnectorSettings]) -> None:
    """Reject two connectors that stream one topic into one table, and so fence each other."""
    owners: dict[tuple[str, str], str] = {}
    for each in connectors:
        for topic in each.options.topics:
            table = each.options.find_table(topic)
            owner = owners.setdefault((topic, table.upper()), each.options.name)
            if owner != each.options.name:
                reason = (
                    f"connectors {owner} and {each.options.name} both stream topic {topic} into table"
                    f" {table}, so they would fence each other. Remove the topic from one of them"
                )
                raise ConfigurationError(setting="connectors", reason=reason)


class KafkaSupervisor:
    """Runner of connectors, each in its own thread. Restarts a failed connector after a delay.

    Args:
        settings: The connectors.
        make_connector: Returns a context manager that opens the connector and its client. Called
            for each start.
        clock: Source of time.
    """

    def __init__(
        self, settings: SupervisorSettings, make_connector: ConnectorFactory, clock: Clock
    ) -> None:
        self._connectors = settings.connectors
        self._make_connector = make_connector
        self._clock = clock
        self.statuses = [ConnectorStatus(each.options.name) for each in settings.connectors]

    def run(self, stop: threading.Event) -> None:
        """Run all connectors until `stop` is set. Then each commits the messages that it has read."""
        threads = [
            threading.Thread(target=self._keep_running, args=(each, status, stop), name=status.name)
            for each, status in zip(self._connectors, self.statuses, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _keep_running(
        self, settings: ConnectorSettings, status: ConnectorStatus, stop: threading.Event
    ) -> None:
        delays_s = growing_delays_s(_INITIAL_BACKOFF_S, _MAX_BACKOFF_S)
        while not stop.is_set():
            started_at = self._clock.monotonic()
            try:
                with self._make_connector(settings, status) as connector:
                    status.connector, status.is_running = connector, True
                    connector.run(stop)
            except Exception as error:  # noqa: BLE001 - a defect in one connector must not end others
                status.failure = str(error) or type(error).__name__
                if self._clock.monotonic() - started_at >= _STABLE_S:
                    delays_s = growing_delays_s(_INITIAL_BACKOFF_S, _MAX_BACKOFF_S)
                delay_s = next(delays_s)
                _LOG.error(
                    "Connector %s failed, next start in %.0f s: %s",
                    status.name,
                    delay_s,
                    status.failure,
                )
                status.is_running = False
                status.restarts += 1
                stop.wait(delay_s)
            finally:
                status.is_running = False


@contextmanager
def serving_metrics(address: str, supervisor: KafkaSupervisor) -> Iterator[int]:
    """Serve the metrics of a supervisor in Prometheus text format. Yield the port.

    Raises:
        ConfigurationError: If the address is invalid or in use.
    """
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.registry import Collector

    class SupervisorCollector(Collector):
        def collect(self) -> Iterator[Metric]:
            return iter(_make_metrics(supervisor.statuses))

    host, port = parse_metrics_address(address)
    registry = CollectorRegistry()
    registry.register(SupervisorCollector())
    try:
        server, thread = start_http_server(port, host, registry)
    except OSError as error:
        raise ConfigurationError(setting="metrics", reason=f"{address}: {error}") from error
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _make_metrics(statuses: Sequence[ConnectorStatus]) -> list[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    prefix, by_partition = "snowmelt_kafka", ["connector", "topic", "partition"]
    running = GaugeMetricFamily(
        f"{prefix}_connector_running", "1 if the connector runs, else 0.", labels=["connector"]
    )
    restarts = CounterMetricFamily(
        f"{prefix}_connector_restarts", "Restarts after a failure.", labels=["connector"]
    )
    rejected = CounterMetricFamily(
        f"{prefix}_rejected_messages", "Rejected messages.", labels=["connector"]
    )
    committed = GaugeMetricFamily(
        f"{prefix}_committed_offset", "Last committed offset.", labels=by_partition
    )
    end = GaugeMetricFamily(
        f"{prefix}_end_offset", "End offset of the partition.", labels=by_partition
    )
    lag = GaugeMetricFamily(
        f"{prefix}_lag_messages", "Messages that are not committed.", labels=by_partition
    )
    for status in statuses:
        running.add_metric([status.name], status.is_running)
        restarts.add_metric([status.name], status.restarts)
        rejected.add_metric([status.name], status.rejected_messages)
        for each in status.list_lags():
            labels = [status.name, each.place.topic, str(each.place.partition)]
            for metric, value in (
                (committed, each.committed_offset),
                (end, each.end_offset),
                (lag, each.lag),
            ):
                if value is not None:
                    metric.add_metric(labels, value)
    return [running, restarts, rejected, committed, end, lag]
