"""Public class `Client`: opens channels, and commits their rows in the background."""

from __future__ import annotations

import datetime as dt
import logging
import os
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Self, Unpack
from zoneinfo import ZoneInfo

from snowmelt.client.auth import OAuth
from snowmelt.client.blob_builder import BlobStager
from snowmelt.client.channel import (
    Channel,
    ClientComponents,
    OnError,
    keeping_first_error,
    open_at_current_site,
)
from snowmelt.client.channel_state import (
    DROPPED_FAILURE,
    MOVED_FAILURE,
    ChannelState,
    check_offset_token,
    split_table_name,
)
from snowmelt.client.connection import make_transport
from snowmelt.client.counters_and_metrics import ClientStatus, publish_client_metrics
from snowmelt.client.error_table_writer import ErrorTableWriter
from snowmelt.client.flush_scheduling import FlushScheduler
from snowmelt.client.flusher import Flusher
from snowmelt.client.registrar import ClientIdentity, RegistrationSender
from snowmelt.client.schema_refresh import SchemaRefresher, failure_from_status
from snowmelt.client.service_requests import ApiClient, ChannelName
from snowmelt.client.settings import (
    ClientOptions,
    ClientSettings,
    parse_compatibility,
    to_timeout_s,
)
from snowmelt.client.sites import SiteWatch, find_primary, split_addresses
from snowmelt.client.stage import open_stage
from snowmelt.client.transport import Transport
from snowmelt.config_file import find_profile
from snowmelt.errors import ClientClosed, ConfigurationError, ProfileNotFound, SnowmeltError
from snowmelt.schema.conversion.row_converter import RowConverter
from snowmelt.schema.notebook_tables import render_notebook_table
from snowmelt.schema.types import Compatibility, TableName, to_internal_name
from snowmelt.wire.streaming import ResponseCode

_log = logging.getLogger(__name__)

_CODES_WITH_TOKEN = frozenset({int(ResponseCode.SUCCESS), int(ResponseCode.STALE_CLIENT_SEQUENCER)})


