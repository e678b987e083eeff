"""Test that no row is lost or duplicated if sites are killed, cut off and replaced.

uv run python benchmarks/failover_kills.py [--minutes 10] [--seed N] [--wire FILE]

Two sites with a catalog, a stage and a warehouse each are in a failover group. Three SDKs write to
the sites concurrently. Snowmelt's SDK has both addresses. Snowflake's SDKs for Python (row API) and
for Java (classic protocol) have one name, which moves to each new primary. Each source can be read
again, and deletes only rows that were reported as committed. Meanwhile sites are killed with
SIGKILL, cut off and promoted at random. At the end both sites must have the rows of each source
exactly once.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import importlib.metadata
import random
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, cast

from harness import list_findings
from report import Report

import snowmelt
from fixtures.java import Driver, JavaError, JavaSdk, java_sdk
from fixtures.rows import OfficialWriter, RowService, SdkError
from fixtures.service import KeyPair
from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.security.encryption_keys import KeyRing, load_master_key
from snowmelt.errors import SnowmeltError
from snowmelt.storage.store_factory import open_store
from snowmelt.table.table_reader import read_table
from support.ports import free_port
from support.served_sites import TABLE, ServedSite, ServedSites, wait_until
from support.tcp_relay import Relay

# Hosts of the services, of the sites' addresses, and of the name. All of them have the same ports.
SERVICE_HOSTS = ("127.0.2.1", "127.0.2.2")
ADDRESS_HOSTS = ("127.0.1.1", "127.0.1.2")
NAME_HOST = "127.0.1.3"
BATCH_ROWS = 10
CHANNELS_PER_SOURCE = 2
# Maximum number of sent rows of a source that are not reported as committed.
MAX_UNREPORTED_ROWS = 3_000
# Distance between the first row numbers of two channels.
ROWS_PER_CHANNEL = 10**8
# A source reopens a channel whose rows are not reported as committed within this time.
SILENCE_S = 60.0
# Maximum time without progress of a source or a site after a fault.
RECOVERY_TIMEOUT_S = 240.0

_log_start = time.monotonic()


def log(text: str) -> None:
    """Print a line with the time since the start."""
    print(f"{time.monotonic() - _log_start:7.1f} {text}", flush=True)


class Position:
    """Progress of the source of a channel."""

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.base = number * ROWS_PER_CHANNEL
        # Last number that was sent to the open channel, and the last that was sent to any channel.
        self.sent = self.last = self.base
        # The source has deleted its rows up to this number.
        self.forgotten = self.base
        self.is_open = False
        self.reported_at = time.monotonic()

    @property
    def is_done(self) -> bool:
        """True if all sent rows are reported as committed."""
        return self.is_open and self.forgotten == self.last


class Source(threading.Thread):
    """Source of numbered rows for channels of one SDK.

    Subclasses open channels, append rows, and request offset tokens.
    """

    error: type[Exception]

    def __init__(self, name: str, first: int) -> None:
        super().__init__(name=name, daemon=True)
        self.channels = [
            Position(f"{name}-{each}", first + each) for each in range(CHANNELS_PER_SOURCE)
        ]
        self.counts: collections.Counter[str] = collections.Counter()
        self.problems: list[str] = []
        self.finishing, self.aborting = threading.Event(), threading.Event()

    @property
    def is_done(self) -> bool:
        """True if all sent rows are reported as committed."""
        return all(each.is_done for each in self.channels)

    def count_forgotten(self) -> int:
        """Return the number of rows that the source has deleted."""
        return sum(each.forgotten - each.base for each in self.channels)

    def run(self) -> None:
        """Send rows until `finishing` is set. Then wait until all rows are reported."""
        try:
            while not (self.aborting.is_set() or (self.finishing.is_set() and self.is_done)):
                for each in self.channels:
                    self._step(each)
                self.aborting.wait(0.1)
        except Exception:
            self.problems.append(traceback.format_exc())

    def _step(self, channel: Position) -> None:
        try:
            if not channel.is_open:
                self._open(channel)
                return
            if channel.sent < channel.last or self._may_send(channel):
                end = channel.sent + BATCH_ROWS
                self.append(channel.name, channel.sent + 1, end)
                channel.sent, channel.last = end, max(channel.last, end)
            token = int(self.ask_token(channel.name) or channel.base)
        except self.error as error:
            self._close(channel, type(error).__name__, str(error))
            return
        if token < channel.forgotten:
            # The response is older. The source ignores it, because it has a higher token.
            self.counts["older tokens"] += 1
        if token > channel.sent:
            self.problems.append(f"{channel.name}: {token} is reported, {channel.sent} was sent")
        now = time.monotonic()
        if token > channel.forgotten or channel.forgotten == channel.sent:
            channel.reported_at = now
        elif now - channel.reported_at > SILENCE_S:
            self._close(channel, "silence", f"after {channel.forgotten}")
            return
        channel.forgotten = max(channel.forgotten, token)

    def _may_send(self, channel: Position) -> bool:
        return (
            not self.finishing.is_set() and channel.sent - channel.forgotten < MAX_UNREPORTED_ROWS
        )

    def _open(self, channel: Position) -> None:
        try:
            token = int(self.open_channel(channel.name) or channel.base)
        except self.error as error:
            self.counts["failed opens"] += 1
            log(f"{channel.name} cannot open: {str(error)[:160]}")
            self.aborting.wait(0.3)
            return
        if token < channel.forgotten:
            self.problems.append(
                f"{channel.name}: {channel.forgotten} was reported, then an open returned {token}"
            )
        self.counts["opens"] += 1
        self.counts["rows sent again"] += channel.sent - token
        channel.sent = token
        channel.forgotten = max(channel.forgotten, token)
        channel.is_open, channel.reported_at = True, time.monotonic()

    def _close(self, channel: Position, kind: str, text: str) -> None:
        self.counts[f"closed by {kind}"] += 1
        log(f"{channel.name} is invalid: {kind} {text[:160]}")
        channel.is_open = False

    @abstractmethod
    def open_channel(self, name: str) -> str | None:
        """Open a channel, and return its token."""

    @abstractmethod
    def append(self, name: str, first: int, last: int) -> None:
        """Append rows with the IDs [first, last]. The offset token is `last`."""

    @abstractmethod
    def ask_token(self, name: str) -> str | None:
        """Return the token that the SDK reports as committed."""


class SnowmeltSource(Source):
    """Snowmelt's SDK, with the addresses of both sites."""

    error = SnowmeltError

    def __init__(self, client: snowmelt.Client) -> None:
        super().__init__("snowmelt", 1)
        self._client = client
        self._open_channels: dict[str, snowmelt.Channel] = {}

    def open_channel(self, name: str) -> str | None:
        known = self._open_channels.get(name)
        if known is not None:
            return known.resume()
        channel = self._client.open_channel(name, table="demo.public.t")
        self._open_channels[name] = channel
        return channel.latest_committed_offset_token()

    def append(self, name: str, first: int, last: int) -> None:
        rows = [{"id": number, "name": f"row {number}"} for number in range(first, last + 1)]
        self._open_channels[name].insert_rows(rows, offset_token=str(last))

    def ask_token(self, name: str) -> str | None:
        return self._open_channels[name].latest_committed_offset_token()


