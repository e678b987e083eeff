"""Channel service: configures clients, and opens, checks and drops channels.

Also adds columns of a client's rows that are missing in the table (`evolve_schema`).
"""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import sqlalchemy as sa

from snowmelt.catalog.db.database import Database
from snowmelt.catalog.db.replication_triggers import require_writable
from snowmelt.catalog.jobs import leases
from snowmelt.catalog.model.records import TableRecord
from snowmelt.catalog.objects import channel_tombstones, failover_groups, tables
from snowmelt.catalog.objects.failover_groups import ReportedChannel
from snowmelt.catalog.objects.renames_and_evolution import evolve_table, make_column
from snowmelt.catalog.objects.tables import find_current_name
from snowmelt.catalog.security import access_control
from snowmelt.catalog.security.access_control import resolve_effective_role
from snowmelt.catalog.security.encryption_keys import DataKey, KeyRing
from snowmelt.catalog.streaming import channels, client_rejections, registration
from snowmelt.clock import Clock
from snowmelt.errors import (
    ChannelFenced,
    ChannelNotFound,
    DefaultUnsupported,
    NameMissing,
    RequestMalformed,
    ServiceBusy,
    SnowmeltError,
    TableNotFound,
    TooManyChannels,
    Unsupported,
    UserError,
)
from snowmelt.ingest.channel_write_batcher import WriteBatcher
from snowmelt.ingest.stage_locations import StageLocator, StageRequester
from snowmelt.schema.types import Column, TableName, to_display_name, to_internal_name
from snowmelt.wire import streaming
from snowmelt.wire.streaming import (
    ChannelStatusMessage,
    ChannelStatusQuery,
    ChannelStatusRequest,
    ChannelStatusResponse,
    ConfigureClientRequest,
    ConfigureClientResponse,
    DropChannelRequest,
    DropChannelResponse,
    EvolveTableRequest,
    EvolveTableResponse,
    OpenChannelRequest,
    OpenChannelResponse,
    ResponseCode,
)

if TYPE_CHECKING:
    from snowmelt.ingest.registration_verifier import CatalogCache

_WRITE_PRIVILEGE = "INSERT"
_MAX_ERROR_CHARACTERS = 1_000
_Key = tuple[int, str]
_NAME_FIELDS = (
    ("database", ResponseCode.DATABASE_NAME_MISSING),
    ("schema", ResponseCode.SCHEMA_NAME_MISSING),
    ("table", ResponseCode.TABLE_NAME_MISSING),
)


@dataclass(frozen=True, slots=True)
class _RequestedOpen:
    """An open request for one channel, with parsed names."""

    table: TableName
    channel: str
    user: str
    request: OpenChannelRequest


