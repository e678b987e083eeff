"""Configure, open, status, evolve and drop requests of a client (specification of v1, §2.1-2.4)."""

from __future__ import annotations

import base64
import itertools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from snowmelt.client.channel_state import ChannelState, ChannelTarget
from snowmelt.client.stage import UploadGrant
from snowmelt.client.transport import ResponseT, Transport
from snowmelt.errors import ChannelNotFound, InternalError, ServiceUnavailable
from snowmelt.schema.types import TableName, TableSchema, to_display_name, to_internal_name
from snowmelt.wire.streaming import (
    ChannelStatusMessage,
    ChannelStatusQuery,
    ChannelStatusRequest,
    ChannelStatusResponse,
    ColumnMetadata,
    ConfigureClientRequest,
    ConfigureClientResponse,
    DropChannelRequest,
    DropChannelResponse,
    EvolveTableRequest,
    EvolveTableResponse,
    NewColumn,
    OpenChannelRequest,
    OpenChannelResponse,
    column_from_message,
)

if TYPE_CHECKING:
    from snowmelt.client.channel_state import ConverterFactory

_CONFIGURE_PATH = "/v1/streaming/client/configure/"
_OPEN_PATH = "/v1/streaming/channels/open/"
_STATUS_PATH = "/v1/streaming/channels/status/"
_EVOLVE_PATH = "/v1/snowmelt/tables/evolve"
_DROP_PATH = "/v1/streaming/channels/drop/"
_MAX_ERROR_CHARACTERS = 1_000


class ChannelName(NamedTuple):
    """The parts of a channel name as written by the user or the service."""

    database: str
    schema: str
    table: str
    channel: str


class ApiClient:
    """Sends requests with one client prefix, which the constructor requests. Thread-safe."""

    def __init__(self, transport: Transport, role: str | None, timeout_s: float) -> None:
        self._transport = transport
        self._role = role
        self._timeout_s = timeout_s
        self._request_counter = itertools.count()
        configured = self._send_request(
            _CONFIGURE_PATH, ConfigureClientRequest(role=role), ConfigureClientResponse
        )
        if not configured.prefix:
            raise InternalError("The configure response contains no prefix.")
        self.prefix = configured.prefix
        if configured.deployment_id is not None:
            self.prefix += f"_{configured.deployment_id}"
        self.upload_grant = _make_upload_grant(configured)

    def renew_upload_grant(self) -> UploadGrant:
        """Request new credentials for the stage.

        Raises:
            SnowmeltError: If the service rejects the request or does not respond.
        """
        request = ConfigureClientRequest(role=self._role, client_prefix=self.prefix)
        return _make_upload_grant(
            self._send_request(_CONFIGURE_PATH, request, ConfigureClientResponse)
        )

    def next_request_id(self) -> str:
        """Return a new request ID, which makes open requests idempotent."""
        return f"{self.prefix}_{next(self._request_counter)}"

    def open_channel(
        self, name: ChannelName, offset_token: str | None, make_converter: ConverterFactory
    ) -> ChannelState:
        """Open a channel.

        Raises:
            SnowmeltError: If the service rejects the request or does not respond.
        """
        request = OpenChannelRequest(
            request_id=self.next_request_id(),
            role=self._role,
            channel=name.channel,
            table=name.table,
            database=name.database,
            schema=name.schema,
            write_mode="CLOUD_STORAGE",
            offset_token=offset_token,
            fills_defaults=True,
            reports_rejections=True,
        )
        return make_channel_state(
            self._send_request(_OPEN_PATH, request, OpenChannelResponse), make_converter
        )

    @property
    def got_response_to_last_request(self) -> bool:
        """True if the service responded to the last request."""
        return self._transport.last_error is None

    def fetch_statuses(
        self,
        channels: Sequence[ChannelState],
        *,
        include_columns: bool = False,
        include_replication: bool = False,
        timeout_s: float | None = None,
    ) -> list[ChannelStatusMessage]:
        """Return the status of each channel, in the same order.

        `include_replication` requests `replicated_row_sequencer`. `timeout_s` limits the retries. None: `request_timeout`.

        Raises:
            SnowmeltError: If the service rejects the request or does not respond.
        """
        queries = [
            ChannelStatusQuery(
                **_make_table_fields(channel.target.table),
                channel_name=channel.name,
                client_sequencer=channel.client_sequencer,
                with_columns=include_columns,
                encryption_key_id=channel.target.key_id,
                rejected_rows=channel.unreported_rejections,
                last_error=_find_unreported_error(channel),
                with_replication=include_replication,
            )
            for channel in channels
        ]
        request = ChannelStatusRequest(queries, self._role)
        patience = self._transport.make_backoff(self._timeout_s if timeout_s is None else timeout_s)
        answer = self._transport.send_request(
            _STATUS_PATH, request, ChannelStatusResponse, patience
        )
        if len(answer.channels) != len(queries):
            raise InternalError("The response does not match the requested channels.")
        for channel, query, status in zip(channels, queries, answer.channels, strict=True):
            if status.status_code == 0 and query.rejected_rows is not None:
                channel.reported_rejections = query.rejected_rows
        return answer.channels

    def evolve_table(
        self, target: ChannelTarget, new_columns: Mapping[str, str], nullable_columns: Sequence[str]
    ) -> EvolveTableResponse:
        """Add columns (internal names and types), and drop NOT NULL from others.

        Raises:
            SnowmeltError: If the service rejects the request or does not respond.
        """
        request = EvolveTableRequest(
            **_make_table_fields(target.table),
            role=self._role,
            columns=[NewColumn(to_display_name(name), kind) for name, kind in new_columns.items()],
            drop_not_null=[to_display_name(name) for name in nullable_columns],
            encryption_key_id=target.key_id,
        )
        return self._send_request(_EVOLVE_PATH, request, EvolveTableResponse)

    def drop_channel(
        self, name: ChannelName, client_sequencer: int | None = None, key_id: int | None = None
    ) -> DropChannelResponse:
        """Drop a channel. If a sequencer is given, only if no other client has opened it since.

        If the ID of its key is given, the channel is found even if its table was renamed.

        Raises:
            SnowmeltError: If the service rejects the request or does not respond.
        """
        request = DropChannelRequest(
            request_id=self.next_request_id(),
            role=self._role,
            channel=name.channel,
            table=name.table,
            database=name.database,
            schema=name.schema,
            client_sequencer=client_sequencer,
            encryption_key_id=key_id,
        )
        try:
            return self._send_request(_DROP_PATH, request, DropChannelResponse)
        except ChannelNotFound as error:
            # The first attempt has dropped the channel, and its response was lost.
            if error.fields.get("retried"):
                return DropChannelResponse(0, "Success")
            raise

    def _send_request(
        self, path: str, request: msgspec.Struct, response_type: type[ResponseT]
    ) -> ResponseT:
        patience = self._transport.make_backoff(self._timeout_s)
        try:
            return self._transport.send_request(path, request, response_type, patience)
        except ServiceUnavailable as error:
            if not patience.is_expired:
                raise
            reason = f"{error.fields['reason']}. To wait longer, raise request_timeout"
            raise self._transport.make_unavailable_error(reason) from error


