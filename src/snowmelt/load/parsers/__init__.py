"""Parsers by case-insensitive name: Vertica's parser names and Snowmelt's short names.

`portion_stream`: splits one portion into blocks at record boundaries.
`delimited_text`: dialects of delimited text, and the exact record reader.
`delimited_scanner`: compiled scanner that splits blocks of records into cells.
`delimited_block_parser`: parser of blocks of delimited text.
`delimited`: the parsers DELIMITED, FDELIMITEDPARSER and FCSVPARSER.
`line_parsers`: fixed-width, regular-expression, key-value pair and whole-message parsers.
`json_document_mapping`: records of single JSON documents, and mapping of their keys to columns.
`json_columns`: compiled conversion of batches of JSON records to columns.
`json_parser`: parser of JSON files and messages.
`record_columns`: conversion of records of typed formats to columns.
`avro`: parsers of Avro files and messages.
`avro_decoding`: exact readers of logical types and strict indexes, in place of those of fastavro.
`parquet`: parsers of Parquet and ORC files.
`warmup`: background compilation of the compiled readers, and their state.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from snowmelt.load.phase_definition import PhaseDefinition

# For each parser name: module and class of its options, and the parser as `module.Class`. If the
# last item is empty, the method `parser` of the options makes the parser. Modules are imported on
# first use.
_PARSER_LOCATIONS: dict[str, tuple[str, str, str]] = {
    "DELIMITED": ("delimited", "DelimitedOptions", ""),
    "FDELIMITEDPARSER": ("delimited", "FlexDelimitedOptions", ""),
    "FCSVPARSER": ("delimited", "CsvOptions", ""),
    "COPYINTOCSV": ("delimited", "CopyIntoCsvOptions", ""),
    "FJSONPARSER": ("json_document_mapping", "FlexJsonOptions", "json_parser.JsonParser"),
    "KAFKAJSONPARSER": ("json_document_mapping", "KafkaJsonOptions", "json_parser.JsonParser"),
    "JSON": ("json_document_mapping", "JsonOptions", "json_parser.JsonParser"),
    "FAVROPARSER": ("avro", "AvroOptions", "avro.AvroParser"),
    "KAFKAAVROPARSER": ("avro", "KafkaAvroOptions", "avro.AvroMessageParser"),
    "AVRO": ("avro", "StrictAvroOptions", "avro.AvroParser"),
    "PARQUET": ("parquet", "ParquetOptions", ""),
    "ORC": ("parquet", "OrcOptions", ""),
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
"""All parser names and short names, for error messages."""


def definition(name: str) -> PhaseDefinition[Any] | None:
    """Return the parser definition for a case-insensitive name, or None if the name is unknown."""
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
