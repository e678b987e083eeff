"""Generates the tables of `docs/reference/settings.md` from the settings."""

from __future__ import annotations

import dataclasses
from typing import Any

from snowmelt.config import Settings, variable_for_setting

# Headings, each with the first setting of its section.
HEADINGS = {
    "data_dir": "Locations and ports",
    "s3_port": "The S3 endpoint",
    "select_dialect": "S3 Select",
    "catalog_url": "Catalog, stage, warehouse, keys",
    "verify": "Verification and registration",
    "rows_timezone": "The row API",
    "migrate": "Migration and maintenance",
    "retention_s": "Retention and back-pressure",
    "metrics_token_file": "Operation",
}
# Defaults that depend on the data folder.
PLACED = {
    "catalog_url": "`catalog.db` in `data_dir`",
    "stage_url": "`stage` in `data_dir`",
    "warehouse_url": "`warehouse` in `data_dir`",
    "keys_dir": "`keys` in `data_dir`",
    "objects_dir": "`objects` in `data_dir`",
    "secrets_dir": "`secrets` in `data_dir`",
}
_UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20))


def default_of(field: dataclasses.Field[Any]) -> str:
    """Format a default for readers."""
    if field.name in PLACED:
        return PLACED[field.name]
    value = field.default
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and "bytes" in field.name:
        for unit, size in _UNITS:
            if value and value % size == 0:
                return f"{value} ({value // size} {unit})"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        days = value / 86_400
        return f"{value:.0f} ({days:g} days)" if days > 1 else f"{value:g}"
    return f"`{value}`" if str(value) else ""


def table() -> str:
    """Return the tables in Markdown."""
    lines = []
    for field in dataclasses.fields(Settings):
        if field.name in HEADINGS:
            lines += [
                f"\n## {HEADINGS[field.name]}\n",
                "| setting | default | |",
                "| --- " * 3 + "|",
            ]
        cells = (
            f"`{variable_for_setting(field.name)}`",
            default_of(field),
            field.metadata["about"],
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n\n"
