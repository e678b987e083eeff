"""`snowmelt init`: configuration file, catalog, first user and first table of a new installation."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from snowmelt.cli.command_context import load_settings, opening_catalog
from snowmelt.cli.commands import doctor
from snowmelt.config import Settings
from snowmelt.config_file import CONFIG_FILE_NAME, find_config_file, load_config_file
from snowmelt.errors import NotFound, UserError
from snowmelt.schema.types import to_internal_name

if TYPE_CHECKING:
    from snowmelt.catalog.db.database import Database

NAME = "init"
SUMMARY = "set up an installation: configuration file, catalog, first user, first table"
EXAMPLES = """examples:
  snowmelt init
  snowmelt init --yes
  snowmelt init --yes --data-dir /var/lib/snowmelt --port 8443 --config /etc/snowmelt/snowmelt.toml

Asks for each value; --yes takes the defaults and the options. Existing parts are kept, so the command
can be repeated. The last lines of the output are the next commands.
"""
_FIRST_COLUMNS = "id NUMBER NOT NULL, at TIMESTAMP_NTZ(6), what VARCHAR"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--yes", action="store_true", help="ask nothing")
    parser.add_argument("--port", type=int, help="port of the service (default: 8080)")
    parser.add_argument(
        "--s3-port", type=int, help="port of the S3 endpoint, 0 for none (default: 9000)"
    )
    parser.add_argument(
        "--user",
        default="admin",
        help="first user, with role ACCOUNTADMIN; its private key is written to USER.pem "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--table",
        default="demo.public.events",
        metavar="NAME",
        help=f"first table, with columns {_FIRST_COLUMNS} (default: %(default)s)",
    )


def run(options: argparse.Namespace) -> int:
    """Create missing parts, check the installation, and print the next commands."""
    from snowmelt.catalog.security.encryption_keys import open_or_create_keyring

    if not options.yes and not sys.stdin.isatty():
        raise UserError("Standard input is not a terminal. Add --yes to take the defaults.")
    path = options.config or find_config_file() or Path(CONFIG_FILE_NAME)
    if path.exists():
        print(f"{path} exists: kept.")
    else:
        _prompt_for_values(options)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_make_config_text(options), encoding="utf-8")
        print(f"{path} written.")
    options.config = path
    # The file contains the option's value. Passing it again would override an existing file.
    options.data_dir = None
    settings = load_settings(options)
    with opening_catalog(settings, create=True) as database:
        open_or_create_keyring(database, settings.keys_dir)
        _ensure_user(database, options.user, path.parent / _key_file_name(options.user))
        _ensure_table(database, options.table)
    print("\nChecks:")
    exit_code = doctor.run(argparse.Namespace(**vars(options), format="text"))
    _print_next_commands(options, path)
    return exit_code


def _prompt_for_values(options: argparse.Namespace) -> None:
    defaults = Settings.from_environment({})
    questions = (
        ("data_dir", "Data folder", "snowmelt-data"),
        ("port", "Port of the service", defaults.port),
        ("s3_port", "Port of the S3 endpoint (0: none)", defaults.s3_port),
        ("user", "First user", options.user),
        ("table", "First table", options.table),
    )
    for name, question, default in questions:
        value = getattr(options, name)
        value = default if value is None else value
        if not options.yes:
            value = input(f"{question} [{value}]: ").strip() or value
        setattr(options, name, type(default)(value))


def _make_config_text(options: argparse.Namespace) -> str:
    given = {name: getattr(options, name) for name in ("data_dir", "port", "s3_port")}
    lines = [
        "# Configuration of Snowmelt.",
        "# `snowmelt settings` shows every setting with its value and the source of the value.",
        "# Relative paths start at the folder of this file.",
        "",
        "[settings]",
    ]
    lines += [f"{name} = {json.dumps(value)}" for name, value in given.items()]
    for each in dataclasses.fields(Settings):
        if each.name not in given:
            default = "" if isinstance(each.default, Path) else each.default
            lines += ["", f"# {each.metadata['about']}", f"# {each.name} = {json.dumps(default)}"]
    lines += [
        "",
        "# Address of the service for `snowmelt tail`, `kafka` and `replay`, `snowmelt.connect()`,",
        "# and with --profile also `sql`, `copy`, `channels` and `user`.",
        "# If you change `port` above, change this address too.",
        "[profiles.default]",
        f'url = "http://127.0.0.1:{options.port}"',
        f"user = {json.dumps(options.user)}",
        f"private_key = {json.dumps(_key_file_name(options.user))}",
        "",
    ]
    return "\n".join(lines)


def _key_file_name(user: str) -> str:
    return f"{user.lower()}.pem"


def _ensure_user(database: Database, user: str, key_file: Path) -> None:
    from snowmelt.catalog.model.records import ACCOUNTADMIN
    from snowmelt.catalog.security import access_control
    from snowmelt.catalog.security.encryption_keys import generate_key_pair
    from snowmelt.clock import SystemClock
    from snowmelt.storage.local_store import create_durable_file

    name = to_internal_name(user)
    try:
        with database.reading() as connection:
            access_control.find_user(connection, name)
    except NotFound:
        pass
    else:
        print(f"User {user} exists: kept.")
        return
    private, public = generate_key_pair()
    try:
        create_durable_file(key_file, private)
    except FileExistsError:
        raise UserError(
            f"{key_file} exists, but user {user} does not. Move the file away, or choose another "
            "user with --user."
        ) from None
    with database.writing() as connection:
        access_control.create_user(
            connection,
            name,
            public_key=public.decode(),
            default_role=ACCOUNTADMIN,
            now=SystemClock().now(),
        )
        access_control.grant_role(connection, ACCOUNTADMIN, name)
    print(f"User {user} created with role ACCOUNTADMIN. Private key: {key_file}")


def _ensure_table(database: Database, table: str) -> None:
    from snowmelt.catalog.sql.cursor import parse_table_name
    from snowmelt.catalog.statements.executor import execute_statement
    from snowmelt.schema.types import to_display_name

    name = parse_table_name(table)
    database_name, schema = to_display_name(name.database), to_display_name(name.schema)
    for statement in (
        f"CREATE DATABASE IF NOT EXISTS {database_name}",
        f"CREATE SCHEMA IF NOT EXISTS {database_name}.{schema}",
        f"CREATE TABLE IF NOT EXISTS {name} ({_FIRST_COLUMNS})",
    ):
        message = execute_statement(database, statement).message
        # CREATE DATABASE creates the schema PUBLIC, too.
        if not (message.startswith("Schema ") and "already exists" in message):
            print(message)


def _print_next_commands(options: argparse.Namespace, path: Path) -> None:
    file = load_config_file(path)
    # Commands find a configuration file in the current folder without --config.
    option = "" if path == Path(CONFIG_FILE_NAME) or file is None else f" --config {path}"
    print(
        f"""
Next:
  snowmelt serve{option}
  echo '{{"id": 1, "what": "hello"}}' > events.jsonl && snowmelt tail events.jsonl --once --table {options.table}{option}
  snowmelt sql "SELECT * FROM {options.table}"{option}"""
    )
