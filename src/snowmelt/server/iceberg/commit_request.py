"""Parse requests of engines to change a table (`updateTable` of the Iceberg REST API)."""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from snowmelt.catalog.model.records import TableRecord
from snowmelt.errors import (
    EngineCommitConflict,
    EngineCommitInvalid,
    RequestMalformed,
    Unsupported,
)

_MAIN = "main"
_UNSORTED_ORDER_ID = _UNPARTITIONED_SPEC_ID = 0
# Ignored requirements: they cannot fail, or belong to changes that are not supported.
_IGNORED_REQUIREMENTS = frozenset(
    {"assert-last-assigned-field-id", "assert-last-assigned-partition-id"}
)
_UNSUPPORTED_UPDATES = {
    "add-schema": "ALTER TABLE of Snowmelt to change columns",
    "set-current-schema": "ALTER TABLE of Snowmelt to change columns",
    "remove-schemas": "ALTER TABLE of Snowmelt to change columns",
    "remove-snapshots": "the setting retention_s: Snowmelt expires snapshots itself",
    "upgrade-format-version": "format version 2",
    "add-spec": "CLUSTER BY of Snowmelt instead of partitions",
    "set-default-spec": "CLUSTER BY of Snowmelt instead of partitions",
    "remove-partition-specs": "CLUSTER BY of Snowmelt instead of partitions",
    "add-sort-order": "CLUSTER BY of Snowmelt instead of a sort order",
    "set-default-sort-order": "CLUSTER BY of Snowmelt instead of a sort order",
    "remove-snapshot-ref": "branch main only",
    "set-location": "the location that the table has",
    "set-statistics": "no statistics files",
    "remove-statistics": "no statistics files",
    "set-partition-statistics": "no statistics files",
    "remove-partition-statistics": "no statistics files",
    "assign-uuid": "the UUID that the table has",
}


_PROPERTY_UPDATES = frozenset({"set-properties", "remove-properties"})
_MAX_PROPERTIES_CHARACTERS = 64 * 1024
_RESERVED_PREFIXES = ("snowmelt.", "commit.")
_RESERVED_PROPERTIES = frozenset(
    {
        "write.delete.isolation-level",
        "write.update.isolation-level",
        "write.merge.isolation-level",
        "write.metadata.previous-versions-max",
        # Locations cannot be set, because engines may write only in the table's folder.
        "write.data.path",
        "write.metadata.path",
        "write.folder-storage.path",
        "write.object-storage.path",
    }
)
# With other values, engines would write files that a commit rejects.
_ONLY_VALUES = {
    "format-version": "2",
    "write.delete.mode": "copy-on-write",
    "write.update.mode": "copy-on-write",
    "write.merge.mode": "copy-on-write",
    "write.format.default": "parquet",
}


class CommitNotSupported(Unsupported, code="iceberg_commit_not_supported"):
    """{what} over the Iceberg REST catalog is not supported. Use {instead}."""


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """A commit of one or more snapshots to branch main. Each snapshot is the parent of the next.

    `parent_id` is the snapshot that the engine has read, or None for a table without rows.
    """

    parent_id: int | None
    snapshots: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class PropertyChanges:
    """Ordered changes of table properties. The value None removes a property."""

    changes: tuple[tuple[str, str | None], ...]

    def apply(self, properties: dict[str, str]) -> None:
        """Apply the changes to `properties` in place.

        Raises:
            EngineCommitInvalid: If the properties become larger than 64 KiB.
        """
        for name, value in self.changes:
            if value is None:
                properties.pop(name, None)
            else:
                properties[name] = value
        size = sum(len(name) + len(value) for name, value in properties.items())
        if size > _MAX_PROPERTIES_CHARACTERS:
            raise EngineCommitInvalid(
                reason=f"the properties of the table would have {size:,} characters, at most "
                f"{_MAX_PROPERTIES_CHARACTERS:,} are kept"
            )


def parse_commit_request(body: bytes, table: TableRecord) -> CommitRequest | PropertyChanges:
    """Parse the body of a request, and check its requirements against the table.

    Raises:
        CommitNotSupported: If the request changes anything other than rows or properties, or
            changes both.
        EngineCommitConflict: If the table does not meet a requirement.
        EngineCommitInvalid: If the request does not specify its parent snapshot, or is
            inconsistent.
        RequestMalformed: If the body is not a request of this form.
    """
    try:
        message = json.loads(body)
        requirements = [dict(each) for each in message["requirements"]]
        updates = [dict(each) for each in message["updates"]]
        if any(update["action"] in _PROPERTY_UPDATES for update in updates):
            changes = _read_property_changes(updates)
            _check_requirements(requirements, table, ())
            return changes
        snapshots = _read_snapshots(updates)
        return CommitRequest(_check_requirements(requirements, table, snapshots), snapshots)
    except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
        reason = f"the commit is malformed ({type(error).__name__}: {str(error)[:200]})"
        raise RequestMalformed(reason=reason) from None


