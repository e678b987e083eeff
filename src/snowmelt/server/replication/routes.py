"""Requests of the other sites of a failover group: states, objects, and the role of this site."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeVar

import msgspec

from snowmelt.catalog.db.database import Database
from snowmelt.catalog.model.records import PUBLIC, REPLICATE
from snowmelt.catalog.objects import failover_groups
from snowmelt.catalog.security.access_control import has_account_privilege, resolve_effective_role
from snowmelt.catalog.security.encryption_keys import KeyRing
from snowmelt.clock import Clock
from snowmelt.config import Settings
from snowmelt.errors import PrivilegeMissing, ServiceBusy, SnowmeltError
from snowmelt.schema.types import to_display_name
from snowmelt.server.error_responses import ServerResponse
from snowmelt.server.middleware import AuthenticatedRequest, PostRoute
from snowmelt.server.request_process import ProcessEnded, RequestProcessPool
from snowmelt.storage.local_store import LocalStore
from snowmelt.storage.store import Store
from snowmelt.table.warehouse_paths import Warehouse
from snowmelt.wire.sites import (
    PULL_PATH,
    READ_BLOBS_PATH,
    READ_PATH,
    STATE_PATH,
    SiteState,
)
from snowmelt.wire.streaming import decode_message

if TYPE_CHECKING:
    from snowmelt.replication.protocol import PullRequest, PullResponse
    from snowmelt.replication.state_export import StateSource

_MAX_WAIT_S = 10.0
_POLL_S = 0.05
_EXPORT_MODULE = "snowmelt.server.replication.export_process"
_EXPORT_PROCESSES = 2
# The whole state of a large catalog takes minutes.
_EXPORT_TIMEOUT_S = 3600.0

_Result = TypeVar("_Result")


class _ContentPath(msgspec.Struct):
    """The field of `PullResponse` that the service reads."""

    content_path: str | None = None


class ReplicationRoutes:
    """Handlers of the requests of other sites. Blocking work runs in threads and processes."""

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
        self._exports = RequestProcessPool(settings, _EXPORT_MODULE, _EXPORT_PROCESSES, "export")
        self._states: StateSource | None = None
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
        return await self._respond(self._read(call, READ_PATH))

    async def read_blobs(self, call: AuthenticatedRequest) -> ServerResponse:
        """Return whole blobs."""
        return await self._respond(self._read(call, READ_BLOBS_PATH))

    async def describe_site(self, call: AuthenticatedRequest) -> ServerResponse:
        """Return the role and the epoch of this site."""
        del call
        return await self._respond(self._run(self._describe))

    def close(self) -> None:
        """Stop the export processes."""
        self._exports.close()

    async def _respond(self, work: Awaitable[bytes]) -> ServerResponse:
        try:
            return ServerResponse(HTTPStatus.OK, await work)
        except SnowmeltError as error:
            body = {"error": error.code, "message": str(error)}
            return ServerResponse(error.status, msgspec.json.encode(body))

    async def _run(self, work: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def _pull(self, call: AuthenticatedRequest) -> bytes:
        from snowmelt.replication.protocol import PullRequest

        request = decode_message(call.body, PullRequest)
        await self._run(partial(self._require_privilege, call))
        states = await self._run(self._open)
        loop = asyncio.get_running_loop()
        until = loop.time() + min(request.wait_s, _MAX_WAIT_S)
        if not await self._run(partial(states.has_news, request)):
            while loop.time() < until:
                await asyncio.sleep(_POLL_S)
                if not await self._run(partial(states.is_unchanged, request)):
                    break
        response = await self._run(partial(self._confirm, states, request))
        if not response.has_changes:
            return msgspec.msgpack.encode(response)
        body = await self._export(PULL_PATH, call, response)
        path = msgspec.msgpack.decode(body, type=_ContentPath).content_path
        if path is not None:
            with self._lock:
                self._contents[request.site] = path
        return body

    def _confirm(self, states: StateSource, request: PullRequest) -> PullResponse:
        response = states.confirm(request)
        if not request.keeps:
            # The follower has read its previous state, so delete the file of that state.
            with self._lock:
                path = self._contents.pop(request.site, None)
            if path is not None:
                self._stage.delete(path)
        return response

    async def _read(self, call: AuthenticatedRequest, path: str) -> bytes:
        await self._run(partial(self._require_privilege, call))
        return await self._export(path, call)

    async def _export(
        self, path: str, call: AuthenticatedRequest, response: PullResponse | None = None
    ) -> bytes:
        """Run a request in an export process. `response` is the response to a pull so far."""
        from snowmelt.replication.protocol import ExportRequest

        message = msgspec.msgpack.encode(ExportRequest(path, call.body, response))
        request = partial(self._exports.request, message, _EXPORT_TIMEOUT_S)
        try:
            return await asyncio.get_running_loop().run_in_executor(self._exports.threads, request)
        except ProcessEnded:
            raise ServiceBusy(
                reason="the process that exports states has ended. The log has the reason"
            ) from None

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
                objects = LocalStore(self._settings.objects_dir)
                self._states = StateSource(
                    BackupSource(
                        *(self._database, self._stage, self._warehouse),
                        *(objects, self._keyring, self._clock),
                    )
                )
            return self._states

    def _require_privilege(self, call: AuthenticatedRequest) -> None:
        with self._database.reading() as connection:
            role = resolve_effective_role(connection, call.user, call.resolve_internal_role(None))
            if not has_account_privilege(connection, {role, PUBLIC}, REPLICATE):
                raise PrivilegeMissing(
                    role=to_display_name(role), privilege=REPLICATE, object="the account"
                )
