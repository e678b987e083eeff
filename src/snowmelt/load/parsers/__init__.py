"""Parsers by name: those of SQL and short ones of ours, in any case."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from snowmelt.load.definition import Definition

# Name: module and data class of its options. Modules load what they need when they are asked for.
_OPTIONS = {
    "DELIMITED": ("delimited_options", "DelimitedOptions"),
    "FDELIMITEDPARSER": ("delimited_options", "FlexDelimitedOptions"),
    "FCSVPARSER": ("delimited_options", "CsvOptions"),
    "FJSONPARSER": ("json_options", "FlexJsonOptions"),
    "KAFKAJSONPARSER": ("json_options", "KafkaJsonOptions"),
    "JSON": ("json_options", "JsonOptions"),
    "FAVROPARSER": ("avro_options", "AvroOptions"),
    "KAFKAAVROPARSER": ("avro_options", "KafkaAvroOptions"),
    "AVRO": ("avro_options", "StrictAvroOptions"),
    "PARQUET": ("parquet_parser", "ParquetOptions"),
    "FIXEDWIDTH": ("line_options", "FixedWidthOptions"),
    "FREGEXPARSER": ("line_options", "RegexOptions"),
    "FDELIMITEDPAIRPARSER": ("line_options", "PairsOptions"),
    "KAFKAPARSER": ("line_options", "MessageOptions"),
}
_SHORT = {
    "CSV": "FCSVPARSER",
    "FIXED": "FIXEDWIDTH",
    "REGEX": "FREGEXPARSER",
    "PAIRS": "FDELIMITEDPAIRPARSER",
}

NAMES: tuple[str, ...] = (*_OPTIONS, *_SHORT)
"""All names, for messages."""


def definition(name: str) -> Definition[Any] | None:
    """Return the parser of this name; None if there is none."""
    from snowmelt.load.parsers.options import defined

    wanted = name.upper()
    found = _OPTIONS.get(_SHORT.get(wanted, wanted))
    if found is None:
        return None
    module, options = found
    return defined(wanted, getattr(import_module(f"{__name__}.{module}"), options))
