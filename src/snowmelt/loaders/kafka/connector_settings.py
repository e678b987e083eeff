"""Settings of a connector: names of Snowmelt, of Snowflake's connector and of Kafka Connect.

A setting without a meaning in Snowmelt is rejected with an error that names it. Settings in
`WITHOUT_EFFECT` are ignored.
"""

from __future__ import annotations

import datetime as dt
import difflib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from snowmelt.errors import ConfigurationError
from snowmelt.loaders.kafka.stream_options import (
    KafkaConnectorOptions,
    MessageFormat,
    MetadataOptions,
    RegistryOptions,
)

# Settings of Snowflake's connector and of Kafka Connect without effect, with the reason.
WITHOUT_EFFECT = {
    "connector.class": "there is one kind of connector",
    "tasks.max": "members of a group share the partitions: start more processes",
    "snowflake.streaming.enable.single.buffer": "there is one buffer per partition",
    "snowflake.streaming.max.client.lag": "`buffer.flush.time` limits the time before a flush",
    "snowflake.streaming.max.memory.limit.bytes": "the client limits its memory",
    "snowflake.streaming.closeChannelsInParallel.enabled": "channels are closed in one request",
    "snowflake.authenticator": "keys authenticate",
    "enable.streaming.client.optimization": "one client serves all partitions",
    "enable.streaming.channel.offset.migration": "names of channels do not change",
    "errors.log.enable": "rejected messages are always reported",
    "errors.log.include.messages": "`--errors FILE` writes the messages",
    "errors.deadletterqueue.topic.replication.factor": "the connector does not create the topic: create it, or let the brokers create it",
    "errors.deadletterqueue.context.headers.enable": "dead letters always have these headers",
    "errors.retry.timeout": "unavailable systems are awaited",
    "errors.retry.delay.max.ms": "unavailable systems are awaited",
    "jmx": "metrics are those of the supervisor",
    "provider": "it names a host of Kafka",
    "value.converter.schemas.enable": "JSON with schemas is not read",
    "key.converter.schemas.enable": "JSON with schemas is not read",
}
_FORMATS_BY_CONVERTER = {
    "org.apache.kafka.connect.storage.StringConverter": MessageFormat.STRING,
    "org.apache.kafka.connect.json.JsonConverter": MessageFormat.JSON,
    "org.apache.kafka.connect.converters.ByteArrayConverter": MessageFormat.BYTES,
    "io.confluent.connect.avro.AvroConverter": MessageFormat.AVRO,
    "io.confluent.connect.protobuf.ProtobufConverter": MessageFormat.PROTOBUF,
    "com.snowflake.kafka.connector.records.SnowflakeJsonConverter": MessageFormat.JSON,
    "com.snowflake.kafka.connector.records.SnowflakeAvroConverter": MessageFormat.AVRO,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceLogin:
    """Address of the service and credentials; None for the defaults of the profile."""

    url: str | None = None
    user: str | None = None
    private_key: str | None = None
    role: str | None = None
    ca_file: str | None = None
    profile: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorSettings:
    """All settings of one connector. `ignored` are names without effect."""

    options: KafkaConnectorOptions
    brokers: str = "localhost:9092"
    group: str = "snowmelt"
    librdkafka: Mapping[str, object]
    login: ServiceLogin = ServiceLogin()
    ignored: tuple[str, ...] = ()


class _Setting(NamedTuple):
    """A setting: part (`options`, `login`, …), field, and parser of its value."""

    part: str
    field: str
    parse: Callable[[str, object], object]


def parse_connector_settings(
    given: Mapping[str, object], *, name: str = "snowmelt"
) -> ConnectorSettings:
    """Return the settings of a connector.

    Args:
        given: Values by name; later names override earlier ones with the same meaning.
        name: Name of the connector if `given` has no setting `name`.

    Raises:
        ConfigurationError: If a name is unknown, a value is invalid, or `topics` is missing.
    """
    parts: dict[str, dict[str, Any]] = {
        each: {} for each in ("options", "metadata", "registry", "login", "connection", "method")
    }
    ignored = []
    parts["options"]["name"] = name
    for key, value in given.items():
        if key in WITHOUT_EFFECT:
            ignored.append(key)
            continue
        setting = _SETTINGS.get(key)
        if setting is None:
            raise _make_unknown_error(key)
        parts[setting.part][setting.field] = setting.parse(key, value)
    _check_one_registry(given)
    login = _complete_login(parts["login"])
    options = parts["options"]
    location = [options.pop(each, "") for each in ("database", "schema")]
    if any(location):
        options["location"] = ".".join(each or "PUBLIC" for each in location)
    if "is_schematized" in options:
        _apply_schematization(options)
    if not options.get("topics"):
        raise ConfigurationError(setting="topics", reason="name at least one topic")
    connector = KafkaConnectorOptions(
        **options,
        metadata=replace(MetadataOptions(), **parts["metadata"]),
        registry=replace(RegistryOptions(), **parts["registry"]),
    )
    for topic in connector.topics:
        connector.find_table(topic)
    connection = {"librdkafka": {}, **parts["connection"]}
    return ConnectorSettings(options=connector, login=login, ignored=tuple(ignored), **connection)


def _check_one_registry(given: Mapping[str, object]) -> None:
    for name in ("schema.registry.url", "basic.auth.user.info"):
        key, value = f"key.converter.{name}", f"value.converter.{name}"
        if key in given and value in given and given[key] != given[value]:
            reason = f"keys and values use one schema registry, expected the value of {value}"
            raise ConfigurationError(setting=key, reason=reason)


def read_settings_file(path: Path) -> dict[str, object]:
    """Return the settings in a file of Kafka Connect: Java properties, or JSON with a `config`.

    Raises:
        ConfigurationError: If the file cannot be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix != ".json":
            return dict(_read_properties(text))
        found = json.loads(text)
        config = found.get("config", found)
        return (
            {"name": found["name"], **config} if "config" in found and "name" in found else config
        )
    except (OSError, ValueError, AttributeError) as error:
        raise ConfigurationError(setting=str(path), reason=f"cannot read it: {error}") from error


def _read_properties(text: str) -> Iterator[tuple[str, str]]:
    lines = iter(text.splitlines())
    for line in lines:
        joined = line.strip()
        while joined.endswith("\\"):
            joined = joined[:-1] + next(lines, "").strip()
        if not joined or joined[0] in "#!":
            continue
        name, separator, value = joined.partition("=")
        if not separator:
            name, separator, value = joined.partition(":")
        yield name.strip(), value.strip()


def _complete_login(login: dict[str, Any]) -> ServiceLogin:
    url = login.get("url")
    if url is not None and "://" not in url:
        login["url"] = f"https://{url}"
    return ServiceLogin(**login)


def _apply_schematization(options: dict[str, Any]) -> None:
    """Unless schematization is on, load each value as one document into RECORD_CONTENT.

    Messages without a value then become rows.
    """
    if not options.pop("is_schematized"):
        options.setdefault("content_column", "RECORD_CONTENT")
        options.setdefault("tombstones", "row")


def _make_unknown_error(key: str) -> ConfigurationError:
    near = difflib.get_close_matches(key, _SETTINGS, 1)
    hint = f" Did you mean {near[0]}?" if near else ""
    reason = f"unknown setting.{hint} Remove it, or set consumer settings with `librdkafka`"
    return ConfigurationError(setting=key, reason=reason)


def _text(_: str, value: object) -> str:
    return str(value)


def _flag(key: str, value: object) -> bool:
    words = {"true": True, "yes": True, "false": False, "no": False}
    found = value if isinstance(value, bool) else words.get(str(value).lower())
    if found is None:
        raise ConfigurationError(setting=key, reason=f"expected true or false, got {value!r}")
    return found


def _number(kind: type[int] | type[float]) -> Callable[[str, object], float]:
    def parse(key: str, value: object) -> float:
        try:
            number = kind(str(value))
        except ValueError:
            number = -1
        if number < 0:
            raise ConfigurationError(setting=key, reason=f"expected a number, got {value!r}")
        return number

    return parse


def _choice(**choices: object) -> Callable[[str, object], object]:
    def parse(key: str, value: object) -> object:
        word = str(value).lower()
        if word not in choices:
            names = ", ".join(choices)
            raise ConfigurationError(setting=key, reason=f"expected one of {names}, got {value!r}")
        return choices[word]

    return parse


def _words(_: str, value: object) -> tuple[str, ...]:
    found = value if isinstance(value, list | tuple) else str(value).split(",")
    return tuple(dict.fromkeys(str(each).strip() for each in found if str(each).strip()))


def _topic_tables(key: str, value: object) -> tuple[tuple[str, str], ...]:
    if isinstance(value, Mapping):
        return tuple((str(topic), str(table)) for topic, table in value.items())
    pairs = [each.rpartition(":")[::2] for each in _words(key, value)]
    for topic, table in pairs:
        if not topic.strip() or not table.strip():
            reason = f"expected topic:table pairs separated by commas, got {value!r}"
            raise ConfigurationError(setting=key, reason=reason)
    return tuple((topic.strip(), table.strip()) for topic, table in pairs)


def _format(key: str, value: object) -> MessageFormat:
    word = str(value)
    found = _FORMATS_BY_CONVERTER.get(word)
    if found is None:
        choices = {each.value: each for each in MessageFormat}
        if word not in choices:
            known = ", ".join((*choices, *_FORMATS_BY_CONVERTER))
            raise ConfigurationError(setting=key, reason=f"expected one of {known}, got {word!r}")
        found = choices[word]
    return found


def _time(key: str, value: object) -> dt.datetime:
    try:
        found = value if isinstance(value, dt.datetime) else dt.datetime.fromisoformat(str(value))
    except ValueError:
        reason = f"expected a time such as 2026-11-24T08:00:00Z, got {value!r}"
        raise ConfigurationError(setting=key, reason=reason) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=dt.UTC)


def _librdkafka(key: str, value: object) -> dict[str, object]:
    if isinstance(value, Mapping):
        return dict(value)
    from snowmelt.load.kafka.connection import parse_librdkafka_settings

    return parse_librdkafka_settings(str(value), strict=True, parameter=key)


def _method(key: str, value: object) -> None:
    if str(value).upper() != "SNOWPIPE_STREAMING":
        reason = "rows are streamed: expected SNOWPIPE_STREAMING. `snowmelt kafka` without --stream loads in frames"
        raise ConfigurationError(setting=key, reason=reason)


def _owned(parse: _Setting, *names: str) -> dict[str, _Setting]:
    return dict.fromkeys(names, parse)


_SETTINGS: dict[str, _Setting] = {
    **_owned(_Setting("options", "name", _text), "name"),
    **_owned(_Setting("options", "topics", _words), "topics"),
    **_owned(_Setting("options", "table", _text), "table"),
    **_owned(
        _Setting("options", "topic_tables", _topic_tables),
        *("topic_tables", "snowflake.topic2table.map"),
    ),
    **_owned(_Setting("options", "database", _text), "database", "snowflake.database.name"),
    **_owned(_Setting("options", "schema", _text), "schema", "snowflake.schema.name"),
    **_owned(_Setting("options", "evolve", _flag), "evolve"),
    **_owned(_Setting("options", "is_schematized", _flag), "snowflake.enable.schematization"),
    **_owned(_Setting("options", "content_column", _text), "content_column"),
    **_owned(_Setting("options", "key_column", _text), "key_column"),
    **_owned(_Setting("options", "key_format", _format), "key_format", "key.converter"),
    **_owned(_Setting("options", "value_format", _format), "value_format", "value.converter"),
    **_owned(_Setting("options", "change_events", _choice(debezium="debezium")), "change_events"),
    **_owned(_Setting("options", "tombstones", _choice(ignore="ignore", row="row")), "tombstones"),
    **_owned(
        _Setting("options", "tombstones", _choice(ignore="ignore", default="row")),
        "behavior.on.null.values",
    ),
    **_owned(
        _Setting("options", "tolerates_errors", _choice(all=True, none=False)),
        *("errors_tolerance", "errors.tolerance"),
    ),
    **_owned(
        _Setting("options", "dead_letter_topic", _text),
        *("dead_letter_topic", "errors.deadletterqueue.topic.name"),
    ),
    **_owned(_Setting("options", "start_time", _time), "from_time"),
    **_owned(_Setting("options", "on_gap", _choice(report="report", fail="fail")), "on_gap"),
    **_owned(
        _Setting("options", "on_new_source", _choice(fail="fail", restart="restart")),
        "on_new_source",
    ),
    **_owned(_Setting("options", "uses_group", _flag), "share_partitions"),
    **_owned(_Setting("options", "lag_report_seconds", _number(float)), "lag_report_seconds"),
    **_owned(
        _Setting("options", "buffer_seconds", _number(float)),
        *("buffer_seconds", "buffer.flush.time"),
    ),
    **_owned(
        _Setting("options", "buffer_rows", _number(int)), "buffer_rows", "buffer.count.records"
    ),
    **_owned(
        _Setting("options", "buffer_bytes", _number(int)), "buffer_bytes", "buffer.size.bytes"
    ),
    **_owned(_Setting("metadata", "is_enabled", _flag), "metadata", "snowflake.metadata.all"),
    **_owned(_Setting("metadata", "has_topic", _flag), "snowflake.metadata.topic"),
    **_owned(
        _Setting("metadata", "has_position", _flag), "snowflake.metadata.offset.and.partition"
    ),
    **_owned(_Setting("metadata", "has_timestamp", _flag), "snowflake.metadata.createtime"),
    **_owned(
        _Setting("metadata", "has_push_time", _flag),
        "snowflake.streaming.metadata.connectorPushTime",
    ),
    **_owned(
        _Setting("registry", "url", _text),
        *("registry_url", "schema.registry.url"),
        *("value.converter.schema.registry.url", "key.converter.schema.registry.url"),
    ),
    **_owned(
        _Setting("registry", "user", _text),
        *("registry_user", "value.converter.basic.auth.user.info"),
        "key.converter.basic.auth.user.info",
    ),
    **_owned(_Setting("registry", "ca_file", _text), "registry_ca_file"),
    **_owned(_Setting("login", "url", _text), "url", "snowflake.url.name"),
    **_owned(_Setting("login", "user", _text), "user", "snowflake.user.name"),
    **_owned(_Setting("login", "private_key", _text), "private_key", "snowflake.private.key"),
    **_owned(_Setting("login", "role", _text), "role", "snowflake.role.name"),
    **_owned(_Setting("login", "ca_file", _text), "ca_file"),
    **_owned(_Setting("login", "profile", _text), "profile"),
    **_owned(_Setting("connection", "brokers", _text), "brokers", "bootstrap.servers"),
    **_owned(_Setting("connection", "group", _text), "group", "group.id"),
    **_owned(_Setting("connection", "librdkafka", _librdkafka), "librdkafka"),
    "snowflake.ingestion.method": _Setting("method", "method", _method),
}
