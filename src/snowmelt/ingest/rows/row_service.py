"""Operations of the row API, without HTTP: pipes, channels and append requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

import sqlalchemy as sa

from snowmelt.catalog.db.database import Database
from snowmelt.catalog.db.replication_triggers import require_writable
from snowmelt.catalog.objects import failover_groups
from snowmelt.catalog.objects.channel_tombstones import find_tombstones
from snowmelt.catalog.objects.failover_groups import ReportedChannel
from snowmelt.catalog.streaming import channels, row_request_state
from snowmelt.catalog.streaming.row_request_state import RowChannel
from snowmelt.clock import Clock, to_epoch_ms
from snowmelt.errors import (
    ChannelGone,
    ChannelNotFound,
    ContinuationStale,
    PipeNotFound,
    RequestMalformed,
    RowsBusy,
    TableNotFound,
)
from snowmelt.ingest.channel_write_batcher import WriteBatcher
from snowmelt.ingest.migration_backlog import BackPressure
from snowmelt.ingest.rows.append_types import (
    AppendCommitted,
    AppendOutcome,
    AppendRequest,
    ContinuationToken,
    parse_continuation_token,
)
from snowmelt.ingest.rows.binary_encoding_tracker import ClientEncodingInstructions
from snowmelt.ingest.rows.group_commit import GroupCommitter, find_position_outcome
from snowmelt.ingest.rows.row_converter import ConvertedRows, ConverterPool
from snowmelt.ingest.rows.schema_evolution import TableEvolver
from snowmelt.ingest.rows.targets import (
    ELASTIC_CHANNEL,
    PipePath,
    PipeTarget,
    RowSender,
    SdkClient,
    TargetResolver,
    elastic_channel_name,
    find_table_name,
    find_writable_table,
    has_binary_column,
    is_elastic_channel,
)
from snowmelt.schema.types import to_internal_name
from snowmelt.wire.row_api import OpenRowChannelResponse, RowChannelStatus, RowChannelStatusResponse

_MAX_STATUS_CHANNELS = 1_000


@dataclass(frozen=True, slots=True)
class RawAppendRequest:
    """A decompressed append request.

    `continuation` is the text of the continuation token, or None for the elastic channel. `client`
    is None if the request is not from the official SDK.
    """

    path: PipePath
    channel: str
    sender: RowSender
    request_id: str
    continuation: str | None
    start_offset_token: str | None
    end_offset_token: str | None
    client: SdkClient | None = None


@dataclass(frozen=True, slots=True)
class RowService:
    """Operations of the row API. Methods block and must run in a thread."""

    database: Database
    write_batcher: WriteBatcher
    target_resolver: TargetResolver
    converter_pool: ConverterPool
    group_committer: GroupCommitter
    clock: Clock
    table_evolver: TableEvolver
    back_pressure: BackPressure
    binary_encodings: ClientEncodingInstructions

    def open_channel(
        self,
        path: PipePath,
        channel: str,
        sender: RowSender,
        *,
        request_id: str,
        offset_token: str | None,
        client: SdkClient | None = None,
    ) -> Future[OpenRowChannelResponse]:
        """Open a channel, fencing its previous owner. A repeated request has no further effect.

        Errors of the future:

        * PipeNotFound: The pipe does not exist, or the role may not insert through it.
        * TooManyChannels: The table has the maximum number of channels.
        * RowsBusy: The binary encoding of the client is not known yet. Retryable.

        Raises:
            RequestMalformed: If the channel name is invalid.
        """
        if is_elastic_channel(channel):
            raise RequestMalformed(reason=f"{ELASTIC_CHANNEL} is reserved and cannot be opened")
        name = parse_channel_name(channel)
        _reject_nul(request_id, offset_token)

        def write(connection: sa.Connection) -> OpenRowChannelResponse:
            table, _ = find_writable_table(connection, path, sender)
            base64 = self.binary_encodings.may_use_base64_in_new_channel(connection, path, client)
            try:
                opened = channels.open_channel(
                    connection,
                    table,
                    name,
                    user=sender.user,
                    client_prefix=f"row-api/{sender.user}" if request_id else None,
                    request_id=request_id or None,
                    offset_token=offset_token,
                    now=self.clock.now(),
                ).record
            except TableNotFound:
                raise PipeNotFound(pipe=path) from None
            known = row_request_state.find_row_channels(connection, table.table_id, [name])
            following = ContinuationToken(
                opened.client_sequencer, opened.row_sequencer + 1, table.table_id, base64
            )
            position = (table.table_id, name, opened.row_sequencer)
            if failover_groups.find_unreported_channels(connection, [position]):
                # The client resends the rows after its committed token, so all followers must have
                # the rows up to this token.
                raise RowsBusy(reason=failover_groups.NOT_REPLICATED)
            if name not in known:
                # The channel was dropped after the first response to this request, so the caller is
                # already fenced.
                raise ContinuationStale(token=following, channel=channel)
            return OpenRowChannelResponse(
                str(following), build_channel_status(path, channel, known[name])
            )

        return self.write_batcher.submit(write, group_key=path)

    def drop_channel(self, path: PipePath, channel: str, sender: RowSender) -> Future[str | None]:
        """Drop a channel. Return its last offset token, or None if the channel does not exist.

        The future raises PipeNotFound if the pipe does not exist or the role may not insert through it.

        Raises:
            RequestMalformed: If the channel name is invalid.
        """
        name = parse_channel_name(channel)

        def write(connection: sa.Connection) -> str | None:
            table, _ = find_writable_table(connection, path, sender)
            try:
                record = channels.drop_channel(
                    connection, table, name, user=sender.user, now=self.clock.now()
                )
            except ChannelNotFound:
                return None
            except TableNotFound:
                raise PipeNotFound(pipe=path) from None
            return record.offset_token

        return self.write_batcher.submit(write, group_key=path)

    def get_channel_statuses(
        self, path: PipePath, names: Sequence[str], sender: RowSender
    ) -> RowChannelStatusResponse:
        """Return the status of each channel that exists.

        Raises:
            PipeNotFound: If the pipe does not exist, or the role may not insert through it.
            RequestMalformed: If there are more than 1,000 names.
        """
        if len(names) > _MAX_STATUS_CHANNELS:
            raise RequestMalformed(
                reason=f"at most {_MAX_STATUS_CHANNELS:,} channels are allowed in a request"
            )
        wanted = {
            name: elastic_channel_name(sender.user)
            if is_elastic_channel(name)
            else parse_channel_name(name)
            for name in names
        }
        with self.database.reading() as connection:
            require_writable(connection)
            table, _ = find_writable_table(connection, path, sender)
            known = row_request_state.find_row_channels(
                connection, table.table_id, list(wanted.values())
            )
            left = find_tombstones(connection, table.name, known)
            reported = failover_groups.find_reported_channels(
                connection, [(table.table_id, name) for name in known]
            )
        if reported is not None:
            known = {
                name: replace(
                    channel, offset_token=_find_reported_token(reported, table.table_id, name)
                )
                for name, channel in known.items()
            }
        found = {
            name: build_channel_status(path, name, known[internal])
            for name, internal in wanted.items()
            # A newer channel of the same name is not reported until this pipe opens it. Otherwise a
            # client would use the committed token of another channel.
            if internal in known
            and (internal not in left or left[internal].dropped_at <= known[internal].opened_at)
        }
        for name in names:
            if is_elastic_channel(name) and name not in found:
                found[name] = build_channel_status(path, name, None)
        return RowChannelStatusResponse(found)

    def resolve_request(
        self, request: RawAppendRequest, *, refresh: bool
    ) -> tuple[PipeTarget, str, AppendOutcome | None]:
        """Return the target and channel of a request, and its outcome if that is already known.

        Raises:
            PipeNotFound: If the pipe does not exist, or the role may not insert through it.
        """
        at = (
            None if request.continuation is None else parse_continuation_token(request.continuation)
        )
        try:
            target = self.target_resolver.find(request.path, request.sender, refresh=refresh)
            if at is not None and not at.may_belong_to_table(target.table.table_id) and not refresh:
                # The cached lookup may have an outdated name.
                target = self.target_resolver.find(request.path, request.sender, refresh=True)
        except PipeNotFound as error:
            if at is None or (went := self._describe_renamed_table(request, at)) is None:
                raise
            raise PipeNotFound(f"{error} {went}") from None
        if request.continuation is None:
            return target, get_internal_channel_name(request), None
        name = get_internal_channel_name(request)
        if at is not None and not at.may_belong_to_table(target.table.table_id):
            went = self._describe_renamed_table(request, at) or (
                f"The table of channel {request.channel} was dropped, and {request.path} belongs to a"
                " new table. Open the channel again, and resume after its committed offset token."
            )
            return target, name, ContinuationStale(went)
        with self.database.reading() as connection:
            table_id = target.table.table_id
            found = row_request_state.find_row_channels(connection, table_id, [name]).get(name)
        if at is None:
            return target, name, ContinuationStale(token=request.continuation, channel=name)
        if found is None:
            return target, name, ChannelGone(channel=request.channel, pipe=request.path)
        return (
            target,
            name,
            find_position_outcome(found, at, request.request_id, request.sender.user),
        )

    def _describe_renamed_table(
        self, request: RawAppendRequest, token: ContinuationToken
    ) -> str | None:
        """Return a sentence with the new name of a channel's table, or None if it was not renamed."""
        if token.table_id is None:
            return None
        with self.database.reading() as connection:
            name = find_table_name(connection, token.table_id, request.sender)
        if name is None:
            return None
        return (
            f"The table of channel {request.channel} was renamed to {name}. Open the channel by that"
            " name, and resume after its committed offset token."
        )

    def append_rows(
        self,
        request: RawAppendRequest,
        get_body: Callable[[], bytes],
        respond: Callable[[AppendOutcome], None],
        *,
        refresh: bool = False,
    ) -> None:
        """Convert rows and queue them. `respond` is called once, in any thread.

        `get_body` returns newline-delimited JSON, and is called only if needed. `refresh` reads a
        changed table from the catalog again.

        Raises:
            PipeNotFound: If the pipe does not exist, or the role may not insert through it.
            RequestMalformed: If a token or the request ID contains NUL.
            BodyUnreadable: If `get_body` raises it.
            BodyTooLarge: If `get_body` raises it.
            RowsBusy: If the service is stopping, or the table's migration backlog is over its limit.
        """
        check_no_nul_texts(request)
        target, channel, outcome = self.resolve_request(request, refresh=refresh)
        if outcome is not None:
            respond(outcome)
            return
        if target.table.table_id in self.back_pressure.throttled_table_ids:
            raise RowsBusy(
                reason="the migration backlog of the table exceeds its limit (backlog_max_chunks or"
                " backlog_max_bytes)"
            )
        try:
            rows = get_body()
        except RequestMalformed:
            # The file is deleted when its rows are committed, so a copy of this request may have
            # committed them.
            outcome = self._find_replay_outcome(request, target)
            if outcome is None:
                raise
            respond(outcome)
            return
        target, converted = self._convert_and_evolve(request, target, rows)
        inserted_ms = to_epoch_ms(self.clock.now())
        self.group_committer.submit_all(
            [make_append_request(request, target, channel, converted, inserted_ms, respond)]
        )

    def _find_replay_outcome(
        self, request: RawAppendRequest, target: PipeTarget
    ) -> AppendOutcome | None:
        if request.continuation is not None:
            return self.resolve_request(request, refresh=True)[2]
        name = _make_idempotency_key(request)
        with self.database.reading() as connection:
            known = row_request_state.find_saved_request_ids(
                connection, target.table.table_id, [name]
            )
        return AppendCommitted(is_repeated=True) if known else None

    def may_contain_base64(self, request: RawAppendRequest, target: PipeTarget) -> bool:
        """Return True if binary values in these rows may be base64 instead of hexadecimal.

        Raises:
            RowsBusy: If the encoding of the client is not known yet.
        """
        if not has_binary_column(target.table):
            return False
        if request.continuation is None:
            return self.binary_encodings.may_use_base64_without_channel(target, request.client)
        at = parse_continuation_token(request.continuation)
        return at is not None and at.allows_base64

    def _convert(self, request: RawAppendRequest, target: PipeTarget, data: bytes) -> ConvertedRows:
        doubts = self.may_contain_base64(request, target)
        return self.converter_pool.convert(
            data,
            target.table,
            target.copy,
            from_sdk=request.client is not None,
            reject_ambiguous_bytes=doubts,
        )

    def _convert_and_evolve(
        self, request: RawAppendRequest, target: PipeTarget, data: bytes
    ) -> tuple[PipeTarget, ConvertedRows]:
        """Convert rows. If the table has schema evolution, add the columns that they need.

        The current table, and not the cached one, determines which rows are rejected and where they
        are stored.
        """
        converted = self._convert(request, target, data)
        if converted.rejected_count:
            now = self.target_resolver.find(target.path, target.sender, refresh=True)
            if (
                now.rejection_rules != target.rejection_rules
                and now.table.table_id == target.table.table_id
            ):
                target = now
                converted = self._convert(request, target, data)
        if converted.missing_columns is None:
            return target, converted
        reason = self.table_evolver.evolve(target, converted.missing_columns)
        if reason is not None:
            return target, converted.with_evolution_error(reason)
        target = self.target_resolver.find(target.path, target.sender, refresh=True)
        return target, self._convert(request, target, data)