class Client:
    """A connection to a Snowmelt service, with any number of channels. Thread-safe.

    As a context manager, a client closes its channels and itself at the end of the block.

    Attributes:
        progress_listeners: Functions that a thread of the client calls after each commit and each
            failure of channels. They must return soon and not raise.
    """

    def __init__(
        self,
        url: str,
        *,
        user: str | None = None,
        private_key: str | bytes | Path | None = None,
        role: str | None = None,
        oauth: OAuth | str | Callable[[], str] | None = None,
        **options: Unpack[ClientOptions],
    ) -> None:
        """Connect to a service.

        Args:
            url: URL of the service, such as `http://127.0.0.1:8080`, or the URLs of the sites of a
                failover group, separated by commas. The client then connects to the primary, and
                moves when another site becomes the primary. Its channels are then invalid until
                `Channel.resume` reopens them at that site.
            user: User whose public key is stored in the service.
            private_key: RSA key as PEM text, base64 PKCS#8, or the path of a file. Without user and
                key, the client sends no token, which only a service with `--dev` accepts.
            role: Role to act as. None: the default role of the user.
            oauth: OAuth token, function that returns a token, or `OAuth`. Replaces user and key.
            options: Options as in `ClientSettings`.

        Raises:
            ConfigurationError: If an argument is invalid.
            AuthenticationFailed: If the service rejects user and key.
            ServiceUnavailable: If the service does not respond.
            StageUnavailable: If the stage is a folder that this machine does not have.
        """
        self._settings = settings = ClientSettings(**options)
        self.progress_listeners: list[Callable[[], object]] = []
        self._process_id = os.getpid()
        self._closed = False
        self._user = user
        self._role = role
        self._make_transport = partial(
            make_transport,
            settings=settings,
            user=user,
            private_key=private_key,
            oauth=oauth,
            timeout_s=max(settings.request_timeout.total_seconds(), 1),
        )
        urls = split_addresses(url)
        self._site_watch: SiteWatch | None = None
        if len(urls) == 1:
            self._connect_to(urls[0])
            return
        primary = find_primary(urls, ca_file=settings.ca_file)
        self._connect_to(urls[0] if primary is None else primary.url)
        self._site_watch = self._watch_sites(urls, -1 if primary is None else primary.epoch)

    def _connect_to(self, url: str) -> None:
        transport = self._make_transport(url)
        try:
            self._connect(transport, self._role)
        except BaseException:
            transport.stop()
            raise

    def _watch_sites(self, urls: Sequence[str], epoch: int) -> SiteWatch:
        watch = SiteWatch(
            urls,
            epoch,
            # Use a weak reference, so that the thread does not keep the client alive.
            find_trouble=weakref.WeakMethod(self._find_address_in_trouble),
            move=weakref.WeakMethod(self._move),
            clock=self._settings.clock,
            ca_file=self._settings.ca_file,
        )
        weakref.finalize(self, watch.stop).atexit = False
        watch.start()
        return watch

    def _find_address_in_trouble(self) -> str | None:
        """Return the URL of the service if requests to it are failing, else None."""
        return None if self._transport.last_error is None else self._transport.address.url

    def _move(self, url: str) -> None:
        """Connect to another site and drop uncommitted rows, which their sources must resend."""
        if self._closed:
            return
        former, transport = self._components, self._transport
        pending_rows, flusher = self._pending_rows, self._flusher
        self._connect_to(url)
        former.successor = self._components
        pending_rows.fail_channels(pending_rows.list_open_channels(), MOVED_FAILURE)
        transport.stop()
        flusher.stop()

    def _find_current_error(self) -> SnowmeltError | None:
        return (
            self._encoder.last_upload_error
            or self._transport.last_error
            or self._registration_sender.waiting_reason
        )

    def _connect(self, transport: Transport, role: str | None) -> None:
        settings = self._settings
        self._commit_timeout_s = settings.commit_timeout_s
        calls = ApiClient(transport, role, settings.request_timeout.total_seconds())
        who = ClientIdentity(role, settings.name, calls.prefix, calls.next_request_id)
        stage = open_stage(
            calls.upload_grant, calls.renew_upload_grant, settings, timeout_s=transport.timeout_s
        )
        self._transport, self._api_client = transport, calls
        self._pending_rows = FlushScheduler(settings, self._find_current_error)
        self._pending_rows.progress_listeners = self.progress_listeners
        self._encoder = encoder = BlobStager(
            stage, calls.prefix, self._pending_rows, settings, transport.stop_event
        )
        columns = SchemaRefresher(calls, self._pending_rows, settings.clock)
        self._registration_sender = RegistrationSender(
            transport, who, encoder, columns, self._pending_rows, settings
        )
        self._flusher = Flusher(self._pending_rows, encoder, self._registration_sender, transport)
        self._error_table_writer = ErrorTableWriter(calls, self._pending_rows, settings.clock)
        self._components = ClientComponents(
            self._pending_rows,
            self._flusher,
            calls,
            columns,
            self._error_table_writer,
            self._commit_timeout_s,
        )
        # The threads end when the client and its channels are unreferenced and all rows are
        # committed.
        weakref.finalize(self._components, self._flusher.stop_when_drained).atexit = False
        for part in (transport, encoder, self._registration_sender):
            part.on_trouble = settings.report_problem
        publish_client_metrics(weakref.WeakMethod(self.status), settings.name)

    def __repr__(self) -> str:
        """Return a text with URL, user, number of open channels and uncommitted bytes."""
        if self._closed:
            return f"<Client {self._transport.address.url}, closed>"
        status = self.status()
        user = "" if self._user is None else f" as {self._user}"
        return (
            f"<Client {self._transport.address.url}{user}: {len(status.channels)} open channels, "
            f"{status.waiting_bytes:,} bytes uncommitted>"
        )

    def _repr_html_(self) -> str:
        """Return the open channels as a table, for notebooks."""
        rows = [
            (
                each.name,
                each.table,
                each.inserted_rows,
                each.committed_rows,
                each.waiting_rows,
                each.refused_rows,
                each.committed_token,
            )
            for each in (() if self._closed else self.status().channels)
        ]
        columns = (
            *("channel", "table", "inserted rows", "committed rows", "waiting rows"),
            *("rejected rows", "committed token"),
        )
        return render_notebook_table(columns, rows, repr(self).strip("<>"))

    @property
    def name(self) -> str:
        """Name of the client in the log of the service."""
        return self._settings.name

    @property
    def commit_timeout_s(self) -> float:
        """Maximum time in seconds until rows are committed or their channel becomes invalid."""
        return self._commit_timeout_s

    @property
    def is_closed(self) -> bool:
        """True after `close`."""
        return self._closed

    def open_channel(
        self,
        name: str,
        *,
        table: str,
        on_error: OnError | str = OnError.ABORT,
        default_timezone: str | ZoneInfo | None = None,
        compatibility: Compatibility | str | None = None,
        schema_evolution: bool = False,
        offset_token: str | None = None,
    ) -> Channel:
        """Open a channel, fencing any previous owner.

        Uncommitted rows of the previous owner are lost. Resume after the
        `latest_committed_offset_token` of the returned channel.

        Args:
            name: Name of the channel, unique within the table.
            table: `database.schema.table`; quote case-sensitive parts with `"…"`.
            on_error: Treatment of valid rows by an insert that rejects others.
            default_timezone: Time zone of TIMESTAMP_LTZ and TIMESTAMP_TZ values without a zone.
                None: UTC with `compatibility="strict"`, else America/Los_Angeles, as in the Java
                client. As in the Java client, TIMESTAMP_NTZ values that do not exist in the zone
                are moved.
            compatibility: Interpretation of ambiguous values, `snowflake` or `strict`. None: the
                setting of the client.
            schema_evolution: Add columns of rows that are missing in the table, with types inferred
                from the values, and drop NOT NULL from columns that are missing in rows. The table
                needs ENABLE_SCHEMA_EVOLUTION, and the role needs EVOLVE SCHEMA.
            offset_token: New committed offset token of the channel. None: keep the current one.

        Raises:
            ConfigurationError: If an argument is invalid.
            TableNotFound: If the table does not exist or the role lacks privileges on it.
            DatabaseNotFound: If the database does not exist or the role lacks privileges on it.
            SchemaNotFound: If the schema does not exist or the role lacks privileges on it.
            Unsupported: If the table has a column whose type does not support streaming.
            ServiceUnavailable: If the service does not respond.
            ClientClosed: If the client is closed.
        """
        self._check_open()
        check_offset_token(offset_token)
        mode = _parse_on_error(on_error)
        if compatibility is None:
            compatibility = self._settings.compatibility
        rules = parse_compatibility(compatibility)
        zone = (
            rules.default_zone if default_timezone is None else _parse_time_zone(default_timezone)
        )
        converter_for = partial(
            RowConverter, zone=zone, compatibility=rules, get_now=self._settings.clock.now
        )
        components, state = open_at_current_site(
            self._components,
            ChannelName(*split_table_name(table), name),
            converter_for,
            offset_token=offset_token,
            evolves_schema=schema_evolution,
        )
        if mode is not OnError.ABORT:
            components.error_table_writer.get_or_open_error_channel(state)
        return Channel(state, components, mode)

    def drop_channel(self, name: str, *, table: str) -> None:
        """Drop a channel, even if another client owns it. Uncommitted rows are lost.

        Raises:
            ChannelNotFound: If the channel does not exist or the role lacks privileges on it.
            ServiceUnavailable: If the service does not respond.
            ClientClosed: If the client is closed.
        """
        self._check_open()
        typed = ChannelName(*split_table_name(table), name)
        answer = self._api_client.drop_channel(typed)
        where = TableName(*(to_internal_name(part) for part in typed[:3]))
        dropped = answer.channel or to_internal_name(name)
        for state in self._pending_rows.list_open_channels():
            if state.qualified_name == (where, dropped):
                self._pending_rows.fail_channels([state], DROPPED_FAILURE)
                self._pending_rows.remove_channel(state)

    def latest_committed_offset_tokens(
        self, channels: Sequence[Channel]
    ) -> dict[Channel, str | None]:
        """Return the committed offset tokens of several channels in one request.

        If another client has opened a channel since, the result is the token of that client.

        Raises:
            ChannelInvalid: If a channel or its table was dropped. The error names the first such
                channel; `is_valid` is False for all of them.
            ServiceUnavailable: If the service does not respond.
            ClientClosed: If the client is closed.
        """
        self._check_open()
        statuses = self._api_client.fetch_statuses([channel.state for channel in channels])
        missing = [
            (channel.state, status)
            for channel, status in zip(channels, statuses, strict=True)
            if status.status_code not in _CODES_WITH_TOKEN
        ]
        for state, status in missing:
            self._pending_rows.fail_channels([state], failure_from_status(status))
        for state, _ in missing:
            state.check_valid()
        tokens = [status.persisted_offset_token for status in statuses]
        return dict(zip(channels, tokens, strict=True))

    def status(self) -> ClientStatus:
        """Return the status of all channels and their totals. Does not send a request."""
        return self._pending_rows.client_status(self._find_current_error())

    def flush(self, timeout: dt.timedelta | None = None) -> None:
        """Send all inserted rows and wait until they are committed.

        Raises:
            CommitTimeout: If rows are uncommitted after `timeout`. None: the limit of `give_up_after`.
            ChannelFenced: If another client has opened one of the channels.
            ChannelInvalid: If rows of a channel cannot be committed. Rows of other channels are
                committed.
            ClientClosed: If the client is closed.
        """
        self._check_open()
        targets = [
            (state, self._pending_rows.flush_now(state))
            for state in self._pending_rows.list_open_channels()
        ]
        failures = self._wait_for_commits(targets, timeout)
        if failures:
            raise failures[0]

    def close(self, timeout: dt.timedelta | None = None) -> None:
        """Flush and close all channels, and end the background threads. A second call has no effect.

        Raises:
            CommitTimeout: If rows are uncommitted after `timeout`. None: the limit of `give_up_after`.
            ChannelFenced: If another client has opened one of the channels.
            ChannelInvalid: If rows of a channel cannot be committed. An error that an earlier call
                has raised is not raised again.
        """
        if self._closed:
            return
        self._closed = True
        told = {
            state for state in self._pending_rows.list_open_channels() if state.failure_reported
        }
        targets = [
            (state, self._pending_rows.stop_inserts_and_flush(state))
            for state in self._pending_rows.list_open_channels()
            if state not in told
        ]
        failures = self._wait_for_commits(targets, timeout)
        if self._site_watch is not None:
            self._site_watch.stop()
        self._error_table_writer.drop_error_channels()
        self._flusher.stop()
        if failures:
            raise failures[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        with keeping_first_error(error, "The client"):
            self.close()

    def _wait_for_commits(
        self, targets: Sequence[tuple[ChannelState, int]], timeout: dt.timedelta | None
    ) -> list[SnowmeltError]:
        """Wait for the commits of all channels, and return their errors."""
        clock = self._settings.clock
        seconds = to_timeout_s(timeout, self._commit_timeout_s)
        give_up_at = clock.monotonic() + seconds
        failures: list[SnowmeltError] = []
        for state, sequencer in targets:
            left_s = max(give_up_at - clock.monotonic(), 0.0)
            try:
                self._pending_rows.wait_for_commit(state, sequencer, None, left_s)
            except SnowmeltError as error:
                if state.is_error_table_channel:
                    _log.warning("Rejected rows were not kept: %s", error)
                else:
                    failures.append(error)
        return failures

    def _check_open(self) -> None:
        if self._closed:
            raise ClientClosed
        if self._process_id != os.getpid():
            raise ClientClosed(
                "This process was forked after the client was created. Create another client in it."
            )


def _parse_on_error(mode: OnError | str) -> OnError:
    try:
        return OnError(mode)
    except ValueError as error:
        reason = f"expected one of {', '.join(OnError)}, got {mode!r}"
        raise ConfigurationError(setting="on_error", reason=reason) from error


def _parse_time_zone(zone: str | ZoneInfo) -> ZoneInfo:
    if isinstance(zone, ZoneInfo):
        return zone
    try:
        return ZoneInfo(zone)
    except (ValueError, OSError, LookupError) as error:
        reason = f"{zone!r} is not a time zone such as Europe/Berlin"
        raise ConfigurationError(setting="default_timezone", reason=reason) from error


def connect(
    profile: str | None = None,
    *,
    config_file: str | os.PathLike[str] | None = None,
    **options: Unpack[ClientOptions],
) -> Client:
    """Create a client with the URL and credentials of a profile.

    Args:
        profile: Name of a profile in the configuration file. None: the name in `SNOWMELT_PROFILE`,
            or else `default`.
        config_file: Path of the configuration file. None: the file in `SNOWMELT_CONFIG`, or else
            the first `snowmelt.toml` in the current folder, the user's configuration folder or
            `/etc/snowmelt`.
        options: Options of `Client`, which override the profile.

    Raises:
        ProfileNotFound: If the profile does not exist.
        InvalidConfigFile: If the file is invalid.
        ConfigurationError: If the profile has no `url`, or a value in it is invalid.
        SnowmeltError: As for `Client`.
    """
    found = find_profile(profile, config_file)
    if found is None:
        raise ProfileNotFound(
            "Profile not found: name one, or add [profiles.default] to snowmelt.toml.", name=None
        )
    if found.url is None:
        raise ConfigurationError(setting=f"profiles.{found.name}.url", reason="it is missing")
    options.setdefault("ca_file", found.ca_file)
    return Client(
        found.url,
        user=found.user,
        private_key=None if found.private_key is None else Path(found.private_key),
        role=found.role,
        **options,
    )
