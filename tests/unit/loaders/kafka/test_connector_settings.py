"""Settings of connectors, by our names and by those of Snowflake's connector."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from snowmelt.errors import ConfigurationError
from snowmelt.loaders.kafka.connector_settings import parse_connector_settings, read_settings_file
from snowmelt.loaders.kafka.stream_options import MessageFormat

SNOWFLAKE = """\
# As in the documentation of the connector
name=XYZCompanySensorData
connector.class=com.snowflake.kafka.connector.SnowflakeSinkConnector
tasks.max=8
topics=topic1,topic2
snowflake.topic2table.map= topic1:table1,topic2:table2
buffer.count.records=10000
buffer.flush.time=60
buffer.size.bytes=5000000
snowflake.url.name=myorganization-myaccount.example.com:443
snowflake.user.name=jane.smith
snowflake.private.key=xyz123\\
    xyz456
snowflake.database.name=mydb
snowflake.schema.name=myschema
snowflake.ingestion.method=SNOWPIPE_STREAMING
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=com.snowflake.kafka.connector.records.SnowflakeJsonConverter
errors.tolerance=none
behavior.on.null.values=IGNORE
"""


def test_a_file_of_the_original_connector_is_read(tmp_path: Path) -> None:
    file = tmp_path / "connect.properties"
    file.write_text(SNOWFLAKE)
    found = parse_connector_settings(read_settings_file(file))
    options = found.options
    assert (options.name, options.topics) == ("XYZCompanySensorData", ("topic1", "topic2"))
    assert [options.find_table(each) for each in options.topics] == [
        "mydb.myschema.table1",
        "mydb.myschema.table2",
    ]
    assert (options.buffer_rows, options.buffer_seconds) == (10_000, 60)
    assert found.login.url == "https://myorganization-myaccount.example.com:443"
    assert found.login.private_key == "xyz123xyz456"
    assert not options.tolerates_errors
    assert options.tombstones == "ignore"
    assert found.ignored == ("connector.class", "tasks.max")
    as_json = tmp_path / "connect.json"
    config = {key: value for key, value in read_settings_file(file).items() if key != "name"}
    as_json.write_text(json.dumps({"name": "XYZCompanySensorData", "config": config}))
    assert parse_connector_settings(read_settings_file(as_json)) == found


def test_without_schematization_values_are_documents() -> None:
    given = {"topics": "t", "table": "d.s.t", "snowflake.enable.schematization": "false"}
    options = parse_connector_settings(given).options
    assert (options.content_column, options.tombstones) == ("RECORD_CONTENT", "row")


def test_topics_without_a_map_are_names_of_tables() -> None:
    given: dict[str, Any] = {"topics": ["clicks", "web.logs"], "database": "d", "schema": "s"}
    with pytest.raises(ConfigurationError, match=r"topic web\.logs has no table"):
        parse_connector_settings(given)
    given["topic_tables"] = {"web.*": '"Web"."X"."logs"'}
    options = parse_connector_settings(given).options
    assert options.find_table("clicks") == "d.s.clicks"
    assert options.find_table("web.logs") == '"Web"."X"."logs"'


@pytest.mark.parametrize(
    ("setting", "value", "reason"),
    [
        ("buffer.flush.tme", "1", "Did you mean buffer.flush.time"),
        ("buffer.flush.time", "soon", "expected a number"),
        ("errors.tolerance", "some", "one of all, none"),
        ("value.converter", "org.example.Converter", "io.confluent.connect.avro.AvroConverter"),
        ("snowflake.ingestion.method", "SNOWPIPE", "expected SNOWPIPE_STREAMING"),
        ("from_time", "yesterday", "expected a time"),
        ("topic_tables", "a", "expected topic:table"),
        ("topic_tables", "[:x", "not a regular expression"),
        ("share_partitions", "maybe", "expected true or false"),
    ],
)
def test_what_means_nothing_is_rejected_by_name(setting: str, value: str, reason: str) -> None:
    given = {"topics": "t", "table": "d.s.t", setting: value}
    with pytest.raises(ConfigurationError) as rejected:
        parse_connector_settings(given)
    assert setting in str(rejected.value)
    assert reason in str(rejected.value)


def test_formats_have_the_names_of_converters() -> None:
    given = {"topics": "t", "table": "d.s.t"}
    name = "io.confluent.connect.avro.AvroConverter"
    options = parse_connector_settings({**given, "value.converter": name}).options
    assert options.value_format is MessageFormat.AVRO


def test_keys_and_values_use_one_registry() -> None:
    given = {
        "topics": "t",
        "table": "a.b.c",
        "key.converter.schema.registry.url": "http://one",
        "value.converter.schema.registry.url": "http://two",
    }
    with pytest.raises(ConfigurationError, match=r"key\.converter\.schema\.registry\.url"):
        parse_connector_settings(given)
    given["key.converter.schema.registry.url"] = "http://two"
    assert parse_connector_settings(given).options.registry.url == "http://two"
    assert parse_connector_settings({**given, "registry_url": "c"}).options.registry.url == "c"