def get_internal_channel_name(request: RawAppendRequest) -> str:
    """Return the internal name of a request's channel.

    Raises:
        RequestMalformed: If the channel name is invalid.
    """
    if request.continuation is None:
        return elastic_channel_name(request.sender.user)
    return parse_channel_name(request.channel)


def make_append_request(
    request: RawAppendRequest,
    target: PipeTarget,
    channel: str,
    converted_rows: ConvertedRows,
    inserted_ms: int,
    respond: Callable[[AppendOutcome], None],
) -> AppendRequest:
    """Create a request with converted rows for the committer."""
    token = request.continuation
    return AppendRequest(
        target=target,
        channel=channel,
        continuation=None if token is None else parse_continuation_token(token),
        request_id=_make_idempotency_key(request),
        start_offset_token=request.start_offset_token,
        end_offset_token=request.end_offset_token,
        converted_rows=converted_rows,
        inserted_ms=inserted_ms,
        respond=respond,
    )


def _make_idempotency_key(request: RawAppendRequest) -> str:
    """Return the key that identifies repetitions of a request. Without a channel, it contains the user."""
    if request.continuation is not None:
        return request.request_id
    return f"{request.sender.user} {request.request_id}"


def check_no_nul_texts(request: RawAppendRequest) -> None:
    """Reject texts with NUL, which the catalog cannot store.

    Raises:
        RequestMalformed: If a token or the request ID contains NUL.
    """
    _reject_nul(request.request_id, request.start_offset_token, request.end_offset_token)


