"""Built-in sources by name: files, URLs, standard input and Kafka.

`files`: paths, globs and URLs, passed to one of the three modules below.
`local_files`: files of this machine.
`object_store`: objects of stores, such as `s3://bucket/path`.
`http`: files by HTTP and HTTPS.
`stdin`: standard input, saved to a file first.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, cast

from snowmelt.errors import MissingExtra

if TYPE_CHECKING:
    from snowmelt.load.phase_definition import PhaseDefinition
    from snowmelt.load.phase_protocols import Source

# Module and the name in it, by the source's name in lower case.
_SOURCE_LOCATIONS = {
    "file": ("snowmelt.load.sources.files", "FILE"),
    "stdin": ("snowmelt.load.sources.stdin", "STDIN"),
    "url": ("snowmelt.load.sources.files", "URL"),
    "kafkasource": ("snowmelt.load.kafka.source", "KAFKA_SOURCE"),
}
_ALIASES = {"filesource": "file", "curl": "url", "curlsource": "url"}

NAMES: tuple[str, ...] = ("File", "Stdin", "Url", "KafkaSource")


def definition(name: str) -> PhaseDefinition[Source] | None:
    """Return the built-in source of this name, in any case; None if there is none.

    Raises:
        MissingExtra: The source needs a package that is not installed.
    """
    lower = name.lower()
    place = _SOURCE_LOCATIONS.get(_ALIASES.get(lower, lower))
    if place is None:
        return None
    module_name, attribute = place
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("snowmelt"):
            raise
        extra = "kafka" if lower == "kafkasource" else "load"
        raise MissingExtra(what=f"Source {name}", package=error.name, extra=extra) from None
    return cast("PhaseDefinition[Source]", getattr(module, attribute))