def _find_unreported_error(channel: ChannelState) -> str | None:
    if channel.unreported_rejections is None or channel.last_error is None:
        return None
    return str(channel.last_error)[:_MAX_ERROR_CHARACTERS]


def _make_table_fields(table: TableName) -> dict[str, str]:
    return dict(zip(("database", "schema", "table"), table.display_name, strict=True))


def _make_upload_grant(response: ConfigureClientResponse) -> UploadGrant:
    if response.stage_location is None:
        raise InternalError("The configure response contains no stage.")
    return UploadGrant(response.stage_location, response.stage_expires_in_s)


def schema_from_metadata(columns: Sequence[ColumnMetadata], version: int) -> TableSchema:
    """Convert column metadata to the schema of a table.

    Raises:
        Unsupported: If the type of a column does not support streaming.
    """
    read = map(column_from_message, columns)
    return TableSchema(version, tuple(sorted(read, key=lambda column: column.ordinal)))


def make_channel_state(
    response: OpenChannelResponse, make_converter: ConverterFactory
) -> ChannelState:
    """Create the state of a channel from the response to an open request.

    Raises:
        InternalError: If the response is incomplete.
        Unsupported: If the table has a column whose type does not support streaming.
    """
    names = (response.database, response.schema, response.table, response.channel)
    numbers = (response.client_sequencer, response.row_sequencer, response.encryption_key_id)
    if None in names or None in numbers or not (response.table_columns and response.encryption_key):
        raise InternalError("The response to the open request is incomplete.")
    schema = schema_from_metadata(response.table_columns, response.schema_version or 1)
    target = ChannelTarget(
        TableName(*(to_internal_name(str(each)) for each in names[:3])),
        schema,
        response.encryption_key_id or 0,
        base64.b64decode(response.encryption_key),
    )
    state = ChannelState(
        str(response.channel),
        target,
        make_converter,
        (response.client_sequencer or 0, response.row_sequencer or 0),
        response.offset_token,
    )
    state.error_table = response.error_table
    state.accepts_token_without_rows = response.takes_rowless
    return state
