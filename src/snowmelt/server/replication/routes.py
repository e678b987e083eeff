"""Requests of the other sites of a failover group: states, objects, and the role of this site."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, BinaryIO

import msgspec

from snowmelt.catalog.db.database import Database
from snowmelt.catalog.model.records import PUBLIC, REPLICATE
from snowmelt.catalog.objects import failover_groups
from snowmelt.catalog.security.access_control import has_account_privilege, resolve_effective_role
from snowmelt.catalog.security.encryption_keys import KeyRing
from snowmelt.clock import Clock
from snowmelt.config import Settings
from snowmelt.errors import (
    InternalError,
    ObjectMissing,
    PrivilegeMissing,
    SnowmeltError,
)
from snowmelt.schema.types import to_display_name
from snowmelt.server.error_responses import ServerResponse
from snowmelt.server.middleware import AuthenticatedRequest, PostRoute
from snowmelt.server.streaming_routes import decode_message
from snowmelt.storage.local_store import LocalStore
from snowmelt.storage.store import Store
from snowmelt.table.warehouse_paths import Warehouse
from snowmelt.wire.sites import (
    PULL_PATH,
    READ_BLOBS_PATH,
    READ_PATH,
    STATE_PATH,
    STATES_FOLDER,
    SiteState,
)

if TYPE_CHECKING:
    from snowmelt.backup.creation import BackupSource
    from snowmelt.replication.state_export import StateSource

_BLOCK_BYTES = 1 << 20
_MAX_WAIT_S = 10.0
_POLL_S = 0.05


class ReplicationRoutes:
    """Handlers of the requests of other sites. Blocking work runs in threads."""

    def __init__(
        self,
        settings: Settings,
        database: Database,
        stage: Store,
        warehouse: Warehouse,
        keyring: KeyRing,
        clock: Clock,
        threads: Executor,
    ) -> None:
        self._settings = settings
        self._database = database
        self._stage = stage
        self._warehouse = warehouse
        self._keyring = keyring
        self._clock = clock
        self._threads = threads
        self._lock = threading.Lock()
        self._states: tuple[BackupSource, StateSource] | None = None
        # Paths in the stage of states that followers read in ranges, by site.
        self._contents: dict[str, str] = {}

    def make_post_routes(self) -> dict[str, PostRoute]:
        """Return the routes by path, without trailing slash."""
        return {
            PULL_PATH: PostRoute(self.pull),
            READ_PATH: PostRoute(self.read),
            READ_BLOBS_PATH: PostRoute(self.read_blobs),
            STATE_PATH: PostRoute(self.describe_site, allows_anonymous=True),
        }

    async def pull(self, call: AuthenticatedRequest) -> ServerResponse:
        """Wait for changes, and return the next state."""
        return await self._respond(self._pull(call))

    async def read(self, call: AuthenticatedRequest) -> ServerResponse:
        """Return a range of an object or of a state."""
        return await self._respond(self._run(partial(self._read, call)))

    async def read_blobs(self, call: AuthenticatedRequest) -> ServerResponse:
        """Return whole blobs."""
        return await self._respond(self._run(partial(self._read_blobs, call)))

    async def describe_site(self, call: AuthenticatedRequest) -> ServerResponse:
        """Return the role and the epoch of this site."""
        del call
        return await self._respond(self._run(self._describe))

    async def _respond(self, work: Awaitable[bytes]) -> ServerResponse:
        try:
            return ServerResponse(HTTPStatus.OK, await work)
        except SnowmeltError as error:
            body = {"error": error.code, "message": str(error)}
            return ServerResponse(error.status, msgspec.json.encode(body))

    async def _run(self, work: Callable[[], bytes]) -> bytes:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def _pull(self, call: AuthenticatedRequest) -> bytes:
        from snowmelt.replication.protocol import PullRequest

        request = decode_message(call.body, PullRequest)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._threads, self._require_privilege, call)
        states = await loop.run_in_executor(self._threads, self._open)
        until = loop.time() + min(request.wait_s, _MAX_WAIT_S)
        while not await loop.run_in_executor(self._threads, states.has_news, request):
            if loop.time() >= until:
                break
            await asyncio.sleep(_POLL_S)

        def respond() -> bytes:
            response, file = states.respond(request)
            if not request.keeps:
                # The follower has read its previous state, so delete the file of that state.
                self._delete_content(request.site)
            if file is not None:
                response.content_path = self._keep(request.site, file)
            return msgspec.msgpack.encode(response)

        return await loop.run_in_executor(self._threads, respond)

    def _delete_content(self, site: str) -> None:
        with self._lock:
            path = self._contents.pop(site, None)
        if path is not None:
            self._stage.delete(path)

    def _keep(self, site: str, file: BinaryIO) -> str:
        """Write a state to the stage, where all services of this site can read it."""
        path = f"{STATES_FOLDER}/{secrets.token_hex(16)}"
        writer = self._stage.open_writer(path)
        try:
            with file:
                file.seek(0)
                while block := file.read(_BLOCK_BYTES):
                    writer.write(block)
            writer.finish()
        finally:
            writer.abort()
        with self._lock:
            self._contents[site] = path
        return path

    def _read(self, call: AuthenticatedRequest) -> bytes:
        from snowmelt.replication.protocol import READ_BYTES, ReadRequest, ReadResponse

        request = decode_message(call.body, ReadRequest)
        self._require_privilege(call)
        length = max(min(request.length, READ_BYTES), 0)
        offset = max(request.offset, 0)
        self._open()
        if self._states is None:
            raise InternalError("The routes of replication have no source.")
        store = self._states[0].get_store(request.store)
        found = store.head(request.path)
        if found is None:
            return msgspec.msgpack.encode(ReadResponse(-1))
        try:
            content = store.get_range(request.path, offset, length) if length else b""
        except ObjectMissing:
            return msgspec.msgpack.encode(ReadResponse(-1))
        return msgspec.msgpack.encode(ReadResponse(found.size, content))

    def _read_blobs(self, call: AuthenticatedRequest) -> bytes:
        from snowmelt.replication.protocol import READ_BYTES, ReadBlobsRequest, ReadBlobsResponse

        request = decode_message(call.body, ReadBlobsRequest)
        self._require_privilege(call)
        contents: list[bytes | None] = []
        remaining = READ_BYTES
        for path in request.paths:
            if remaining <= 0:
                break
            try:
                content = self._stage.get(path)
            except ObjectMissing:
                contents.append(None)
            else:
                remaining -= len(content)
                contents.append(content)
        return msgspec.msgpack.encode(ReadBlobsResponse(contents))

    def _describe(self) -> bytes:
        with self._database.reading() as connection:
            group = failover_groups.find_group(connection)
        if group is None:
            return msgspec.json.encode(SiteState())
        return msgspec.json.encode(
            SiteState(
                group=group.name,
                site=group.site,
                role=group.role,
                epoch=group.epoch,
                addresses=group.settings.addresses,
                primary_url=group.primary_url,
            )
        )

    def _open(self) -> StateSource:
        # Imported here, because a service without a group does not load PyIceberg.
        from snowmelt.backup.creation import BackupSource
        from snowmelt.replication.state_export import StateSource

        with self._lock:
            if self._states is None:
                source = BackupSource(
                    self._database,
                    self._stage,
                    self._warehouse,
                    LocalStore(self._settings.objects_dir),
                    self._keyring,
                    self._clock,
                )
                self._states = (source, StateSource(source))
            return self._states[1]

    def _require_privilege(self, call: AuthenticatedRequest) -> None:
        with self._database.reading() as connection:
            role = resolve_effective_role(connection, call.user, call.resolve_internal_role(None))
            if not has_account_privilege(connection, {role, PUBLIC}, REPLICATE):
                raise PrivilegeMissing(
                    role=to_display_name(role), privilege=REPLICATE, object="the account"
                )
