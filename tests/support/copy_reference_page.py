"""Generates docs/reference/copy.md's tables of sources, filters and parsers with their parameters."""

from __future__ import annotations

import dataclasses
import datetime as dt
import inspect
from importlib import import_module

from snowmelt.load import filters, parsers, sources
from snowmelt.load.kafka.source import KafkaSourceOptions
from snowmelt.load.phase_definition import PhaseDefinition, PhaseParameter

_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", dt.timedelta: "interval"}

PURPOSES = {
    "source": {
        "File": "Reads files; `FROM '<path>'` is the usual form.",
        "Stdin": "Reads the standard input of the process that runs the statement; `FROM STDIN` is the usual form.",
        "Url": "Reads one URL.",
        "KafkaSource": "Reads messages of Kafka partitions. The offsets are committed with the rows. [Kafka](../how-to/stream-from-kafka.md)",
    },
    "filter": {
        "GZip": "Decompresses gzip, with one or more members.",
        "BZip": "Decompresses bzip2, with one or more streams. Synonym: `BZip2`.",
        "Zstd": "Decompresses Zstandard, with one or more frames. Synonym: `Zstandard`.",
        "Lz4": "Decompresses LZ4 frames.",
        "Xz": "Decompresses xz, with one or more streams.",
        "Iconverter": "Converts text from one encoding to another.",
        "StripBom": "Removes the byte order mark of UTF-8.",
        "SearchAndReplace": "Replaces a literal string.",
        "LineEndings": "Converts all line ends to one form.",
        "ExternalCommand": "Runs a shell command on the bytes. An exit status other than 0, or output to stderr, fails the load.",
        "KafkaInsertDelimiters": "Joins messages with a delimiter. Must be the first filter.",
        "KafkaInsertLengths": "Puts the length of each message before it. Must be the first filter.",
    },
    "parser": {
        "DELIMITED": "Delimited text; the default. Its parameters are also options of the statement.",
        "FDELIMITEDPARSER": "Delimited text with a header; columns match by name.",
        "FCSVPARSER": "CSV of RFC 4180 with a header; columns match by name. Synonym: `CSV`.",
        "COPYINTOCSV": "Delimited text as [COPY INTO](copy-into.md) describes it.",
        "FJSONPARSER": "JSON objects. A value that does not fit its column becomes NULL.",
        "KAFKAJSONPARSER": "One JSON object in each message. A value that does not fit its column becomes NULL.",
        "JSON": "JSON objects. A value that does not fit its column rejects the record.",
        "FAVROPARSER": "Avro files. A value that does not fit its column becomes NULL.",
        "KAFKAAVROPARSER": "One Avro record in each message.",
        "AVRO": "Avro files. A value that does not fit its column rejects the record.",
        "ORC": "ORC files. Columns match by name, case-insensitively. A missing column gets its default.",
        "PARQUET": "Parquet files. Columns match by name, case-insensitively. A missing column gets its default.",
        "FIXEDWIDTH": "Fields of fixed width. Synonym: `FIXED`.",
        "FREGEXPARSER": "Records that a regular expression with named groups matches. Synonym: `REGEX`.",
        "FDELIMITEDPAIRPARSER": "Records of key-value pairs. Synonym: `PAIRS`.",
        "KAFKAPARSER": "Each message as the value of one column.",
    },
}  # fmt: skip

