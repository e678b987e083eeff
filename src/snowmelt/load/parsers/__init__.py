"""Parsers by name: those of SQL and short ones of ours, in any case."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from snowmelt.load.definition import Definition

# Name: module and class of its options, and where the parser is that takes them; the class itself
# makes it where there is none. Modules load what they need when they are asked for.
_OPTIONS: dict[str, tuple[str, str, str]] = {
    "DELIMITED": ("delimited_options", "DelimitedOptions", ""),
    "FDELIMITEDPARSER": ("delimited_options", "FlexDelimitedOptions", ""),
    "FCSVPARSER": ("delimited_options", "CsvOptions", ""),
    "FJSONPARSER": ("json_options", "FlexJsonOptions", "json_parser.Json"),
    "KAFKAJSONPARSER": ("json_options", "KafkaJsonOptions", "json_parser.Json"),
    "JSON": ("json_options", "JsonOptions", "json_parser.Json"),
    "FAVROPARSER": ("avro_options", "AvroOptions", "avro_parser.Avro"),
    "KAFKAAVROPARSER": ("avro_options", "KafkaAvroOptions", "avro_parser.AvroMessages"),
    "AVRO": ("avro_options", "StrictAvroOptions", "avro_parser.Avro"),
    "PARQUET": ("parquet_parser", "ParquetOptions", ""),
    "FIXEDWIDTH": ("line_options", "FixedWidthOptions", ""),
    "FREGEXPARSER": ("line_options", "RegexOptions", ""),
    "FDELIMITEDPAIRPARSER": ("line_options", "PairsOptions", ""),
    "KAFKAPARSER": ("line_options", "MessageOptions", ""),
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
    module, options, parser = found
    chosen = getattr(import_module(f"{__name__}.{module}"), options)
    if parser:
        place, _, called = parser.partition(".")
        make = getattr(import_module(f"{__name__}.{place}"), called)
    else:
        make = chosen.parser
    return defined(wanted, chosen, make)
