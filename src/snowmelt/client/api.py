"""The short requests of a client: configure, open, status, drop (specification of v1, §2.1–2.4)."""

from __future__ import annotations

import base64
import itertools
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from snowmelt.client.channel_state import ChannelState, Target
from snowmelt.client.stage import Grant
from snowmelt.errors import ChannelNotFound, InternalError, ServiceUnavailable
from snowmelt.schema.column_metadata import column_from_fields
from snowmelt.schema.types import TableName, TableSchema, display_name, internal_name
from snowmelt.wire.streaming import (
    ChannelStatusMessage,
    ChannelStatusQuery,
    ConfigureRequest,
    ConfigureResponse,
    DropRequest,
    DropResponse,
    EvolveRequest,
    EvolveResponse,
    NewColumn,
    OpenRequest,
    OpenResponse,
    StatusRequest,
    StatusResponse,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from snowmelt.client.channel_state import ConverterFor
    from snowmelt.client.transport import AnswerType, Transport
    from snowmelt.wire.streaming import ColumnMetadata

_CONFIGURE = "/v1/streaming/client/configure/"
_OPEN = "/v1/streaming/channels/open/"
_STATUS = "/v1/streaming/channels/status/"
_EVOLVE = "/v1/snowmelt/tables/evolve"
_DROP = "/v1/streaming/channels/drop/"


class ChannelName(NamedTuple):
    """A channel as the user, or the service, writes it."""

    database: str
    schema: str
    table: str
    channel: str


class Calls:
    """Requests under one client prefix, which is asked for when this is made; thread-safe."""

    def __init__(self, transport: Transport, role: str | None, timeout_s: float) -> None:
        self._transport = transport
        self._role = role
        self._timeout_s = timeout_s
        self._numbers = itertools.count()
        configured = self._ask(_CONFIGURE, ConfigureRequest(role=role), ConfigureResponse)
        if not configured.prefix:
            raise InternalError("The service's configuration names no prefix.")
        self.prefix = configured.prefix
        if configured.deployment_id is not None:
            self.prefix += f"_{configured.deployment_id}"
        self.grant = _grant(configured)

    def renewed_grant(self) -> Grant:
        """Ask for the stage again, with new credentials.

        Raises:
            SnowmeltError: The service refused, or does not answer.
        """
        request = ConfigureRequest(role=self._role, client_prefix=self.prefix)
        return _grant(self._ask(_CONFIGURE, request, ConfigureResponse))

    def next_request_id(self) -> str:
        """Return an id that this client has not used: opening is idempotent by it."""
        return f"{self.prefix}_{next(self._numbers)}"

    def open(
        self, name: ChannelName, offset_token: str | None, converter_for: ConverterFor
    ) -> ChannelState:
        """Open a channel.

        Raises:
            SnowmeltError: The service refused, or does not answer.
        """
        request = OpenRequest(
            request_id=self.next_request_id(),
            role=self._role,
            channel=name.channel,
            table=name.table,
            database=name.database,
            schema=name.schema,
            write_mode="CLOUD_STORAGE",
            offset_token=offset_token,
        )
        return opened(self._ask(_OPEN, request, OpenResponse), converter_for)

    @property
    def is_answered(self) -> bool:
        """Whether the service answered the last time."""
        return self._transport.trouble is None

    def statuses(
        self,
        channels: Sequence[ChannelState],
        *,
        with_columns: bool = False,
        timeout_s: float | None = None,
    ) -> list[ChannelStatusMessage]:
        """Return the status of each channel, in the same order.

        `timeout_s` is for how long the service is asked again, None that of all requests.

        Raises:
            SnowmeltError: The service refused, or does not answer.
        """
        queries = [
            ChannelStatusQuery(
                **_table_fields(channel.target.table),
                channel_name=channel.name,
                client_sequencer=channel.client_sequencer,
                with_columns=with_columns,
                encryption_key_id=channel.target.key_id,
            )
            for channel in channels
        ]
        request = StatusRequest(queries, self._role)
        patience = self._transport.patience(self._timeout_s if timeout_s is None else timeout_s)
        answer = self._transport.ask(_STATUS, request, StatusResponse, patience)
        if len(answer.channels) != len(queries):
            raise InternalError("The service's answer does not fit the channels asked for.")
        return answer.channels

    def evolve(
        self, target: Target, new: Mapping[str, str], no_longer_required: Sequence[str]
    ) -> EvolveResponse:
        """Add columns to a table, by internal names and types, and take NOT NULL off others.

        Raises:
            SnowmeltError: The service refused, or does not answer.
        """
        request = EvolveRequest(
            **_table_fields(target.table),
            role=self._role,
            columns=[NewColumn(display_name(name), kind) for name, kind in new.items()],
            drop_not_null=[display_name(name) for name in no_longer_required],
            encryption_key_id=target.key_id,
        )
        return self._ask(_EVOLVE, request, EvolveResponse)

    def drop(
        self, name: ChannelName, client_sequencer: int | None = None, key_id: int | None = None
    ) -> DropResponse:
        """Drop a channel; with a sequencer only if it is still that epoch.

        With the id of its key it is found under whatever name its table has now.

        Raises:
            SnowmeltError: The service refused, or does not answer.
        """
        request = DropRequest(
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
            return self._ask(_DROP, request, DropResponse)
        except ChannelNotFound as error:
            # The first attempt dropped it, and its answer was lost.
            if error.fields.get("retried"):
                return DropResponse(0, "Success")
            raise

    def _ask(self, path: str, message: msgspec.Struct, kind: type[AnswerType]) -> AnswerType:
        patience = self._transport.patience(self._timeout_s)
        try:
            return self._transport.ask(path, message, kind, patience)
        except ServiceUnavailable as error:
            if not patience.is_expired:
                raise
            reason = f"{error.fields['reason']}. To wait longer, raise request_timeout"
            raise self._transport.unavailable(reason) from error


def _table_fields(table: TableName) -> dict[str, str]:
    return dict(zip(("database", "schema", "table"), table.display_name, strict=True))


def _grant(configured: ConfigureResponse) -> Grant:
    if configured.stage_location is None:
        raise InternalError("The service's configuration names no stage.")
    return Grant(configured.stage_location, configured.stage_expires_in_s)


def schema_of(columns: Sequence[ColumnMetadata], version: int) -> TableSchema:
    """Return a table's columns as the service described them.

    Raises:
        Unsupported: One of them cannot be streamed into.
    """
    read = (column_from_fields(msgspec.structs.asdict(column)) for column in columns)
    return TableSchema(version, tuple(sorted(read, key=lambda column: column.ordinal)))


def opened(answer: OpenResponse, converter_for: ConverterFor) -> ChannelState:
    """Return the state of a channel as the service opened it.

    Raises:
        InternalError: The answer lacks something.
        Unsupported: The table has a column that cannot be streamed into.
    """
    names = (answer.database, answer.schema, answer.table, answer.channel)
    numbers = (answer.client_sequencer, answer.row_sequencer, answer.encryption_key_id)
    if None in names or None in numbers or not (answer.table_columns and answer.encryption_key):
        raise InternalError("The service's answer to open is not complete.")
    schema = schema_of(answer.table_columns, answer.schema_version or 1)
    target = Target(
        TableName(*(internal_name(str(each)) for each in names[:3])),
        schema,
        answer.encryption_key_id or 0,
        base64.b64decode(answer.encryption_key),
    )
    state = ChannelState(
        str(answer.channel),
        target,
        converter_for,
        (answer.client_sequencer or 0, answer.row_sequencer or 0),
        answer.offset_token,
    )
    state.error_table = answer.error_table
    state.takes_rowless = answer.takes_rowless
    return state
