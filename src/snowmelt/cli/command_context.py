"""Shared options of commands, and the objects created from them: settings, catalog, clients."""

from __future__ import annotations

import argparse
import contextlib
import datetime as dt
import json
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from snowmelt.config import Settings, read_environment_variable
from snowmelt.config_file import PROFILE_VARIABLE, Profile, find_profile
from snowmelt.errors import UserError
from snowmelt.schema.types import to_internal_name

if TYPE_CHECKING:
    from snowmelt.catalog.db.database import Database
    from snowmelt.client.client import Client
    from snowmelt.client.console import ConsoleClient
    from snowmelt.client.statements import StatementClient
    from snowmelt.loaders.copy_job import CopyContext
    from snowmelt.loaders.kafka.connector_settings import ServiceLogin


_AGE = re.compile(r"(\d{1,10})([smhd])")
_AGE_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_MAX_AGE = dt.timedelta(days=36_500)


def add_global_options(parser: argparse.ArgumentParser, *, is_top_level: bool = False) -> None:
    """Add the global options. They are valid before a command, after it, and after its action.

    Only the outermost parser sets defaults, because defaults of an inner parser would override
    values given before the command.
    """
    absent = None if is_top_level else argparse.SUPPRESS
    group = parser.add_argument_group("global options")
    group.add_argument(
        "--config",
        metavar="FILE",
        type=Path,
        default=absent,
        help="configuration file (default: SNOWMELT_CONFIG; snowmelt.toml in the current folder, "
        "~/.config/snowmelt or /etc/snowmelt)",
    )
    group.add_argument(
        "--data-dir",
        metavar="FOLDER",
        type=Path,
        default=absent,
        help="data folder (default: SNOWMELT_DATA_DIR, or ./snowmelt-data)",
    )
    group.add_argument(
        "--catalog",
        metavar="URL",
        default=absent,
        help="catalog database: sqlite:///PATH or postgresql://… (default: SNOWMELT_CATALOG_URL, "
        "or catalog.db in the data folder)",
    )
    group.add_argument(
        "--debug",
        action="store_true",
        default=False if is_top_level else argparse.SUPPRESS,
        help="show tracebacks of errors",
    )


def add_action(
    actions: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    run: Callable[[argparse.Namespace], object],
    **options: Any,
) -> argparse.ArgumentParser:
    """Add an action of a command. `run_action` runs it. `options` are arguments of `add_parser`."""
    if "epilog" in options:
        options["formatter_class"] = argparse.RawDescriptionHelpFormatter
    parser = actions.add_parser(name, **options)
    add_global_options(parser)
    # `command_parser` supplies the suggestions for a misspelled option.
    parser.set_defaults(action=run, command_parser=parser)
    return parser


def run_action(options: argparse.Namespace) -> int:
    """Run the selected action. Return its exit code, or 0 if it returns None."""
    return options.action(options) or 0


def load_settings(options: argparse.Namespace, **overrides: object) -> Settings:
    """Load the settings of a command. `overrides` has values of its options, None if not given.

    Raises:
        ConfigurationError: If a value is invalid.
    """
    return Settings.load(
        options.data_dir, config_file=options.config, catalog_url=options.catalog, **overrides
    )


@contextlib.contextmanager
def opening_catalog(settings: Settings, *, create: bool = False) -> Iterator[Database]:
    """Open the catalog for a command. If `create` is true, create a missing data folder and catalog.

    Raises:
        ConfigurationError: If the catalog does not exist and `create` is False.
        CatalogUnavailable: If the database cannot be reached.
    """
    from snowmelt.catalog.db.database import open_and_upgrade_database

    is_new = not may_have_catalog(settings)
    if create and is_new:
        settings.data_dir.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(
        open_and_upgrade_database(settings.catalog_url, create=create)
    ) as database:
        if is_new:
            print(f"snowmelt: created a new catalog in {settings.data_dir}", file=sys.stderr)
        yield database


def may_have_catalog(settings: Settings) -> bool:
    """Return False if the catalog is a SQLite file that does not exist.

    Raises:
        ConfigurationError: If `catalog_url` is not the URL of a catalog.
        MissingExtra: If the URL requires a package that is not installed.
    """
    from snowmelt.catalog.db.database import find_sqlite_path

    file = find_sqlite_path(settings.catalog_url)
    return file is None or file.exists()


def parse_age(text: str) -> dt.timedelta:
    """Parse an age such as `30d`.

    Raises:
        UserError: If it is invalid, or above 36,500 days, because it is subtracted from the time.
    """
    found = _AGE.fullmatch(text)
    age_s = 0 if found is None else int(found[1]) * _AGE_UNITS_S[found[2]]
    if found is None or age_s > _MAX_AGE.total_seconds():
        raise UserError(
            f"Invalid age {text!r}. Give a number with s, m, h or d, up to 36500d, for example 30d."
        )
    return dt.timedelta(seconds=age_s)