@dataclass(frozen=True, slots=True)
class ChannelService:
    """Channel operations of the service. Concurrent opens and drops share a transaction."""

    database: Database
    write_batcher: WriteBatcher
    keyring: KeyRing
    catalog_cache: CatalogCache
    stage_locator: StageLocator
    clock: Clock

    def configure_client(
        self, request: ConfigureClientRequest, requester: StageRequester
    ) -> ConfigureClientResponse:
        """Issue a new, unique client prefix, and the upload location of its blobs.

        Raises:
            RoleNotGranted: If the role is not granted to the user.
            RequestMalformed: If a client renews with a prefix that was not issued to the user.
        """
        with self.database.writing() as connection:
            resolve_effective_role(connection, requester.user, _parse_role(request.role))
            deployment_id = leases.read_deployment_id(connection)
            if request.client_prefix is None:
                prefix = registration.issue_client_prefix(
                    connection, requester.user, self.clock.now()
                )
            else:
                prefix = request.client_prefix.removesuffix(f"_{deployment_id}")
                if registration.find_prefix_owner(connection, prefix) != requester.user:
                    raise RequestMalformed(
                        reason=f"client prefix {prefix[:100]!r} was not issued to this user"
                    )
        handout = self.stage_locator.issue_grant(requester, prefix)
        return ConfigureClientResponse(
            status_code=0,
            message="Success",
            prefix=prefix,
            deployment_id=deployment_id,
            stage_location=handout.location,
            stage_expires_in_s=handout.expires_in_s,
        )

    def open_channel(self, request: OpenChannelRequest, user: str) -> Future[OpenChannelResponse]:
        """Open a channel, fencing previous owners. A repeated request gets the first response again.

        Errors of the future:

        * RoleNotGranted: The role is not granted to the user.
        * TooManyChannels: The table has the maximum number of channels.
        * DatabaseNotFound, SchemaNotFound, TableNotFound: The object does not exist, or the role
          may not use it.

        Raises:
            NameMissing: If the request lacks a name.
            RequestMalformed: If a name or the offset token contains NUL.
            Unsupported: If the client uses Iceberg mode.
        """
        if request.is_iceberg:
            raise Unsupported(
                what="Streaming in Iceberg mode", instead="leave enable_iceberg_streaming off"
            )
        name, channel = _parse_table_name(request), _parse_channel_name(request.channel)
        if "\0" in (request.offset_token or ""):
            raise RequestMalformed(reason="an offset token cannot contain the character NUL")
        return self.write_batcher.submit_item(
            self._open_in_transaction, _RequestedOpen(name, channel, user, request), group_key=name
        )

    def _open_in_transaction(
        self, connection: sa.Connection, requests: Sequence[_RequestedOpen]
    ) -> list[OpenChannelResponse | SnowmeltError]:
        """Open channels of any tables, in order for each table. Return a response for each."""
        responses: dict[int, OpenChannelResponse | SnowmeltError] = {}
        tables_by_sender: dict[tuple[TableName, str, str | None], TableRecord | SnowmeltError] = {}
        together: dict[int, tuple[TableRecord, list[int]]] = {}
        for number, requested in enumerate(requests):
            sender = requested.table, requested.user, requested.request.role
            if sender not in tables_by_sender:
                try:
                    tables_by_sender[sender] = self._find_writable_table(connection, *sender)
                except SnowmeltError as error:
                    tables_by_sender[sender] = error
            table = tables_by_sender[sender]
            if isinstance(table, SnowmeltError):
                responses[number] = table
            elif not requested.request.fills_defaults and (column := _find_default(table)):
                responses[number] = DefaultUnsupported(
                    table=table.name, column=column.display_name, default=column.default_sql
                )
            else:
                together.setdefault(table.table_id, (table, []))[1].append(number)
        for table, numbers in together.values():
            opens = [self._make_channel_open(requests[number]) for number in numbers]
            found = self._open_channels_of_table(connection, table, opens)
            responses.update(zip(numbers, found, strict=True))
        return [responses[number] for number in range(len(requests))]

    def _open_channels_of_table(
        self, connection: sa.Connection, table: TableRecord, opens: Sequence[channels.ChannelOpen]
    ) -> Sequence[OpenChannelResponse | SnowmeltError]:
        try:
            opened = channels.open_channels(connection, table, opens, now=self.clock.now())
        except TableNotFound as error:
            return [error] * len(opens)
        reporting = [
            result
            for request, result in zip(opens, opened, strict=True)
            if request.reports_rejections and isinstance(result, channels.OpenChannelResult)
        ]
        client_rejections.begin_reports(connection, table.table_id, reporting)
        unreported = failover_groups.find_unreported_channels(
            connection,
            [
                (table.table_id, each.record.name, each.record.row_sequencer)
                for each in opened
                if isinstance(each, channels.OpenChannelResult)
            ],
        )
        error_table = _find_error_table_name(connection, table)
        table_columns = [streaming.column_to_message(column) for column in table.schema.columns]
        keys: dict[str, DataKey] = {}

        def make_response(
            request: channels.ChannelOpen, result: channels.OpenChannelResult
        ) -> OpenChannelResponse:
            record, user = result.record, request.user
            if user not in keys:
                keys[user] = self.keyring.get_or_create_data_key(connection, table, user)
            return OpenChannelResponse(
                status_code=0,
                message="Success",
                database=to_display_name(table.name.database),
                schema=to_display_name(table.name.schema),
                table=to_display_name(table.name.table),
                channel=to_display_name(record.name),
                client_sequencer=record.client_sequencer,
                row_sequencer=record.row_sequencer,
                offset_token=record.offset_token,
                table_columns=table_columns,
                encryption_key=base64.b64encode(keys[user].key).decode(),
                encryption_key_id=keys[user].key_id,
                previous_owner=result.previous_owner,
                last_path=record.last_path,
                last_chunk_offset=record.last_chunk_offset,
                schema_version=table.schema.version,
                error_table=error_table,
                takes_rowless=True,
            )

        def respond(
            request: channels.ChannelOpen, result: channels.OpenChannelResult | TooManyChannels
        ) -> OpenChannelResponse | SnowmeltError:
            if not isinstance(result, channels.OpenChannelResult):
                return result
            if (table.table_id, result.record.name) in unreported:
                # A client resends the rows after its committed token, so all followers must have
                # the rows up to this token. The request is stored, so a retry does not open the
                # channel again.
                return ServiceBusy(reason=failover_groups.NOT_REPLICATED)
            return make_response(request, result)

        return list(map(respond, opens, opened))

    def get_channel_statuses(
        self, request: ChannelStatusRequest, user: str
    ) -> ChannelStatusResponse:
        """Return the committed offset token or an error code for each channel, in request order.

        Raises:
            RoleNotGranted: If the role is not granted to the user.
        """
        with self.database.reading() as connection:
            # The state of a follower must not fence the clients of the primary.
            require_writable(connection)
            resolve_effective_role(connection, user, _parse_role(request.role))
            seen: dict[tuple[TableName, int | None], TableRecord | UserError] = {}
            found = [
                self._resolve_channel(connection, query, (user, request.role), seen)
                for query in request.channels
            ]
            names = [(named[0].table_id, named[1]) for named in found if isinstance(named, tuple)]
            reported = failover_groups.find_reported_channels(connection, names)
            records = _replace_with_reported_tokens(
                channels.find_channels(connection, names), reported
            )
            foreign = _find_queries_matching_foreign_channels(
                connection, request.channels, found, records
            )
            answers = [
                _build_channel_status(query, named, {} if number in foreign else records, reported)
                for number, (query, named) in enumerate(zip(request.channels, found, strict=True))
            ]
            error_tables_by_id: dict[int, str | None] = {}
            for answer, named in zip(answers, found, strict=True):
                if isinstance(answer.schema_version, int) and isinstance(named, tuple):
                    table = named[0]
                    if table.table_id not in error_tables_by_id:
                        error_tables_by_id[table.table_id] = _find_error_table_name(
                            connection, table
                        )
                    answer.error_table = error_tables_by_id[table.table_id]
        reports = [
            client_rejections.ReportedRejections(
                named[0].table_id,
                named[1],
                query.client_sequencer,
                query.rejected_rows,
                (query.last_error or "")[:_MAX_ERROR_CHARACTERS] or None,
            )
            for query, named, answer in zip(request.channels, found, answers, strict=True)
            if isinstance(named, tuple)
            and answer.status_code == 0
            and query.client_sequencer is not None
            and query.rejected_rows is not None
        ]
        if reports:
            with self.database.writing() as connection:
                client_rejections.record_reports(connection, reports, self.clock.now())
        return ChannelStatusResponse(status_code=0, message="Success", channels=answers)

    def drop_channel(self, request: DropChannelRequest, user: str) -> Future[DropChannelResponse]:
        """Drop a channel. If a client sequencer is given, drop it only if that is still the owner.

        Errors of the future:

        * RoleNotGranted: The role is not granted to the user.
        * ChannelNotFound: The channel does not exist.
        * ChannelFenced: Another client has opened the channel.
        * DatabaseNotFound, SchemaNotFound, TableNotFound: The object does not exist, or the role
          may not use it.

        Raises:
            NameMissing: If the request lacks a name.
        """
        name, channel = _parse_table_name(request), _parse_channel_name(request.channel)

        def drop(connection: sa.Connection) -> DropChannelResponse:
            current = find_current_name(connection, name, request.encryption_key_id, user)
            table = self._find_writable_table(connection, current, user, request.role)
            try:
                channels.drop_channel(
                    connection,
                    table,
                    channel,
                    client_sequencer=request.client_sequencer,
                    user=user,
                    now=self.clock.now(),
                )
            except ChannelNotFound:
                # A drop that is repeated after a lost response succeeds.
                left = channel_tombstones.find_tombstones(connection, current, [channel])
                if (
                    channel not in left
                    or left[channel].client_sequencer != request.client_sequencer
                ):
                    raise
            return DropChannelResponse(
                status_code=0,
                message="Success",
                database=to_display_name(current.database),
                schema=to_display_name(current.schema),
                table=to_display_name(current.table),
                channel=to_display_name(channel),
            )

        return self.write_batcher.submit(drop, group_key=name)

    def _find_writable_table(
        self, connection: sa.Connection, name: TableName, user: str, role: str | None
    ) -> TableRecord:
        effective = resolve_effective_role(connection, user, _parse_role(role))
        table = tables.find_table(connection, name)
        try:
            access_control.require_table_privilege(connection, effective, table, _WRITE_PRIVILEGE)
        except UserError:
            if not tables.can_write_error_rows(connection, effective, table.table_id):
                raise
        return table

    def _resolve_channel(
        self,
        connection: sa.Connection,
        query: ChannelStatusQuery,
        caller: tuple[str, str | None],
        resolved_tables: dict[tuple[TableName, int | None], TableRecord | UserError],
    ) -> tuple[TableRecord, str] | UserError:
        """Return the table and channel in a query, or the error in the names."""
        try:
            name, channel = _parse_table_name(query), _parse_channel_name(query.channel_name)
        except NameMissing as error:
            return error
        asked = name, query.encryption_key_id
        if asked not in resolved_tables:
            name = find_current_name(connection, *asked, caller[0])
            try:
                resolved_tables[asked] = self._find_writable_table(connection, name, *caller)
            except UserError as error:
                resolved_tables[asked] = error
        table = resolved_tables[asked]
        return table if isinstance(table, UserError) else (table, channel)

    def _make_channel_open(self, requested: _RequestedOpen) -> channels.ChannelOpen:
        """Convert a request to a `ChannelOpen`. A request ID has the form `<client prefix>_<n>`.

        A request ID that has no prefix of this user is ignored (None). Otherwise a user could
        replay another user's request.
        """
        request_id, token = requested.request.request_id, requested.request.offset_token
        client_prefix, _, count = (request_id or "").rpartition("_")
        prefix = client_prefix.rpartition("_")[0] or client_prefix
        if (
            not count
            or not prefix
            or self.catalog_cache.find_prefix_owner(prefix) != requested.user
        ):
            request_id = None
        return channels.ChannelOpen(
            requested.channel,
            requested.user,
            client_prefix or None,
            request_id,
            token,
            requested.request.reports_rejections,
        )


