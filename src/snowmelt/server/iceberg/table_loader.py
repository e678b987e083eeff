"""Response to loadTable: the newest published snapshot, with credentials for its files.

A load does not wait for rows that are not committed. It waits only if the last publication is
outdated and more than 2 s old, because no engine has loaded the table recently. It waits for at
most 5 s, or 20 s for the first publication.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from snowmelt.catalog.db.database import Database
from snowmelt.catalog.model.records import ROW_PRIVILEGES, TableRecord
from snowmelt.catalog.objects.published_snapshots import (
    PublishedSnapshot,
    find_stalled_reason,
    hold_publication,
    list_publications,
    record_demand,
)
from snowmelt.catalog.objects.tables import find_table
from snowmelt.catalog.security.access_control import require_table_privilege
from snowmelt.catalog.security.encryption_keys import KeyRing, issue_table_credentials
from snowmelt.clock import Clock, to_epoch_ms
from snowmelt.config import Settings
from snowmelt.errors import (
    ConfigurationError,
    DatabaseNotFound,
    InternalError,
    SchemaNotFound,
    ServiceBusy,
    TableNotFound,
)
from snowmelt.schema.types import TableName
from snowmelt.server.auth import RECHECK_INTERVAL_S
from snowmelt.server.iceberg.authentication import EngineIdentity
from snowmelt.server.publisher_process import DEMAND_NOTE_INTERVAL_S, PublisherSupervisor
from snowmelt.table.warehouse_paths import Warehouse

NATIVE_ONLY_SUFFIX = "@settled"
CREDENTIALS_TTL = dt.timedelta(hours=1)
# After a 304, the engine continues to use the credentials of the previous response. So an ETag is
# valid for half of their lifetime.
_ETAG_TTL_S = CREDENTIALS_TTL.total_seconds() / 2
# Age up to which an outdated publication is returned without a wait: the time of two rounds of the
# publisher, including their work.
_RECENT = dt.timedelta(seconds=2)
_MAX_WAIT_S = 5.0
_MAX_FIRST_WAIT_S = 20.0
_POLL_INTERVAL_S = 0.02
# After a wait has timed out, loads of the table do not wait for this time.
_NO_WAIT_S = 30.0
_MAX_CACHED_METADATA = 128
_MAX_CACHED_RIGHTS = 10_000
_DEFAULT_REGION = "us-east-1"


class SnapshotNotReadable(InternalError, code="snapshot_not_readable", status=500):
    """Table {table} cannot be read: {reason} Restore the blob, or discard the chunk with `snowmelt chunks give-up`."""


@dataclass(frozen=True, slots=True)
class TableAddress:
    """Address of a table in requests. `native_only` requests snapshots without fresh files."""

    database: str
    native_only: bool
    schema: str
    table: str

    @property
    def warehouse(self) -> str:
        """The name of the warehouse."""
        return self.database + (NATIVE_ONLY_SUFFIX if self.native_only else "")

    @property
    def name(self) -> TableName:
        """The name of the table."""
        return TableName(self.database, self.schema, self.table)


@dataclass(frozen=True, slots=True)
class LoadedTable:
    """A table and its publication for one role. `etag` identifies the response."""

    address: TableAddress
    identity: EngineIdentity
    record: TableRecord
    publication: PublishedSnapshot
    etag: str


class TableLoader:
    """Loads tables for engines. Thread-safe. Methods block on the catalog."""

    def __init__(
        self,
        database: Database,
        keyring: KeyRing,
        settings: Settings,
        clock: Clock,
        *,
        warehouse: Warehouse,
        publisher: PublisherSupervisor,
    ) -> None:
        self._database = database
        self._keyring = keyring
        self._settings = settings
        self._clock = clock
        self._warehouse = warehouse
        self._publisher = publisher
        self._noted_until: dict[tuple[int, bool], float] = {}
        self._no_wait_until: dict[tuple[int, bool], float] = {}
        self._rights: dict[tuple[str, int], tuple[bool, float]] = {}
        self._last_held = 0
        self._lock = threading.Lock()
        self._read_metadata = lru_cache(maxsize=_MAX_CACHED_METADATA)(self._read_metadata_object)

    def find_table(self, identity: EngineIdentity, address: TableAddress) -> TableRecord:
        """Return a table that the role may select from.

        If a name does not exist as written, it is looked up in upper case.

        Raises:
            DatabaseNotFound: If the database does not exist or the role lacks privileges on it.
            SchemaNotFound: If the schema does not exist or the role lacks privileges on it.
            TableNotFound: If the table does not exist or the role lacks SELECT on it.
        """
        name = address.name
        with self._database.reading() as connection:
            try:
                table = find_table(connection, name)
            except (DatabaseNotFound, SchemaNotFound, TableNotFound) as error:
                upper = TableName(name.database, name.schema.upper(), name.table.upper())
                if upper == name:
                    raise
                try:
                    table = find_table(connection, upper)
                except SchemaNotFound:
                    # The schema exists as written: engines distinguish it from a missing table.
                    if isinstance(error, TableNotFound):
                        raise error from None
                    raise
            require_table_privilege(connection, identity.role, table, "SELECT")
        return table

    def load(self, identity: EngineIdentity, address: TableAddress) -> LoadedTable:
        """Return the newest publication of a table.

        Raises:
            ConfigurationError: If the service has no S3 endpoint.
            DatabaseNotFound: If the database does not exist or the role lacks privileges on it.
            SchemaNotFound: If the schema does not exist or the role lacks privileges on it.
            TableNotFound: If the table does not exist or the role lacks SELECT on it.
            SnapshotNotReadable: If a damaged blob prevents the first publication.
            ServiceBusy: If there is no readable publication yet.
        """
        if not self._settings.s3_port:
            raise ConfigurationError(
                setting="s3_port",
                reason="engines read the files of tables at the S3 endpoint. Set s3_port, for"
                " example to 9000",
            )
        table = self.find_table(identity, address)
        self._note_demand(table, address)
        while True:
            found = self._await_publication(table, identity, address)
            loaded = self._to_loaded(identity, address, *found)
            if not self._may_change(identity, table) or self._hold(loaded.publication):
                return loaded

    def load_after_commit(self, identity: EngineIdentity, address: TableAddress) -> LoadedTable:
        """Return a publication with all native commits, or an older one after `_MAX_WAIT_S`.

        Raises:
            TableNotFound: If the table was dropped during the wait.
            ServiceBusy: If there is no readable publication yet.
        """
        began = self._clock.monotonic()
        while True:
            loaded = self.load(identity, address)
            if (
                loaded.publication.pointer == loaded.record.pointer
                or self._clock.monotonic() - began >= _MAX_WAIT_S
            ):
                return loaded
            self._clock.sleep(_POLL_INTERVAL_S)

    def _may_change(self, identity: EngineIdentity, table: TableRecord) -> bool:
        key, now = (identity.role, table.table_id), self._clock.monotonic()
        known, until = self._rights.get(key, (False, now))
        if now >= until:
            with self._database.reading() as connection:
                try:
                    require_table_privilege(connection, identity.role, table, *ROW_PRIVILEGES)
                    known = True
                except TableNotFound:
                    known = False
            if len(self._rights) >= _MAX_CACHED_RIGHTS:
                self._rights.clear()
            self._rights[key] = known, now + RECHECK_INTERVAL_S
        return known

    def _hold(self, publication: PublishedSnapshot) -> bool:
        """Make later publications descend from this one. Return False if there is a newer one."""
        number = publication.publication_id
        if publication.native_only or publication.snapshot is None or number == self._last_held:
            return True
        with self._database.writing() as connection:
            held = hold_publication(connection, publication, self._clock.now())
        if held:
            self._last_held = number
        return held

    def _to_loaded(
        self,
        identity: EngineIdentity,
        address: TableAddress,
        table: TableRecord,
        found: PublishedSnapshot | None,
        reason: str | None,
    ) -> LoadedTable:
        if found is None or not found.is_readable(table.pointer, self._clock.now()):
            if reason is not None:
                raise SnapshotNotReadable(table=table.name, reason=reason)
            raise ServiceBusy(reason="the snapshot of the table is not published yet")
        period = int(self._clock.now().timestamp() // _ETAG_TTL_S)
        properties = table.engine_properties or ""
        tag = f"{found.metadata_path}:{identity.role}:{identity.user}:{period}:{properties}"
        etag = hashlib.sha256(tag.encode()).hexdigest()[:32]
        return LoadedTable(address, identity, table, found, f'"{etag}"')

    def build_response(
        self, loaded: LoadedTable, *, host: str, refs_only: bool, with_endpoint: bool = True
    ) -> bytes:
        """Return the response body of loadTable.

        Args:
            loaded: The table.
            host: Host name that the engine used to connect to the service.
            refs_only: Include only the current snapshot.
            with_endpoint: Include the S3 endpoint in the configuration.

        Raises:
            ObjectMissing: If the metadata file does not exist.
            StageUnavailable: If the warehouse does not respond.
        """
        path = loaded.publication.metadata_path
        metadata = self._read_metadata(path, refs_only, loaded.record.engine_properties)
        config, credentials = self._make_credentials(loaded, host, with_endpoint=with_endpoint)
        head = {
            "metadata-location": self._warehouse.to_public_address(path),
            "config": config,
            "storage-credentials": credentials,
        }
        # Insert the stored metadata as text, because parsing it would take most of the time.
        return json.dumps(head).encode()[:-1] + b', "metadata": ' + metadata + b"}"

    def build_credentials_response(self, loaded: LoadedTable, *, host: str) -> bytes:
        """Return the response body of loadCredentials."""
        _, credentials = self._make_credentials(loaded, host, with_endpoint=True)
        return json.dumps({"storage-credentials": credentials}).encode()

    def _make_credentials(
        self, loaded: LoadedTable, host: str, *, with_endpoint: bool
    ) -> tuple[dict[str, str], list[dict[str, Any]]]:
        settings, address = self._settings, loaded.address
        folder = self._warehouse.table_folder(loaded.record)
        expires_at = self._clock.now() + CREDENTIALS_TTL
        key = issue_table_credentials(
            self._keyring,
            loaded.identity.user,
            loaded.identity.role,
            loaded.record.table_id,
            folder,
            expires_at=expires_at,
        )
        region = settings.s3_region or _DEFAULT_REGION
        names = [
            quote(each, safe="") for each in (address.warehouse, address.schema, address.table)
        ]
        config = {
            "s3.path-style-access": "true",
            "s3.region": region,
            "client.region": region,
            "s3.access-key-id": key.access_key_id,
            "s3.secret-access-key": key.secret,
            "s3.session-token": key.token,
            "s3.session-token-expires-at-ms": str(to_epoch_ms(expires_at)),
            "client.refresh-credentials-endpoint": "v1/{}/namespaces/{}/tables/{}/credentials".format(
                *names
            ),
        }
        if with_endpoint:
            scheme = "https" if settings.tls_cert else "http"
            endpoint = f"{scheme}://{host or settings.host}:{settings.s3_port}"
            config["s3.endpoint"] = settings.stage_endpoint.rstrip("/") or endpoint
        prefix = self._warehouse.to_public_address(f"{folder}/")
        return config, [{"prefix": prefix, "config": config}]

    def _note_demand(self, table: TableRecord, address: TableAddress) -> None:
        native_only = address.native_only or table.hides_fresh_rows
        key = (table.table_id, native_only)
        now = self._clock.monotonic()
        with self._lock:
            if now < self._noted_until.get(key, now):
                return
        with self._database.writing() as connection:
            record_demand(
                connection, table.table_id, native_only=native_only, now=self._clock.now()
            )
        with self._lock:
            self._noted_until[key] = now + DEMAND_NOTE_INTERVAL_S
        self._publisher.request_start()

    def _await_publication(
        self, table: TableRecord, identity: EngineIdentity, address: TableAddress
    ) -> tuple[TableRecord, PublishedSnapshot | None, str | None]:
        """Return table, last publication and the reason for a stall. Wait if it is outdated."""
        native_only = address.native_only or table.hides_fresh_rows
        key = (table.table_id, native_only)
        began = self._clock.monotonic()
        while True:
            found, reason = self._find_publication(table, native_only=native_only)
            if found is not None and _is_current(table, found, native_only=native_only):
                return table, found, reason
            if found is not None and self._clock.now() - found.created_at < _RECENT:
                return table, found, reason
            now = self._clock.monotonic()
            limit_s = _MAX_FIRST_WAIT_S if found is None else _MAX_WAIT_S
            if reason is not None or now < self._no_wait_until.get(key, now):
                return table, found, reason
            if now - began >= limit_s:
                self._no_wait_until[key] = now + _NO_WAIT_S
                return table, found, reason
            self._publisher.request_start()
            self._clock.sleep(_POLL_INTERVAL_S)
            table = self.find_table(identity, address)

    def _find_publication(
        self, table: TableRecord, *, native_only: bool
    ) -> tuple[PublishedSnapshot | None, str | None]:
        with self._database.reading() as connection:
            found = list_publications(connection, table.table_id, native_only=native_only, limit=1)
            reason = find_stalled_reason(connection, table.table_id, native_only=native_only)
        return (found[0] if found else None), reason

    def _read_metadata_object(
        self, path: str, refs_only: bool, engine_properties: str | None
    ) -> bytes:
        data = self._warehouse.store.get(path)
        if engine_properties is not None:
            document: dict[str, Any] = json.loads(data)
            properties = {**document.get("properties", {}), **json.loads(engine_properties)}
            data = json.dumps({**document, "properties": properties}).encode()
        return _keep_current_snapshot(data) if refs_only else data


def _is_current(table: TableRecord, found: PublishedSnapshot, *, native_only: bool) -> bool:
    up_to = table.migrated_seq if native_only else table.last_seq
    return (found.pointer, found.up_to_seq, found.schema_version) == (
        table.pointer,
        up_to,
        table.schema.version,
    )


def _keep_current_snapshot(metadata: bytes) -> bytes:
    """Return a metadata file with only the snapshots that refs refer to."""
    document: dict[str, Any] = json.loads(metadata)
    refs: Mapping[str, Any] = document.get("refs", {})
    kept = {ref["snapshot-id"] for ref in refs.values()} | {document.get("current-snapshot-id")}
    document["snapshots"] = [
        each for each in document.get("snapshots", ()) if each["snapshot-id"] in kept
    ]
    return json.dumps(document).encode()
