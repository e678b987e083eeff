"""What of many objects a role may see: all that it has any privilege on, and can get to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.catalog.model.privileges import ACCOUNTADMIN, PUBLIC
from snowmelt.catalog.security.access_control import grants_of

if TYPE_CHECKING:
    import sqlalchemy as sa

    from snowmelt.catalog.model.privileges import Kind
    from snowmelt.catalog.model.records import DatabaseRecord, SchemaRecord, TableRecord

_WAY_IN = frozenset({"USAGE", "OWNERSHIP"})


class Sight:
    """The privileges of a role, read once; for single objects `Session` asks the catalog."""

    def __init__(self, connection: sa.Connection, role: str, *, with_dropped: bool = False) -> None:
        """`with_dropped` reads also those on what is dropped and perhaps still kept."""
        self._everything = role == ACCOUNTADMIN
        grants = []
        if not self._everything:
            for holder in {role, PUBLIC}:
                grants += grants_of(connection, role=holder, with_dropped=with_dropped)
        self._known = {(grant.kind, grant.object_id) for grant in grants}
        self._open = {
            (grant.kind, grant.object_id) for grant in grants if grant.privilege in _WAY_IN
        }

    def sees_database(self, database: DatabaseRecord) -> bool:
        """Tell whether the role has any privilege on this database."""
        return self._everything or ("DATABASE", database.database_id) in self._known

    def sees_schema(self, schema: SchemaRecord) -> bool:
        """Tell whether the role has any privilege on this schema and may use its database."""
        return self._everything or (
            ("DATABASE", schema.database_id) in self._open
            and ("SCHEMA", schema.schema_id) in self._known
        )

    def sees_table(self, table: TableRecord) -> bool:
        """Tell whether the role has any privilege on this table and may use what it is in."""
        return self.sees_in_schema("TABLE", table.table_id, table.schema_id, table.database_id)

    def sees(self, kind: Kind, object_id: int) -> bool:
        """Tell whether the role has any privilege on an object that lies in no schema."""
        return self._everything or (kind, object_id) in self._known

    def sees_in_schema(self, kind: Kind, object_id: int, schema_id: int, database_id: int) -> bool:
        """Tell whether the role has any privilege on an object and may use what it is in."""
        return self._everything or (
            ("DATABASE", database_id) in self._open
            and ("SCHEMA", schema_id) in self._open
            and (kind, object_id) in self._known
        )