def _reject_nul(*texts: str | None) -> None:
    if any("\0" in text for text in texts if text):
        raise RequestMalformed(
            reason="offset tokens and request ids cannot contain the character NUL"
        )


def parse_channel_name(text: str) -> str:
    """Parse the name of a channel and return its internal form.

    Raises:
        RequestMalformed: If the name is invalid.
    """
    if not text:
        raise RequestMalformed(reason="the channel name is missing")
    if "\0" in text:
        raise RequestMalformed(reason="a channel name cannot contain the character NUL")
    return to_internal_name(text)


def _find_reported_token(
    reported: Mapping[tuple[int, str], ReportedChannel], table_id: int, name: str
) -> str | None:
    found = reported.get((table_id, name))
    return None if found is None else found.offset_token


def build_channel_status(
    path: PipePath, channel: str, record: RowChannel | None
) -> RowChannelStatus:
    """Build a channel's status. `record` is None for the elastic channel before its first row."""
    status = RowChannelStatus(path.database, path.schema, path.pipe, channel)
    if record is None:
        return status
    status.last_committed_offset_token = record.offset_token
    status.created_on_ms = to_epoch_ms(record.opened_at)
    status.rows_inserted = record.rows_inserted
    status.rows_parsed = record.rows_parsed
    status.rows_error_count = record.rows_error
    status.last_error_message = record.last_error
    status.last_error_offset_upper_bound = record.last_error_offset
    if record.last_error_at is not None:
        status.last_error_timestamp_ms = to_epoch_ms(record.last_error_at)
    return status