def _replace_with_reported_tokens(
    records: Mapping[_Key, channels.ChannelRecord],
    reported: Mapping[_Key, ReportedChannel] | None,
) -> Mapping[_Key, channels.ChannelRecord]:
    """Return channels with the offset tokens that may be reported to clients.

    A source may delete the rows up to a reported token. If a failover group protects tokens, only
    tokens that all followers have may be reported: `reported` has these. If it is None, all
    committed tokens are reported.
    """
    if reported is None:
        return records
    return {
        key: replace(record, offset_token=reported[key].offset_token if key in reported else None)
        for key, record in records.items()
    }


def _find_queries_matching_foreign_channels(
    connection: sa.Connection,
    queries: Sequence[ChannelStatusQuery],
    resolved_channels: Sequence[tuple[TableRecord, str] | UserError],
    records: Mapping[tuple[int, str], channels.ChannelRecord],
) -> set[int]:
    """Return the indexes of queries that may match another client's channel by accident.

    A new table may have the name of a dropped one, and a channel with the same name and sequencer.
    The client must not use the committed token of that channel.
    """
    asked: dict[TableName, dict[str, list[int]]] = {}
    opened_at: dict[int, dt.datetime] = {}
    for number, (query, named) in enumerate(zip(queries, resolved_channels, strict=True)):
        if query.encryption_key_id is None and isinstance(named, tuple):
            record = records.get((named[0].table_id, named[1]))
            if record is not None and query.client_sequencer == record.client_sequencer:
                asked.setdefault(named[0].name, {}).setdefault(named[1], []).append(number)
                opened_at[number] = record.opened_at
    return {
        number
        for table, names in asked.items()
        for name, left in channel_tombstones.find_tombstones(connection, table, names).items()
        for number in names[name]
        if left.dropped_at > opened_at[number]
    }