def _read_property_changes(updates: Sequence[Mapping[str, Any]]) -> PropertyChanges:
    changes: list[tuple[str, str | None]] = []
    for update in updates:
        match update["action"]:
            case "set-properties":
                for name, value in dict(update["updates"]).items():
                    _check_property(name, value)
                    changes.append((name, value))
            case "remove-properties":
                changes += [(str(name), None) for name in update["removals"]]
            case action:
                raise CommitNotSupported(
                    what=f"Update {str(action)[:100]} beside changes of properties",
                    instead="a commit for each",
                )
    return PropertyChanges(tuple(changes))


def _check_property(name: object, value: object) -> None:
    if not isinstance(name, str) or not isinstance(value, str) or not name:
        raise EngineCommitInvalid(reason=f"property {str(name)[:100]!r} is not a text with a name")
    if name.startswith(_RESERVED_PREFIXES) or name in _RESERVED_PROPERTIES:
        raise CommitNotSupported(
            what=f"Property {name[:100]}", instead="the value that the table has: Snowmelt sets it"
        )
    only = _ONLY_VALUES.get(name)
    if only is not None and value.lower() != only:
        raise CommitNotSupported(
            what=f"{value[:100]!r} as the value of property {name}", instead=only
        )


def _read_snapshots(updates: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], ...]:
    snapshots: list[Mapping[str, Any]] = []
    heads = []
    for update in updates:
        match update["action"]:
            case "add-snapshot":
                snapshots.append(update["snapshot"])
            case "set-snapshot-ref":
                if update["ref-name"] != _MAIN or update.get("type") != "branch":
                    raise CommitNotSupported(
                        what=f"Reference {str(update['ref-name'])[:100]}",
                        instead="branch main only",
                    )
                heads.append(update["snapshot-id"])
            case action if action in _UNSUPPORTED_UPDATES:
                raise CommitNotSupported(
                    what=f"Update {action}", instead=_UNSUPPORTED_UPDATES[action]
                )
            case action:
                raise EngineCommitInvalid(reason=f"update {str(action)[:100]} is unknown")
    if not snapshots or not heads or heads[-1] != snapshots[-1]["snapshot-id"]:
        raise EngineCommitInvalid(reason="it must add a snapshot and make it that of branch main")
    for before, after in itertools.pairwise(snapshots):
        if after.get("parent-snapshot-id") != before["snapshot-id"]:
            raise EngineCommitInvalid(reason="each snapshot must be the child of the one before")
    for snapshot in snapshots:
        if not isinstance(snapshot["snapshot-id"], int) or not snapshot["manifest-list"]:
            raise EngineCommitInvalid(reason="a snapshot needs a snapshot-id and a manifest-list")
    return tuple(snapshots)


def _check_requirements(
    requirements: Sequence[Mapping[str, Any]],
    table: TableRecord,
    snapshots: Sequence[Mapping[str, Any]],
) -> int | None:
    """Check the requirements. Return the ID of the snapshot on which the commit is based."""
    parent_id = snapshots[0].get("parent-snapshot-id") if snapshots else None
    based = not snapshots
    for each in requirements:
        kind = each["type"]
        if kind == "assert-ref-snapshot-id":
            if each["ref"] != _MAIN:
                raise CommitNotSupported(
                    what=f"Reference {str(each['ref'])[:100]}", instead="branch main only"
                )
            if not snapshots:
                # A commit of rows could break the requirement before the properties are written.
                raise CommitNotSupported(
                    what="Requirement assert-ref-snapshot-id of a commit that changes properties",
                    instead="assert-table-uuid",
                )
            if each["snapshot-id"] != parent_id:
                raise EngineCommitInvalid(
                    reason=f"it requires that main is snapshot {each['snapshot-id']}, but its "
                    f"snapshot has the parent {parent_id}"
                )
            based = True
        elif kind == "assert-table-uuid":
            if _parse_uuid(each["uuid"]) != uuid.UUID(table.incarnation):
                raise EngineCommitConflict(reason="the table was dropped and created again")
        elif kind in _EXPECTED_IDS:
            field, expected = _EXPECTED_IDS[kind]
            current = table.schema.version if expected is None else expected
            if each[field] != current:
                raise EngineCommitConflict(
                    reason=f"{field} is {current}, the commit requires {each[field]}"
                )
        elif kind not in _IGNORED_REQUIREMENTS:
            raise EngineCommitInvalid(reason=f"requirement {str(kind)[:100]} is unknown")
    if not based:
        raise EngineCommitInvalid(
            reason="it must require the snapshot of branch main (assert-ref-snapshot-id)"
        )
    return parent_id


def _parse_uuid(text: str) -> uuid.UUID:
    try:
        return uuid.UUID(text)
    except ValueError:
        raise EngineCommitInvalid(reason=f"{text[:100]!r} is not a UUID") from None


# Name of each field, and the only valid value. None: the current schema ID.
_EXPECTED_IDS = {
    "assert-current-schema-id": ("current-schema-id", None),
    "assert-default-spec-id": ("default-spec-id", _UNPARTITIONED_SPEC_ID),
    "assert-default-sort-order-id": ("default-sort-order-id", _UNSORTED_ORDER_ID),
}