_EFFECTS = {
    "assignment": "character between key and value",
    "brokers": "broker addresses, separated by commas",
    "cmd": "command for `/bin/sh -c`",
    "codec": "no effect; the file names its codec",
    "collection_close": "end of an array",
    "collection_delimiter": "separator of array elements",
    "collection_enclose": "quote of array elements",
    "collection_null_element": "NULL in an array",
    "collection_open": "start of an array",
    "colsizes": "bytes of each column, separated by commas",
    "delimiter": "separator of fields, one ASCII character",
    "duration": "time after which a portion ends",
    "empty_is_null": "an empty field without quotes is NULL",
    "enclosed_by": "quote, one ASCII character",
    "enforce_length": "reject texts that are too long instead of truncating them",
    "eof_timeout": "time without messages after which a portion ends",
    "escape": "escape character",
    "executionparallelism": "number of portions that share the partitions",
    "external_schema": "Avro schema of the messages, as JSON",
    "fail_on_conf_parse_error": "reject settings that cannot be parsed",
    "file": "path or glob",
    "flatten_arrays": "fill columns such as `a.0` from array elements",
    "flatten_maps": "fill columns such as `a.b` from nested objects",
    "from_encoding": "encoding of the input",
    "group_id": "consumer group",
    "header": "the first record holds the column names",
    "kafka_conf": "settings of librdkafka: `name=value;…` or a JSON object",
    "kafka_conf_secret": "secret settings of librdkafka, which messages and views do not show",
    "kafka_topic_conf": "settings of librdkafka for topics: `name=value;…` or a JSON object",
    "key_separator": "separator in names such as `a.b`",
    "logline_column": "column that receives the whole record",
    "max_output": "maximum output in bytes",
    "max_record": "maximum length of a record in bytes; 0 means 32 MiB",
    "mode": "`append`: a delimiter after each message; `between`: only between messages",
    "no_escape": "no character is an escape",
    "node": "value of the variable CURRENT_NODE_NAME",
    "null": "string that means NULL",
    "null_if": "strings that mean NULL without quotes, as a JSON array",
    "omit_empty_keys": "ignore empty keys",
    "on_gap": "`report` or `fail`: messages that retention removed",
    "pattern": "string to search, or regular expression",
    "record_terminator": "end of a record; empty means LF or CRLF",
    "reject_on_duplicate": "reject objects with duplicate keys",
    "reject_on_empty_key": "reject objects with an empty key",
    "reject_on_materialized_type_error": "reject records with a value that does not fit its column",
    "replace_with": "replacement",
    "schema_registry_url": "URL of the schema registry",
    "skip": "records to skip at the start of each file",
    "skip_bytes": "bytes to skip at the start of each file",
    "spool": "path of a saved input",
    "start_point": "key whose value holds the records",
    "start_point_occurrence": "number of the occurrence of `start_point` to use, from 1",
    "stop_on_eof": "end at the current end of the partitions",
    "stream": "`topic|partition|start[|end]`, separated by commas; partition `*` means all; start -2 is the earliest offset, -3 the end of the last load",
    "suppress_nonalphanumeric_key_chars": "replace other characters of keys by `_`",
    "to": "`LF`, `CRLF` or `CR`",
    "to_encoding": "encoding of the output",
    "trailing_nullcols": "fill short records with NULL",
    "treat_empty_val_as_null": "an empty value is NULL",
    "trim": "remove blanks (boolean), or this character (string), at both ends of values",
    "type": "`rfc4180` or `traditional`",
    "url": "HTTP, HTTPS, s3, gs or az URL",
    "use_jit": "no effect",
    "use_utf8": "no effect",
    "with_metadata": "each message is an Avro file with its schema",
    "zero_length": "`skip` or `keep`: messages without content",
}  # fmt: skip
# Effect of a parameter that only one function has.
_OWN_EFFECTS = {
    ("KafkaInsertDelimiters", "delimiter"): "string to insert",
    ("FDELIMITEDPAIRPARSER", "delimiter"): "character between pairs",
    ("SearchAndReplace", "pattern"): "string to search, at most 1,000 bytes",
    ("FREGEXPARSER", "pattern"): "regular expression with named groups, one for each column",
    ("FIXEDWIDTH", "null"): "character that fills a NULL field; empty means a blank",
    ("FIXEDWIDTH", "trim"): "character to remove at both ends of values",
}


def table() -> str:
    """Return the generated part of the page."""
    parts: list[str] = []
    for kind, package in (("source", sources), ("filter", filters), ("parser", parsers)):
        parts += [f"## {kind.capitalize()}s", ""]
        for name in PURPOSES[kind]:
            definition = package.definition(name)
            assert definition is not None, name
            parts += [f"### {name}", "", PURPOSES[kind][name], ""]
            if not definition.parameters:
                parts += ["It has no parameters.", ""]
                continue
            parts += ["| Parameter | Type | Default | Effect |", "| --- | --- | --- | --- |"]
            defaults = _defaults(kind, name, definition)
            parts += [_row(name, each, defaults) for each in definition.parameters]
            parts.append("")
    return "\n".join(parts)


def effect_names() -> set[str]:
    """Return the parameters that have a description."""
    return set(_EFFECTS)


def _row(name: str, parameter: PhaseParameter, defaults: dict[str, object]) -> str:
    effect = _OWN_EFFECTS.get((name, parameter.name), _EFFECTS[parameter.name])
    default = "required" if parameter.required else _display(defaults.get(parameter.name))
    cells = (f"`{parameter.name}`", _TYPES[parameter.kind], default, effect.replace("|", "\\|"))
    return f"| {' | '.join(cells)} |"


def _display(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).upper()
    if value == "":
        return "empty"
    return f"`{value!r}`".replace("|", "\\|") if isinstance(value, str) else f"{value:,}"


def _defaults(kind: str, name: str, definition: PhaseDefinition[object]) -> dict[str, object]:
    """Return the defaults of a function's parameters, from its options class or its constructor."""
    if kind == "parser":
        module, options, _ = parsers._PARSER_LOCATIONS[name]
        options_class = getattr(import_module(f"snowmelt.load.parsers.{module}"), options)
    elif name == "KafkaSource":
        options_class = KafkaSourceOptions
    else:
        found = inspect.signature(definition.make).parameters.values()
        return {each.name: each.default for each in found if each.default is not each.empty}
    fields = dataclasses.fields(options_class)
    return {each.name: each.default for each in fields if each.default is not dataclasses.MISSING}