def _build_channel_status(
    query: ChannelStatusQuery,
    resolved_channel: tuple[TableRecord, str] | UserError,
    records: Mapping[_Key, channels.ChannelRecord],
    reported: Mapping[_Key, ReportedChannel] | None,
) -> ChannelStatusMessage:
    if isinstance(resolved_channel, UserError):
        return _build_error_status(resolved_channel)
    table, channel = resolved_channel
    record = records.get((table.table_id, channel))
    if record is None:
        return _build_error_status(
            ChannelNotFound(channel=to_display_name(channel), table=table.name)
        )
    status = ChannelStatusMessage(
        status_code=int(ResponseCode.SUCCESS),
        persisted_offset_token=record.offset_token,
        persisted_client_sequencer=record.client_sequencer,
        persisted_row_sequencer=record.row_sequencer,
    )
    if query.client_sequencer not in {None, record.client_sequencer}:
        # Include the token, because the official client uses it regardless of the code. Without a
        # token, an application would resend committed rows.
        fenced = ChannelFenced(channel=to_display_name(channel))
        status.status_code, status.message = fenced.response_code, str(fenced)
        return status
    if query.with_replication and reported is not None:
        state = reported.get((table.table_id, channel))
        is_current = state is not None and state.client_sequencer == record.client_sequencer
        status.replicated_row_sequencer = state.row_sequencer if state and is_current else 0
    if query.with_columns:
        status.table_columns = [
            streaming.column_to_message(column) for column in table.schema.columns
        ]
        status.schema_version = table.schema.version
        status.database = to_display_name(table.name.database)
        status.schema = to_display_name(table.name.schema)
        status.table = to_display_name(table.name.table)
    return status