class PythonSource(Source):
    """Snowflake's SDK for Python, in a separate process."""

    error = SdkError

    def __init__(self, writer: OfficialWriter) -> None:
        super().__init__("python", 3)
        self._writer = writer
        self._opened: set[str] = set()

    def open_channel(self, name: str) -> str | None:
        command = "reopen" if name in self._opened else "open"
        token: str | None = self._writer.tell(command, name)
        self._opened.add(name)
        return token

    def append(self, name: str, first: int, last: int) -> None:
        self._writer.tell("append_range", name, first, last + 1, BATCH_ROWS)

    def ask_token(self, name: str) -> str | None:
        token: str | None = self._writer.tell("token", name)
        return token


class JavaSource(Source):
    """Snowflake's classic SDK for Java, in a separate process."""

    error = JavaError

    def __init__(self, driver: Driver, url: str, key_pair: KeyPair) -> None:
        super().__init__("java", 5)
        self._driver = driver
        properties = {"url": url, "user": "loader", "private_key": key_pair.private_pem}
        parameters = {"max_client_lag": 1000}
        driver.say("client", client="one", properties=properties, parameters=parameters)

    def open_channel(self, name: str) -> str | None:
        names = {"database": "demo", "schema": "public", "table": "t"}
        self._driver.say(
            "open", client="one", channel=name, name=name, on_error="CONTINUE", **names
        )
        return self.ask_token(name)

    def append(self, name: str, first: int, last: int) -> None:
        rows = [{"id": number, "name": f"row {number}"} for number in range(first, last + 1)]
        errors = self._driver.say(
            "insert", channel=name, rows=rows, token=str(last), start=str(first)
        )
        if errors:
            raise RuntimeError(f"rejected rows: {errors}")

    def ask_token(self, name: str) -> str | None:
        return cast("str | None", self._driver.say("token", channel=name))