def add_statement_options(parser: argparse.ArgumentParser) -> None:
    """Add the options for the role of a statement and for short names."""
    parser.add_argument(
        "--role",
        help="role of the statements (default: ACCOUNTADMIN; with --url or --profile, the role of "
        "the profile or the default role of the user)",
    )
    parser.add_argument("--database", help="database of names without one")
    parser.add_argument("--schema", help="schema of names without one (default: PUBLIC)")


_DEFAULT_URL = "http://127.0.0.1:8080"
# Longer than any file path, shorter than the text of any key.
_MAX_PATH_LENGTH = 512


def add_service_options(group: argparse._ArgumentGroup, *, is_optional: bool = False) -> None:
    """Add the options for the address of the service and the credentials of the user.

    If `is_optional` is true, the command uses the catalog directly unless --url or --profile is
    given.
    """
    default = "none; the command opens the catalog" if is_optional else _DEFAULT_URL
    group.add_argument("--url", help=f"address of the service (default: {default})")
    group.add_argument(
        "--profile",
        help="profile in the configuration file with address, user, key and role (default: "
        "SNOWMELT_PROFILE" + (")" if is_optional else ", else the profile `default`)"),
    )
    group.add_argument(
        "--user",
        help="user (default: the user of the profile); required unless the service runs with --dev",
    )
    group.add_argument(
        "--private-key",
        type=Path,
        metavar="FILE",
        help="private key of the user, as written by `snowmelt user add`",
    )
    group.add_argument(
        "--ca-file",
        type=Path,
        metavar="FILE",
        help="certificate authority of the service (default: the system's authorities)",
    )


class _ServiceArguments(NamedTuple):
    url: str
    user: str | None
    private_key: Path | str | None
    role: str | None
    ca_file: str | None


def _find_key(key: Path | str | None) -> Path | str | None:
    """Return a key option: a path, or the text of the key."""
    is_text = isinstance(key, str) and (len(key) > _MAX_PATH_LENGTH or "\n" in key)
    return key if key is None or is_text else Path(key)


def _resolve_service(options: argparse.Namespace) -> _ServiceArguments:
    """Combine the options with the profile.

    If the command line has a URL and no profile, the default profile's credentials are not used.
    """
    profile = None
    if options.profile is not None or options.url is None:
        profile = find_profile(options.profile, options.config)
    found = profile or Profile(name="")
    key = options.private_key or found.private_key
    return _ServiceArguments(
        options.url or found.url or _DEFAULT_URL,
        options.user or found.user,
        _find_key(key),
        vars(options).get("role") or found.role,
        None if (ca := options.ca_file or found.ca_file) is None else str(ca),
    )


def create_client(
    options: argparse.Namespace, login: ServiceLogin | None = None, **settings: Any
) -> Client:
    """Create a client from the options of `add_service_options` and `--role`.

    `login` has the values of options that are not given. `settings` are additional arguments of the
    client.

    Raises:
        ConfigurationError: If the URL, key, certificates or profile are invalid.
    """
    from snowmelt.client.client import Client

    if login is not None:
        given = vars(options)
        defaults = {name: given.get(name) or value for name, value in asdict(login).items()}
        options = argparse.Namespace(**{**given, **defaults})
    url, user, key, role, ca_file = _resolve_service(options)
    return Client(url, user=user, private_key=key, role=role, ca_file=ca_file, **settings)


def create_console_client(options: argparse.Namespace) -> ConsoleClient:
    """Create a client of the console from the options of `add_service_options` and `--role`.

    Raises:
        ConfigurationError: If the URL, key, certificates or profile are invalid.
    """
    from snowmelt.client.console import ConsoleClient

    url, user, key, role, ca_file = _resolve_service(options)
    return ConsoleClient(url, user=user, private_key=key, role=role, ca_file=ca_file)


