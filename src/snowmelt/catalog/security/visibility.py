"""Objects visible to a role: those it holds a privilege on and can reach through their schema."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.catalog.model.privilege_kinds import ACCOUNTADMIN, PUBLIC, ObjectKind
from snowmelt.catalog.security.access_control import list_grants

if TYPE_CHECKING:
    import sqlalchemy as sa

    from snowmelt.catalog.model.records import DatabaseRecord, SchemaRecord, TableRecord

_TRAVERSAL_PRIVILEGES = frozenset({"USAGE", "OWNERSHIP"})


class VisibleObjects:
    """The privileges of a role, read once; for single objects `StatementSession` asks the catalog."""

    def __init__(self, connection: sa.Connection, role: str, *, with_dropped: bool = False) -> None:
        """`with_dropped` reads also those on what is dropped and perhaps still kept."""
        self._is_administrator = role == ACCOUNTADMIN
        grants = []
        if not self._is_administrator:
            for holder in {role, PUBLIC}:
                grants += list_grants(connection, role=holder, with_dropped=with_dropped)
        self._granted = {(grant.kind, grant.object_id) for grant in grants}
        self._traversable = {
            (grant.kind, grant.object_id)
            for grant in grants
            if grant.privilege in _TRAVERSAL_PRIVILEGES
        }

    def includes_database(self, database: DatabaseRecord) -> bool:
        """Tell whether the role has any privilege on this database."""
        return self._is_administrator or ("DATABASE", database.database_id) in self._granted

    def includes_schema(self, schema: SchemaRecord) -> bool:
        """Tell whether the role has any privilege on this schema and may use its database."""
        return self._is_administrator or (
            ("DATABASE", schema.database_id) in self._traversable
            and ("SCHEMA", schema.schema_id) in self._granted
        )

    def includes_table(self, table: TableRecord) -> bool:
        """Tell whether the role has any privilege on this table and may use what it is in."""
        return self.includes_schema_object(
            "TABLE", table.table_id, table.schema_id, table.database_id
        )

    def includes_account_object(self, kind: ObjectKind, object_id: int) -> bool:
        """Tell whether the role has any privilege on an object that lies in no schema."""
        return self._is_administrator or (kind, object_id) in self._granted

    def includes_schema_object(
        self, kind: ObjectKind, object_id: int, schema_id: int, database_id: int
    ) -> bool:
        """Tell whether the role has any privilege on an object and may use what it is in."""
        return self._is_administrator or (
            ("DATABASE", database_id) in self._traversable
            and ("SCHEMA", schema_id) in self._traversable
            and (kind, object_id) in self._granted
        )