class WireRelay(Relay):
    """Relay that also writes the relayed data to a file."""

    wire: IO[bytes] | None = None

    def on_data(self, target: tuple[str, int], data: bytes, *, is_response: bool) -> None:
        if self.wire is not None:
            arrow = "<" if is_response else ">"
            head = f"\n=== {time.monotonic() - _log_start:.3f} {arrow} {target[0]}\n"
            self.wire.write(head.encode() + data)


class Installation:
    """Two sites, their addresses, and the name of the primary."""

    def __init__(self, folder: Path, wire: IO[bytes] | None) -> None:
        certs = folder / "certs"
        hosts = [word for host in (*ADDRESS_HOSTS, NAME_HOST) for word in ("--host", host)]
        command = [sys.executable, "-m", "snowmelt", "cert", "--out", str(certs), *hosts]
        subprocess.run(command, check=True, capture_output=True)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certs / "server.pem", certs / "server.key")
        self.folder, self.key_pair = folder, KeyPair.generate()
        s3_port = free_port()
        sites = [
            ServedSite(
                folder / f"site{number}",
                environment={
                    "SNOWMELT_HOST": host,
                    "SNOWMELT_S3_PORT": str(s3_port),
                    # Clients upload to the host that they connected to, not to a folder of one
                    # site.
                    "SNOWMELT_PUBLIC_HOSTS": ",".join((*ADDRESS_HOSTS, NAME_HOST)),
                },
            )
            for number, host in enumerate(SERVICE_HOSTS, 1)
        ]
        self._ports = [site.services[0].port for site in sites]
        self._s3_port = s3_port
        tls_port, port = free_port(), free_port()
        self._addresses = []
        for site, host, at in zip(sites, ADDRESS_HOSTS, range(2), strict=True):
            relays = [
                Relay(None, context, host=host, port=tls_port),
                Relay(None, host=host, port=s3_port),
            ]
            self._addresses.append(relays)
            self._turn(relays, at)
            site.url = f"https://{host}:{tls_port}"
        self._names: list[Relay] = [
            WireRelay(None, context, host=NAME_HOST, port=tls_port),
            WireRelay(None, host=NAME_HOST, port=s3_port),
            WireRelay(None, host=NAME_HOST, port=port),
        ]
        for relay in (self._names[0], self._names[2]):
            if isinstance(relay, WireRelay):
                relay.wire = wire
        self._turn(self._names, 0)
        self.name_url, self.plain_url = (
            f"https://{NAME_HOST}:{tls_port}",
            f"http://{NAME_HOST}:{port}",
        )
        self.group = ServedSites(folder, self.key_pair, sites[0], sites[1], str(certs / "ca.pem"))
        self.users = RowService(folder, self.key_pair, sites[0].services[0], s3_port)
        self.group.start()

    def _turn(self, relays: list[Relay], at: int) -> None:
        for relay, port in zip(
            relays, (self._ports[at], self._s3_port, self._ports[at]), strict=False
        ):
            relay.turn_to((SERVICE_HOSTS[at], port))

    def move_name(self, at: int) -> None:
        """Redirect the name to a site."""
        self._turn(self._names, at)

    def cut_off(self) -> None:
        """Disconnect the sites from each other, and clients from both addresses.

        The name still leads to its site.
        """
        for relays in self._addresses:
            for relay in relays:
                relay.turn_to(None)

    def heal(self) -> None:
        """Reconnect the addresses with their sites."""
        for at, relays in enumerate(self._addresses):
            self._turn(relays, at)

    def read_ids(self, site: ServedSite) -> collections.Counter[int]:
        """Return the number of rows per ID in the table of a site."""
        settings = site.settings
        database = open_and_upgrade_database(settings.catalog_url)
        try:
            keyring = KeyRing(load_master_key(settings.keys_dir))
            stage = open_store(settings.stage_url)
            rows = read_table(database, keyring, stage, TABLE, ["ID"])
        finally:
            database.close()
        return collections.Counter(map(int, rows["ID"].to_pylist()))

    def close(self) -> None:
        """Stop all processes and relays."""
        for writer in self.users.writers:
            writer.kill()
        for relays in (*self._addresses, self._names):
            for relay in relays:
                relay.close()
        self.group.stop()