class StatementOutput(NamedTuple):
    """Result of a statement: columns and rows, or only a message."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    message: str


StatementRunner = Callable[[str], StatementOutput]


def is_remote(options: argparse.Namespace) -> bool:
    """Return True if a statement command uses a service, and not the catalog directly.

    Raises:
        UserError: If options for both are given.
    """
    remote = options.url is not None or options.profile is not None
    if not remote:
        remote = bool(read_environment_variable(PROFILE_VARIABLE))
    elif options.catalog is not None or options.data_dir is not None:
        raise UserError("--url and --profile exclude --catalog and --data-dir. Give one of them.")
    return remote


@contextlib.contextmanager
def opening_statement_runner(
    options: argparse.Namespace, *, creates_catalog: bool = False
) -> Iterator[StatementRunner]:
    """Yield a function that runs statements in the catalog, or through the service of `--url`.

    Raises:
        ConfigurationError: If there is no catalog and `creates_catalog` is false, or the URL, key
            or profile is invalid.
    """
    names = vars(options)
    role, database, schema = (names.get(name) for name in ("role", "database", "schema"))
    if is_remote(options):
        with opening_statement_client(options) as client:
            yield lambda text: _execute_remotely(client, text)
        return
    from snowmelt.catalog.security.encryption_keys import open_or_create_keyring
    from snowmelt.catalog.statements.executor import execute_statement

    settings = load_settings(options)
    with opening_catalog(settings, create=creates_catalog) as catalog:

        def execute(text: str) -> StatementOutput:
            result = execute_statement(
                catalog,
                text,
                role=None if role is None else to_internal_name(role),
                default_database=database,
                default_schema=schema,
                open_keyring=partial(open_or_create_keyring, catalog, settings.keys_dir),
            )
            return StatementOutput(result.columns, result.rows, result.message)

        yield execute


def opening_statement_client(options: argparse.Namespace) -> StatementClient:
    """Create the client of the statement API from the options of a command.

    Raises:
        ConfigurationError: If the URL, key, certificates or profile are invalid.
    """
    from snowmelt.client.statements import StatementClient

    url, user, key, role, ca_file = _resolve_service(options)
    names = vars(options)
    return StatementClient(
        url,
        user=user,
        private_key=key,
        role=role,
        database=names.get("database"),
        schema=names.get("schema"),
        ca_file=ca_file,
    )


def _execute_remotely(client: StatementClient, text: str) -> StatementOutput:
    columns, rows = client.execute(text)
    if columns == ("status",) and len(rows) == 1:
        return StatementOutput((), (), str(rows[0][0]))
    return StatementOutput(columns, rows, "")


@contextlib.contextmanager
def stopping_on_signals() -> Iterator[threading.Event]:
    """Set the event on SIGTERM or the first Ctrl-C. A second signal ends the process immediately."""
    stop = threading.Event()

    def end(number: int, _: object) -> None:
        stop.set()
        signal.signal(number, before[signal.Signals(number)])

    # Only the main thread receives signals and may install handlers.
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def make_copy_context(
    options: argparse.Namespace, settings: Settings, database: Database, *more_reserved: str
) -> CopyContext:
    """Create the context of a command's COPY, with the catalog's clock and the `--role`."""
    from snowmelt.catalog.db.database import open_catalog_clock
    from snowmelt.load.udx.shared_progress_page import UserCodeLimits
    from snowmelt.loaders.copy_job import CopyContext

    given = vars(options)
    names = [given.get(name) for name in ("role", "database", "schema")]
    role, database_name, schema = (
        None if each is None else to_internal_name(each) for each in names
    )
    return CopyContext(
        database,
        settings.warehouse_url,
        role or "ACCOUNTADMIN",
        open_catalog_clock(database),
        database_name,
        schema,
        settings.lease_s,
        user_code_limits=UserCodeLimits.from_settings(settings),
        reserved_paths=(*settings.list_reserved_paths(), *more_reserved),
    )


class RejectionWriter:
    """Reports rejected records on standard error and appends them to the `--errors` file."""

    def __init__(self, options: argparse.Namespace, followed: Sequence[str] = ()) -> None:
        """Open the file, after checking that it is not an input of the command.

        Raises:
            OutputRefused: If the file belongs to the deployment or is one of the `followed` files.
        """
        from snowmelt.loaders.file_tail import is_followed
        from snowmelt.storage.overwrite_protection import CommandOutput, check_outputs

        self._file: TextIO | None = None
        if options.errors is not None:
            output = CommandOutput("--errors", str(options.errors), appends=True)
            check_outputs([output], reserved=load_settings(options).list_reserved_paths())
            if is_followed(options.errors, followed):
                raise output.make_error("the command reads this file. Name another file")
            self._file = options.errors.open("a", encoding="utf-8")

    def write(self, position: object, reason: str, data: bytes, **place: object) -> None:
        """Report one line or message. `place` has additional fields with its position."""
        print(f"rejected: {position}: {reason}", file=sys.stderr, flush=True)
        if self._file is not None:
            text = data.decode(errors="backslashreplace")
            print(
                json.dumps({**place, "reason": reason, "data": text}), file=self._file, flush=True
            )

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
