"""For which version of a table's columns a chunk was written, as its footer tells."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.blob.footer import fields_by_ordinal, matches

if TYPE_CHECKING:
    from collections.abc import Mapping

    from snowmelt.blob.footer import ChunkFooter
    from snowmelt.schema.types import TableSchema


def written_for(footer: ChunkFooter, schemas: Mapping[int, TableSchema]) -> TableSchema | None:
    """Return the newest version whose columns are those of a chunk, all of them by their names.

    None where there is none: perhaps it is newer than those known here, or its writer leaves
    columns out.
    """
    newest_first = sorted(schemas.values(), key=lambda schema: -schema.version)
    return next((schema for schema in newest_first if _is_whole(footer, schema)), None)


def newest_match(footer: ChunkFooter, schemas: Mapping[int, TableSchema]) -> TableSchema | str:
    """Return the newest version that a chunk fits, or why it does not fit the current one."""
    reason = "the table is gone"
    for version in sorted(schemas, reverse=True):
        found = matches(footer, schemas[version])
        if found is None:
            return schemas[version]
        if version == max(schemas):
            reason = found
    return reason


def _is_whole(footer: ChunkFooter, schema: TableSchema) -> bool:
    if len(footer.fields) != len(schema.columns):
        return False
    present = fields_by_ordinal(footer, schema)
    return all(
        column.ordinal in present and present[column.ordinal].name == column.name
        for column in schema.columns
    ) and not matches(footer, schema)