class Faults:
    """Faults of the sites. When a method returns, the group can recover."""

    def __init__(self, installation: Installation, seed: int) -> None:
        self._all = installation
        self._group = installation.group
        self.random = random.Random(seed)
        self.primary = 0
        # Each round contains each kind of fault at least once.
        self._next: list[Callable[[], None]] = []
        self.counts: collections.Counter[str] = collections.Counter()

    def strike(self) -> str:
        """Cause the next fault. Return its name."""
        if not self._next:
            kinds = [
                *(self.kill_the_secondary, self.kill_the_primary, self.kill_both, self.cut_off),
                *[self.replace_a_killed_primary] * 2,
                *[self.replace_a_living_primary] * 2,
                *[self.replace_a_primary_that_is_cut_off] * 3,
                *(self.switch, self.switch, self.switch_and_kill),
            ]
            self._next = self.random.sample(kinds, len(kinds))
        kind = self._next.pop()
        name = kind.__name__.replace("_", " ")
        log(f"{name}; the primary is site {self.primary + 1}")
        kind()
        self.counts[name] += 1
        return name

    def kill_the_secondary(self) -> None:
        self._kill(self._other)
        self._pause(5)
        self._start(self._other)

    def kill_the_primary(self) -> None:
        self._kill(self.primary)
        self._pause(3)
        self._start(self.primary)

    def kill_both(self) -> None:
        for at in self.random.sample([0, 1], 2):
            self._kill(at)
            self._pause(1)
        for at in self.random.sample([0, 1], 2):
            self._start(at)

    def replace_a_killed_primary(self) -> None:
        former = self.primary
        self._kill(former)
        self._pause(2)
        self._promote()
        self._move()
        self._pause(10)
        self._start(former)

    def replace_a_living_primary(self) -> None:
        """Promote the secondary. The former primary accepts rows until the promotion reaches it."""
        self._promote()
        self._pause(5)
        self._move()

    def cut_off(self) -> None:
        self._all.cut_off()
        self._pause(15)
        self._all.heal()

    def replace_a_primary_that_is_cut_off(self) -> None:
        """Promote the secondary while the former primary still accepts rows through the name."""
        self._all.cut_off()
        self._pause(5)
        self._promote()
        self._pause(10)
        if self.random.random() < 0.5:
            # A primary that starts without a connection to the other site stays primary.
            self._kill(self._other)
            self._start(self._other)
        self._move()
        self._pause(5)
        self._all.heal()

    def switch(self) -> None:
        """Run a planned switch."""
        self._switch()

    def switch_and_kill(self) -> None:
        """Run a planned switch, and kill one of the sites during it."""
        victim = self.random.choice([0, 1])
        self._request_switch()
        self._pause(0.5)
        self._kill(victim)
        self._pause(2)
        self._start(victim)
        self._wait_for_switch()

    def heal(self) -> None:
        """Start both sites, and reconnect them."""
        self._all.heal()
        for at in (0, 1):
            self._start(at)

    @property
    def _other(self) -> int:
        return 1 - self.primary

    def _site(self, at: int) -> ServedSite:
        return self._group.sites[at]

    def _pause(self, seconds: float) -> None:
        time.sleep(self.random.uniform(0, seconds))

    def _kill(self, at: int) -> None:
        self._site(at).kill()
        log(f"killed site {at + 1}")

    def _start(self, at: int) -> None:
        process = self._site(at).services[0].process
        if process is None or process.poll() is not None:
            self._site(at).start()
            log(f"started site {at + 1}")

    def _promote(self) -> None:
        force = self.random.choice(["", " FORCE"])
        # FORCE skips the check that the site has all reported rows. Here, the site must have them.
        if self._group.show(self._site(self._other))["promotable"] is not True:
            raise RuntimeError(f"site {self._other + 1} cannot be promoted")
        self._site(self._other).sql("ALTER FAILOVER GROUP g PRIMARY" + force)
        self.primary = self._other
        self.counts["PRIMARY" + force] += 1
        log(f"promoted site {self.primary + 1}{force}")

    def _request_switch(self) -> None:
        self._site(self._other).sql("ALTER FAILOVER GROUP g PRIMARY PLANNED")

    def _switch(self) -> None:
        self._request_switch()
        self._wait_for_switch()

    def _wait_for_switch(self) -> None:
        self._group.wait_for_role(self._site(self._other), "primary")
        self.primary = self._other
        self.counts["PRIMARY PLANNED"] += 1
        log(f"switched to site {self.primary + 1}")
        self._pause(1)
        self._move()

    def _move(self) -> None:
        self._all.move_name(self.primary)
        log(f"moved the name to site {self.primary + 1}")


