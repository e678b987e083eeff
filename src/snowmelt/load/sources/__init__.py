"""Built-in sources by name: files, URLs, standard input and Kafka.

`files`: local files, HTTP, objects of stores, and standard input.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.load.phase_definition import PhaseDefinition, import_definition

if TYPE_CHECKING:
    from snowmelt.load.phase_protocols import Source

# Module of each source, and the name of its definition there.
_SOURCE_LOCATIONS = {
    "File": ("snowmelt.load.sources.files", "FILE"),
    "Stdin": ("snowmelt.load.sources.files", "STDIN"),
    "Url": ("snowmelt.load.sources.files", "URL"),
    "KafkaSource": ("snowmelt.load.kafka.source", "KAFKA_SOURCE"),
}
NAMES = tuple(_SOURCE_LOCATIONS)
_ALIASES = {"filesource": "file", "curl": "url", "curlsource": "url"}


def definition(name: str) -> PhaseDefinition[Source] | None:
    """Return the built-in source of this case-insensitive name, or None.

    Raises:
        MissingExtra: If the source needs a package that is not installed.
    """
    extra = "kafka" if name.lower() == "kafkasource" else "load"
    return import_definition("Source", name, _SOURCE_LOCATIONS, _ALIASES, extra)
