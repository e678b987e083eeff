"""SQLAlchemy tables of the catalog, record types and constants; imports nothing above.

`base`: column types and shared columns and indexes.
`deployment`: deployment, services and leases.
`security`: users, keys, roles and grants.
`namespaces`: databases, schemas, tables and schema versions.
`streaming`: channels, encryption keys, chunks, pipes and row API state.
`jobs`: loads, stream offsets, migrations and maintenance runs.
`functions`: libraries, load functions, API integrations, external functions and translators.
`object_store`: S3 buckets, objects and multipart uploads.
`privilege_kinds`: kinds of objects and their privileges.
`records`: record types shared by several packages.

`db.schema_upgrade` creates these tables. Timestamps are whole microseconds since
1970, UTC: the same integer on every database. Names of databases, schemas, tables and channels are
internal names. Objects that can be dropped and created again keep their dropped rows; a partial
unique index guards the live ones.
"""

from snowmelt.catalog.model.base import UtcTimestamp, metadata, to_microseconds
from snowmelt.catalog.model.deployment import deployment, leases, services
from snowmelt.catalog.model.functions import (
    api_integrations,
    external_functions,
    libraries,
    load_functions,
    translators,
)
from snowmelt.catalog.model.jobs import (
    loaded_files,
    loads,
    maintenance_runs,
    migrations,
    stream_offsets,
)
from snowmelt.catalog.model.namespaces import (
    databases,
    schema_versions,
    schemas,
    tables,
)
from snowmelt.catalog.model.object_store import (
    buckets,
    dropped_files,
    objects,
    upload_parts,
    uploads,
)
from snowmelt.catalog.model.security import (
    access_keys,
    future_grants,
    grants,
    prefix_grants,
    public_keys,
    role_members,
    roles,
    security_integrations,
    users,
)
from snowmelt.catalog.model.streaming import (
    channel_history,
    channel_tombstones,
    channels,
    chunks,
    client_prefixes,
    data_keys,
    pipes,
    row_channels,
    row_clients,
    row_requests,
    sightings,
    table_keys,
)

__all__ = [
    "UtcTimestamp",
    "access_keys",
    "api_integrations",
    "buckets",
    "channel_history",
    "channel_tombstones",
    "channels",
    "chunks",
    "client_prefixes",
    "data_keys",
    "databases",
    "deployment",
    "dropped_files",
    "external_functions",
    "future_grants",
    "grants",
    "leases",
    "libraries",
    "load_functions",
    "loaded_files",
    "loads",
    "maintenance_runs",
    "metadata",
    "migrations",
    "objects",
    "pipes",
    "prefix_grants",
    "public_keys",
    "role_members",
    "roles",
    "row_channels",
    "row_clients",
    "row_requests",
    "schema_versions",
    "schemas",
    "security_integrations",
    "services",
    "sightings",
    "stream_offsets",
    "table_keys",
    "tables",
    "to_microseconds",
    "translators",
    "upload_parts",
    "uploads",
    "users",
]