def wait_for_group(group: ServedSites, faults: Faults) -> None:
    """Wait until the secondary can be promoted."""
    primary, secondary = group.sites[faults.primary], group.sites[1 - faults.primary]
    group.wait_for_role(primary, "primary")
    group.wait_for_role(secondary, "secondary")
    wait_until(lambda: group.show(secondary)["promotable"] is True, "no site can be promoted")


def wait_for_sources(sources: list[Source]) -> None:
    """Wait until each source reports more rows as committed."""
    before = {source: source.count_forgotten() for source in sources}
    give_up_at = time.monotonic() + RECOVERY_TIMEOUT_S
    for source in sources:
        while source.count_forgotten() <= before[source] and not source.problems:
            if time.monotonic() > give_up_at:
                raise RuntimeError(f"{source.name} has not gone on for {RECOVERY_TIMEOUT_S:.0f} s")
            time.sleep(0.05)


def run_faults(
    installation: Installation, sources: list[Source], faults: Faults, end: float
) -> None:
    """Cause faults one after the other until the end time."""
    while time.monotonic() < end and not any(source.problems for source in sources):
        wait_for_group(installation.group, faults)
        wait_for_sources(sources)
        time.sleep(faults.random.uniform(0, 3))
        faults.strike()
        log(", ".join(f"{each.name} {each.count_forgotten():,}" for each in sources) + " reported")


def finish(sources: list[Source]) -> None:
    """Let the sources send all rows, and end."""
    for source in sources:
        source.finishing.set()
    for source in sources:
        source.join(RECOVERY_TIMEOUT_S)
        if source.is_alive():
            source.aborting.set()
            source.problems.append(
                f"{source.name} did not end: "
                + ", ".join(f"{each.name} {vars(each)}" for each in source.channels)
            )


def compare(source: Source, ids: collections.Counter[int]) -> tuple[int, int]:
    """Return the numbers of lost and of duplicate rows of a source at a site."""
    lost = doubled = 0
    for each in source.channels:
        expected = range(each.base + 1, each.last + 1)
        lost += sum(number not in ids for number in expected)
        numbers = range(each.base + 1, each.base + ROWS_PER_CHANNEL)
        doubled += sum(
            count - (number in expected) for number, count in ids.items() if number in numbers
        )
    return lost, doubled


