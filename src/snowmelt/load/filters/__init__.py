"""Built-in filters by name: decompression, text conversion, commands and Kafka messages.

`decompression`: GZip, BZip, Xz and Lz4 with bounded output.
`zstd`: Zstd with bounded output.
`text_filters`: text encodings, byte-order marks, search and replace, line endings.
`external_command`: filter through a shell command.
`kafka_messages`: conversion of records to a byte stream, with delimiters or lengths.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.errors import LoadRefused
from snowmelt.load.phase_definition import PhaseDefinition, import_definition

if TYPE_CHECKING:
    from snowmelt.load.phase_protocols import Filter, RecordFilter

# Module of each filter, and the name of its definition there.
_FILTER_LOCATIONS = {
    "GZip": ("snowmelt.load.filters.decompression", "GZIP"),
    "BZip": ("snowmelt.load.filters.decompression", "BZIP"),
    "Zstd": ("snowmelt.load.filters.zstd", "ZSTD"),
    "Lz4": ("snowmelt.load.filters.decompression", "LZ4"),
    "Xz": ("snowmelt.load.filters.decompression", "XZ"),
    "Iconverter": ("snowmelt.load.filters.text_filters", "ICONVERTER"),
    "StripBom": ("snowmelt.load.filters.text_filters", "STRIP_BOM"),
    "SearchAndReplace": ("snowmelt.load.filters.text_filters", "SEARCH_AND_REPLACE"),
    "LineEndings": ("snowmelt.load.filters.text_filters", "LINE_ENDINGS"),
    "ExternalCommand": ("snowmelt.load.filters.external_command", "EXTERNAL_COMMAND"),
    "KafkaInsertDelimiters": ("snowmelt.load.filters.kafka_messages", "KAFKA_INSERT_DELIMITERS"),
    "KafkaInsertLengths": ("snowmelt.load.filters.kafka_messages", "KAFKA_INSERT_LENGTHS"),
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
    if name.lower() == "lzo":
        reason = "LZO is not supported. Use ZSTD or LZ4, or pipe through ExternalCommand"
        raise LoadRefused(what=name, reason=reason)
    return import_definition("Filter", name, _FILTER_LOCATIONS, _ALIASES)
