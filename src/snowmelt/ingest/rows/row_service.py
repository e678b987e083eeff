"""The row API's conversation, without HTTP: pipes, channels, and requests of rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from snowmelt.catalog.objects.channel_tombstones import find_removal_times
from snowmelt.catalog.streaming import channels, row_channels
from snowmelt.clock import to_epoch_ms
from snowmelt.errors import (
    ChannelGone,
    ChannelNotFound,
    ContinuationStale,
    PipeNotFound,
    RequestMalformed,
    RowsBusy,
    TableNotFound,
)
from snowmelt.ingest.rows.append import Append, Committed, Continuation, parse_continuation
from snowmelt.ingest.rows.group_commit import standing
from snowmelt.ingest.rows.targets import (
    ELASTIC,
    elastic_channel,
    has_binary,
    is_elastic,
    name_of,
    writable,
)
from snowmelt.schema.types import internal_name
from snowmelt.wire.row_api import RowChannelStatus, RowOpenResponse, RowStatusResponse

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    import sqlalchemy as sa

    from snowmelt.catalog.db.database import Database
    from snowmelt.catalog.streaming.row_channels import RowChannel
    from snowmelt.clock import Clock
    from snowmelt.ingest.back_pressure import Pressure
    from snowmelt.ingest.rows.append import Outcome
    from snowmelt.ingest.rows.binary_encoding import ByteForms
    from snowmelt.ingest.rows.group_commit import RowWriter
    from snowmelt.ingest.rows.row_converter import Conversions, Converted
    from snowmelt.ingest.rows.schema_evolution import Evolution
    from snowmelt.ingest.rows.targets import PipePath, SdkClient, Sender, Target, Targets
    from snowmelt.ingest.write_batcher import GroupedWrites

_MOST_NAMES = 1_000


@dataclass(frozen=True, slots=True)
class RowsRequest:
    """Rows that came, unpacked; `continuation` is the token's text, None for the elastic channel.

    `client` is None where it is not the official SDK's.
    """

    path: PipePath
    channel: str
    sender: Sender
    request_id: str
    continuation: str | None
    start_offset_token: str | None
    end_offset_token: str | None
    client: SdkClient | None = None


@dataclass(frozen=True, slots=True)
class RowDesk:
    """What the row API needs; every method blocks and belongs into a thread."""

    database: Database
    writes: GroupedWrites
    targets: Targets
    conversions: Conversions
    writer: RowWriter
    clock: Clock
    evolution: Evolution
    pressure: Pressure
    forms: ByteForms

    def open(
        self,
        path: PipePath,
        channel: str,
        sender: Sender,
        *,
        request_id: str,
        offset_token: str | None,
        client: SdkClient | None = None,
    ) -> Future[RowOpenResponse]:
        """Open a channel; who had it before is fenced. The same request again changes nothing.

        The future raises PipeNotFound if there is no such pipe or this role may not insert by it,
        TooManyChannels if the table's limit is reached, and RowsBusy if it is not known yet how
        the client writes bytes.

        Raises:
            RequestMalformed: If the name is not a channel's.
        """
        if is_elastic(channel):
            raise RequestMalformed(reason=f"{ELASTIC} is no channel that can be opened")
        name = channel_name(channel)
        _check_texts(request_id, offset_token)

        def write(connection: sa.Connection) -> RowOpenResponse:
            table, _ = writable(connection, path, sender)
            base64 = self.forms.in_new_channel(connection, path, client)
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
            known = row_channels.find_row_channels(connection, table.table_id, [name])
            following = Continuation(
                opened.client_sequencer, opened.row_sequencer + 1, table.table_id, base64
            )
            if name not in known:
                # Dropped since this request was first answered: whoever asks is fenced already.
                raise ContinuationStale(token=following, channel=channel)
            return RowOpenResponse(str(following), status_of(path, channel, known[name]))

        return self.writes.submit(write, key=path)

    def drop(self, path: PipePath, channel: str, sender: Sender) -> Future[str | None]:
        """Drop a channel and return its last offset token; one that is gone already is fine.

        The future raises PipeNotFound if there is no such pipe or this role may not insert by it.

        Raises:
            RequestMalformed: If the name is not a channel's.
        """
        name = channel_name(channel)

        def write(connection: sa.Connection) -> str | None:
            table, _ = writable(connection, path, sender)
            try:
                record = channels.drop_channel(
                    connection, table, name, user=sender.user, now=self.clock.now()
                )
            except ChannelNotFound:
                return None
            return record.offset_token

        return self.writes.submit(write, key=path)

    def statuses(self, path: PipePath, names: Sequence[str], sender: Sender) -> RowStatusResponse:
        """Tell of channels what is committed and refused; those that do not exist are left out.

        Raises:
            PipeNotFound: There is no such pipe, or this role may not insert by it.
            RequestMalformed: More than 1,000 names.
        """
        if len(names) > _MOST_NAMES:
            raise RequestMalformed(reason=f"at most {_MOST_NAMES:,} channels may be asked for")
        wanted = {
            name: elastic_channel(sender.user) if is_elastic(name) else channel_name(name)
            for name in names
        }
        with self.database.reading() as connection:
            table, _ = writable(connection, path, sender)
            known = row_channels.find_row_channels(
                connection, table.table_id, list(wanted.values())
            )
            left = find_removal_times(connection, table.name, known)
        found = {
            name: status_of(path, name, known[internal])
            for name, internal in wanted.items()
            # One that came by the name since is told to nobody before it is opened by it: another
            # channel's committed token would be taken for one's own.
            if internal in known
            and (internal not in left or left[internal] <= known[internal].opened_at)
        }
        for name in names:
            if is_elastic(name) and name not in found:
                found[name] = status_of(path, name, None)
        return RowStatusResponse(found)

    def prepare(self, request: RowsRequest, *, again: bool) -> tuple[Target, str, Outcome | None]:
        """Return where a request's rows go, its channel, and its answer where it needs no work.

        Raises:
            PipeNotFound: There is no such pipe, or this role may not insert by it.
        """
        at = None if request.continuation is None else parse_continuation(request.continuation)
        try:
            target = self.targets.find(request.path, request.sender, again=again)
            if at is not None and not at.is_of(target.table.table_id) and not again:
                # What was found a moment ago may have another name by now.
                target = self.targets.find(request.path, request.sender, again=True)
        except PipeNotFound as error:
            if at is None or (went := self._went(request, at)) is None:
                raise
            raise PipeNotFound(f"{error} {went}") from None
        if request.continuation is None:
            return target, channel_of(request), None
        name = channel_of(request)
        if at is not None and not at.is_of(target.table.table_id):
            went = self._went(request, at) or (
                f"The table of channel {request.channel} is gone, and {request.path} is another one"
                " now. Open the channel again: it begins anew."
            )
            return target, name, ContinuationStale(went)
        with self.database.reading() as connection:
            table_id = target.table.table_id
            found = row_channels.find_row_channels(connection, table_id, [name]).get(name)
        if at is None:
            return target, name, ContinuationStale(token=request.continuation, channel=name)
        if found is None:
            return target, name, ChannelGone(channel=request.channel, pipe=request.path)
        return target, name, standing(found, at, request.request_id, request.sender.user)

    def _went(self, request: RowsRequest, at: Continuation) -> str | None:
        """Say what the table of a channel is called now, if there is something to say."""
        if at.table_id is None:
            return None
        with self.database.reading() as connection:
            name = name_of(connection, at.table_id, request.sender)
        if name is None:
            return None
        return (
            f"The table of channel {request.channel} is called {name} now: open the channel there,"
            " and send the rows since its committed offset token."
        )

    def append(
        self,
        request: RowsRequest,
        data: Callable[[], bytes],
        respond: Callable[[Outcome], None],
        *,
        again: bool = False,
    ) -> None:
        """Convert rows and queue them; `respond` is called once, from whatever thread.

        Args:
            request: What came with the rows.
            data: Returns the rows, newline-delimited JSON; asked only when they are needed.
            respond: Gets what became of them.
            again: Look at the table anew, since it has changed.

        Raises:
            PipeNotFound: There is no such pipe, or this role may not insert by it.
            RequestMalformed: A token or the request's id holds NUL.
            BodyUnreadable: What `data` raises; `BodyTooLarge` likewise.
            RowsBusy: The service is stopping, or too much of the table waits for migration.
        """
        check_texts(request)
        target, channel, outcome = self.prepare(request, again=again)
        if outcome is not None:
            respond(outcome)
            return
        if target.table.table_id in self.pressure.tables:
            raise RowsBusy(reason="too much of the table waits for migration")
        try:
            rows = data()
        except RequestMalformed:
            # A file goes once its rows are committed: by a copy of this request, perhaps.
            outcome = self._outcome_of_copy(request, target)
            if outcome is None:
                raise
            respond(outcome)
            return
        target, converted = self._converted(request, target, rows)
        inserted_ms = to_epoch_ms(self.clock.now())
        self.writer.submit_all(
            [append_of(request, target, channel, converted, inserted_ms, respond)]
        )

    def _outcome_of_copy(self, request: RowsRequest, target: Target) -> Outcome | None:
        if request.continuation is not None:
            return self.prepare(request, again=True)[2]
        name = _name_of(request)
        with self.database.reading() as connection:
            known = row_channels.find_saved_request_ids(connection, target.table.table_id, [name])
        return Committed(is_repeated=True) if known else None

    def doubts(self, request: RowsRequest, target: Target) -> bool:
        """Tell whether bytes in these rows may be base64, where they should be digits.

        Raises:
            RowsBusy: It will be known in a moment.
        """
        if not has_binary(target.table):
            return False
        if request.continuation is None:
            return self.forms.without_channel(target, request.client)
        at = parse_continuation(request.continuation)
        return at is not None and at.base64

    def _convert(self, request: RowsRequest, target: Target, data: bytes) -> Converted:
        doubts = self.doubts(request, target)
        return self.conversions.convert(
            data,
            target.table,
            target.copy,
            from_sdk=request.client is not None,
            doubts=doubts,
        )

    def _converted(
        self, request: RowsRequest, target: Target, data: bytes
    ) -> tuple[Target, Converted]:
        """Convert rows, for a table that follows its rows with the columns that they need.

        What is refused, and where it goes, is decided by the table as it is now.
        """
        converted = self._convert(request, target, data)
        if converted.refused_count:
            now = self.targets.find(target.path, target.sender, again=True)
            if now.rules != target.rules and now.table.table_id == target.table.table_id:
                target = now
                converted = self._convert(request, target, data)
        if converted.lacking is None:
            return target, converted
        reason = self.evolution.evolve(target, converted.lacking)
        if reason is not None:
            return target, converted.told(reason)
        target = self.targets.find(target.path, target.sender, again=True)
        return target, self._convert(request, target, data)


def channel_of(request: RowsRequest) -> str:
    """Return the internal name of the channel that a request's rows are counted for.

    Raises:
        RequestMalformed: The name is not a channel's.
    """
    if request.continuation is None:
        return elastic_channel(request.sender.user)
    return channel_name(request.channel)


def append_of(
    request: RowsRequest,
    target: Target,
    channel: str,
    converted: Converted,
    inserted_ms: int,
    respond: Callable[[Outcome], None],
) -> Append:
    """Return a request with its rows as the writer takes it."""
    token = request.continuation
    return Append(
        target=target,
        channel=channel,
        continuation=None if token is None else parse_continuation(token),
        request_id=_name_of(request),
        start_offset_token=request.start_offset_token,
        end_offset_token=request.end_offset_token,
        converted=converted,
        inserted_ms=inserted_ms,
        respond=respond,
    )


def _name_of(request: RowsRequest) -> str:
    """Return by what a request is known again: without a channel, which has an owner, by its user."""
    if request.continuation is not None:
        return request.request_id
    return f"{request.sender.user} {request.request_id}"


def check_texts(request: RowsRequest) -> None:
    """Refuse what the catalog cannot hold.

    Raises:
        RequestMalformed: A token or the request's id holds NUL.
    """
    _check_texts(request.request_id, request.start_offset_token, request.end_offset_token)


def _check_texts(*texts: str | None) -> None:
    if any("\0" in text for text in texts if text):
        raise RequestMalformed(
            reason="offset tokens and request ids cannot contain the character NUL"
        )


def channel_name(text: str) -> str:
    """Return the internal name of a channel.

    Raises:
        RequestMalformed: It is none.
    """
    if not text or "\0" in text:
        raise RequestMalformed(reason="a channel's name is needed, without the character NUL")
    return internal_name(text)


def status_of(path: PipePath, channel: str, known: RowChannel | None) -> RowChannelStatus:
    """Return what is told of a channel; None is the elastic one before its first row."""
    status = RowChannelStatus(path.database, path.schema, path.pipe, channel)
    if known is None:
        return status
    status.last_committed_offset_token = known.offset_token
    status.created_on_ms = to_epoch_ms(known.opened_at)
    status.rows_inserted = known.rows_inserted
    status.rows_parsed = known.rows_parsed
    status.rows_error_count = known.rows_error
    status.last_error_message = known.last_error
    status.last_error_offset_upper_bound = known.last_error_offset
    if known.last_error_at is not None:
        status.last_error_timestamp_ms = to_epoch_ms(known.last_error_at)
    return status