def find_java() -> JavaSdk:
    """Return the newest classic SDK for Java that Maven finds."""
    cache = Path(__file__).parents[1] / ".pytest_cache" / "d" / "java"
    found = java_sdk("4", cache)
    if isinstance(found, str):
        raise SystemExit(found)
    return found


def main() -> int:
    """Cause faults, compare the rows, and store the result."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--wire", type=Path, help="write the requests behind the name to a file")
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    java = find_java()
    findings: list[str] = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="snowmelt-failover-")))
        wire = stack.enter_context(options.wire.open("wb")) if options.wire else None
        installation = Installation(folder, wire)
        stack.callback(installation.close)
        group = installation.group
        client = stack.enter_context(group.client(*group.sites))
        driver = stack.enter_context(java.driver(folder))
        writer = installation.users.writer(url=installation.name_url, retry_init_backoff_ms="50")
        sources = [
            SnowmeltSource(client),
            PythonSource(writer),
            JavaSource(driver, installation.plain_url, installation.key_pair),
        ]
        for source in sources:
            source.start()
            stack.callback(source.aborting.set)
        faults = Faults(installation, options.seed)
        # Ctrl-C ends the faults. The rows are compared in any case.
        with contextlib.suppress(KeyboardInterrupt):
            try:
                run_faults(installation, sources, faults, time.monotonic() + options.minutes * 60)
            except Exception:
                findings.append(traceback.format_exc())
        faults.heal()
        finish(sources)
        findings += [problem for source in sources for problem in source.problems]
        ids: list[collections.Counter[int]] = []
        try:
            wait_for_group(group, faults)
            wait_until(
                lambda: installation.read_ids(group.first) == installation.read_ids(group.second),
                "the sites differ",
            )
        except AssertionError as error:
            findings.append(str(error))
        ids = [installation.read_ids(site) for site in group.sites]
        findings += [
            f"site {number}: {each}"
            for number, site in enumerate(group.sites, 1)
            for each in list_findings(site.folder)
        ]
    return keep(options, java, sources, faults, ids, findings)


def keep(
    options: argparse.Namespace,
    java: JavaSdk,
    sources: list[Source],
    faults: Faults,
    ids: list[collections.Counter[int]],
    findings: list[str],
) -> int:
    """Write the results page. Return the exit status."""
    versions: dict[str, Any] = {
        "snowmelt": f"`snowmelt` {importlib.metadata.version('snowmelt')}, both addresses",
        "python": f"`snowpipe-streaming` {importlib.metadata.version('snowpipe-streaming')}, row API",
        "java": f"`snowflake-ingest-sdk` {java.version}, classic protocol",
    }
    report = Report(
        "failover_kills",
        "Is a row lost or doubled if sites are killed, cut off and replaced?",
        ("SDK", "rows", "opens", "failed opens", "rows sent again", "lost at site 1, 2", "doubled at site 1, 2"),
    )  # fmt: skip
    bad = 0
    for source in sources:
        compared = [compare(source, each) for each in ids]
        bad += sum(map(sum, compared))
        report.add(
            versions[source.name],
            f"{sum(each.last - each.base for each in source.channels):,}",
            source.counts["opens"],
            source.counts["failed opens"],
            f"{source.counts['rows sent again']:,}",
            ", ".join(str(lost) for lost, _ in compared),
            ", ".join(str(doubled) for _, doubled in compared),
        )
        log(f"{source.name}: {dict(source.counts)}")
    report.remark(f"{options.minutes:g} minutes, seed {options.seed}.")
    for name, count in sorted(faults.counts.items()):
        report.remark(f"{count} × {name}")
    report.remark(
        f"Findings of `snowmelt check --deep` at both sites, and others: {len(findings)}."
    )
    report.keep()
    for each in findings:
        print(each)
    total = sum(faults.counts[each] for each in faults.counts if not each.startswith("PRIMARY"))
    print(
        f"seed {options.seed}: {total} faults, {bad} rows lost or doubled, {len(findings)} findings"
    )
    return 1 if bad or findings else 0


if __name__ == "__main__":
    raise SystemExit(main())