def _find_error_table_name(connection: sa.Connection, table: TableRecord) -> str | None:
    found = tables.find_error_table(connection, table)
    return None if found is None else str(found.name)


def _build_error_status(error: UserError) -> ChannelStatusMessage:
    code = getattr(error, "wire_code", error.response_code)
    return ChannelStatusMessage(status_code=int(code), message=str(error))


def _parse_role(requested: str | None) -> str | None:
    return to_internal_name(requested) if requested else None


def _parse_channel_name(text: str | None) -> str:
    if not text:
        raise NameMissing("channel", ResponseCode.CHANNEL_NAME_MISSING)
    if "\0" in text:
        # Reject NUL, because neither database can match a text with NUL.
        raise RequestMalformed(reason="a channel's name cannot contain the character NUL")
    return to_internal_name(text)


def _find_default(table: TableRecord) -> Column | None:
    return next((each for each in table.schema.columns if each.default is not None), None)


def _parse_table_name(
    message: OpenChannelRequest | DropChannelRequest | ChannelStatusQuery,
) -> TableName:
    parts = (message.database, message.schema, message.table)
    for part, (what, code) in zip(parts, _NAME_FIELDS, strict=True):
        if not part:
            raise NameMissing(what, code)
    database, schema, table = (to_internal_name(part or "") for part in parts)
    return TableName(database, schema, table)


def evolve_schema(
    database: Database, clock: Clock, request: EvolveTableRequest, user: str
) -> EvolveTableResponse:
    """Add missing columns to a table, and drop NOT NULL constraints.

    Raises:
        RequestMalformed: If the name of the table or of a column is missing.
        RoleNotGranted: If the role is not granted to the user.
        StatementError: If a column type is invalid.
        TableNotFound: If the table does not exist, or the role may not use it.
        PrivilegeMissing: If the role may not evolve the table.
        EvolutionRefused: If schema evolution is not enabled, one request adds more than 100
            columns, or a new column has the name of a companion column.
        NotFound: If a column in `drop_not_null` does not exist.
    """
    if not (request.database and request.schema and request.table):
        raise RequestMalformed(reason="database, schema and table must be named")
    parts = (to_internal_name(part) for part in (request.database, request.schema, request.table))
    wanted = [make_column(_parse_column_name(each.name), each.type) for each in request.columns]
    with database.writing() as connection:
        done = evolve_table(
            connection,
            find_current_name(connection, TableName(*parts), request.encryption_key_id, user),
            new_columns=wanted,
            no_longer_required=[_parse_column_name(name) for name in request.drop_not_null],
            role=resolve_effective_role(connection, user, _parse_role(request.role)),
            now=clock.now(),
        )
    return EvolveTableResponse(
        status_code=0,
        message="Success",
        schema_version=done.table.schema.version,
        table_columns=[streaming.column_to_message(column) for column in done.table.schema.columns],
        added=[to_display_name(name) for name in done.added_columns],
        dropped_not_null=[to_display_name(name) for name in done.relaxed_columns],
    )


def _parse_column_name(text: str) -> str:
    name = to_internal_name(text) if text else ""
    if not name or "\0" in name:
        raise RequestMalformed(reason=f"{text!r} is not a valid column name")
    return name
