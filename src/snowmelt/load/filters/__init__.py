"""Built-in filters by name: decompression, text conversion, commands and Kafka messages.

`decompression`: GZip, BZip, Xz and Lz4 with bounded output.
`zstd`: Zstd with bounded output.
`text_filters`: encodings, byte-order mark, search and replace, line endings.
`external_command`: bytes through a shell command.
`kafka_messages`: records into a byte stream, with delimiters or lengths.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

from snowmelt.errors import LoadRefused, MissingExtra
from snowmelt.load.phase_definition import PhaseDefinition

if TYPE_CHECKING:
    from snowmelt.load.phase_protocols import Filter, RecordFilter

# Module, and the definition's name in it.
_FILTER_LOCATIONS = {
    "GZip": ("decompression", "GZIP"),
    "BZip": ("decompression", "BZIP"),
    "Zstd": ("zstd", "ZSTD"),
    "Lz4": ("decompression", "LZ4"),
    "Xz": ("decompression", "XZ"),
    "Iconverter": ("text_filters", "ICONVERTER"),
    "StripBom": ("text_filters", "STRIP_BOM"),
    "SearchAndReplace": ("text_filters", "SEARCH_AND_REPLACE"),
    "LineEndings": ("text_filters", "LINE_ENDINGS"),
    "ExternalCommand": ("external_command", "EXTERNAL_COMMAND"),
    "KafkaInsertDelimiters": ("kafka_messages", "KAFKA_INSERT_DELIMITERS"),
    "KafkaInsertLengths": ("kafka_messages", "KAFKA_INSERT_LENGTHS"),
}
NAMES = tuple(_FILTER_LOCATIONS)
# A misspelling in Vertica's manuals, and common names of formats.
_ALIASES = {
    "kafkainsertdelimeters": "kafkainsertdelimiters",
    "bzip2": "bzip",
    "zstandard": "zstd",
}


def definition(name: str) -> PhaseDefinition[Filter | RecordFilter] | None:
    """Return the built-in filter of this case-insensitive name, or None.

    Raises:
        LoadRefused: If the filter is LZO, which is not supported.
        MissingExtra: If the filter needs a package that is not installed.
    """
    lower = name.lower()
    if lower == "lzo":
        reason = "LZO is not supported. Use ZSTD or LZ4, or pipe through ExternalCommand"
        raise LoadRefused(what=name, reason=reason)
    known = {each.lower(): place for each, place in _FILTER_LOCATIONS.items()}
    if (place := known.get(_ALIASES.get(lower, lower))) is None:
        return None
    module_name, attribute = place
    try:
        module = importlib.import_module(f"snowmelt.load.filters.{module_name}")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("snowmelt"):
            raise
        raise MissingExtra(what=f"Filter {name}", package=error.name, extra="load") from None
    return cast("PhaseDefinition[Filter | RecordFilter]", getattr(module, attribute))
