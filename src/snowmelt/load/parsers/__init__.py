"""Parsers by name, in any case: Vertica's names and short names of Snowmelt.

`portion_stream`: the bytes of one portion in blocks, cut at record boundaries.
`delimited_text`: the dialect of delimited text, and the exact reader of its records.
`delimited_scanner`: the records of a block as cells of columns, by the compiled scanner.
`delimited_block_parser`: blocks of delimited text into rows and rejects.
`delimited`: the parsers DELIMITED, FDELIMITEDPARSER and FCSVPARSER.
`line_parsers`: fixed-width, regular-expression, key-value pair and whole-message parsers.
`json_document_mapping`: single JSON documents, their records and the columns of their values.
`json_columns`: JSON records in one batch, from text to columns by compiled kernels.
`json_parser`: JSON files and messages.
`record_columns`: records of typed formats into columns.
`avro`: Avro files and messages.
`parquet`: Parquet files.
`warmup`: whether compiled readers may be used yet, and their compilation.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from snowmelt.load.phase_definition import PhaseDefinition

# Name: module and class of its options, and where the parser is that takes them; the class itself
# makes it where there is none. Modules load what they need when they are asked for.
_PARSER_LOCATIONS: dict[str, tuple[str, str, str]] = {
    "DELIMITED": ("delimited", "DelimitedOptions", ""),
    "FDELIMITEDPARSER": ("delimited", "FlexDelimitedOptions", ""),
    "FCSVPARSER": ("delimited", "CsvOptions", ""),
    "FJSONPARSER": ("json_document_mapping", "FlexJsonOptions", "json_parser.JsonParser"),
    "KAFKAJSONPARSER": ("json_document_mapping", "KafkaJsonOptions", "json_parser.JsonParser"),
    "JSON": ("json_document_mapping", "JsonOptions", "json_parser.JsonParser"),
    "FAVROPARSER": ("avro", "AvroOptions", "avro.AvroParser"),
    "KAFKAAVROPARSER": ("avro", "KafkaAvroOptions", "avro.AvroMessageParser"),
    "AVRO": ("avro", "StrictAvroOptions", "avro.AvroParser"),
    "PARQUET": ("parquet", "ParquetOptions", ""),
    "FIXEDWIDTH": ("line_parsers", "FixedWidthOptions", ""),
    "FREGEXPARSER": ("line_parsers", "RegexOptions", ""),
    "FDELIMITEDPAIRPARSER": ("line_parsers", "PairsOptions", ""),
    "KAFKAPARSER": ("line_parsers", "MessageOptions", ""),
}
_SHORT_NAMES = {
    "CSV": "FCSVPARSER",
    "FIXED": "FIXEDWIDTH",
    "REGEX": "FREGEXPARSER",
    "PAIRS": "FDELIMITEDPAIRPARSER",
}

NAMES: tuple[str, ...] = (*_PARSER_LOCATIONS, *_SHORT_NAMES)
"""All names, for messages."""


def definition(name: str) -> PhaseDefinition[Any] | None:
    """Return the parser of this name; None if there is none."""
    from snowmelt.load.phase_definition import define_phase

    wanted = name.upper()
    found = _PARSER_LOCATIONS.get(_SHORT_NAMES.get(wanted, wanted))
    if found is None:
        return None
    module, options, parser = found
    chosen = getattr(import_module(f"{__name__}.{module}"), options)
    if parser:
        place, _, called = parser.partition(".")
        make = getattr(import_module(f"{__name__}.{place}"), called)
    else:
        make = chosen.parser
    return define_phase(wanted, chosen, make)
