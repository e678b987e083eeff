"""`snowmelt user`: add users with a key pair, and create access keys."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path

from snowmelt.cli.command_context import add_action, load_settings, opening_catalog, run_action
from snowmelt.errors import AlreadyExists
from snowmelt.schema.types import to_display_name, to_internal_name

NAME = "user"
SUMMARY = "add users, and give them access keys for the S3 endpoint"
EXAMPLES = """examples:
  snowmelt user add loader --role ACCOUNTADMIN
  snowmelt user add loader --role loading --key-out /etc/loader/key.pem

The role must exist: snowmelt sql "CREATE ROLE loading". It becomes the user's default.
"""
_ACCESS_KEY_EXAMPLES = """examples:
  snowmelt user access-key loader
  eval "$(snowmelt user access-key loader)"
  PAT=$(snowmelt user access-key loader --token)

The output is for a shell, and the only place where the secret is ever shown. A user may have
several keys: SHOW ACCESS KEYS lists them, ALTER USER loader DROP ACCESS KEY 'SMAK…' withdraws one.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="action", required=True)
    help_ = "add a user with a new key pair"
    adding = add_action(actions, "add", _add_user, help=help_, epilog=EXAMPLES)
    adding.add_argument("name", help="as in SQL: upper-case unless written in double quotes")
    adding.add_argument(
        "--key-out",
        metavar="FILE",
        type=Path,
        help="where the private key goes; must not exist (default: NAME.pem)",
    )
    adding.add_argument(
        "--role",
        metavar="ROLE",
        help="grant this role, and make it the default (default: PUBLIC alone)",
    )
    help_ = "give a user an access key for the S3 endpoint and the row API"
    giving = add_action(
        actions, "access-key", _create_access_key, help=help_, epilog=_ACCESS_KEY_EXAMPLES
    )
    giving.add_argument("name", help="the user, as in SQL")
    giving.add_argument(
        "--token",
        action="store_true",
        help="print it as one word, a programmatic access token for the row API",
    )


run = run_action


def _create_access_key(options: argparse.Namespace) -> int:
    """Make an access key and print it as a shell takes it."""
    from snowmelt.catalog.security import encryption_keys
    from snowmelt.catalog.security.encryption_keys import open_or_create_keyring
    from snowmelt.clock import SystemClock

    settings = load_settings(options)
    with opening_catalog(settings) as database:
        keyring = open_or_create_keyring(database, settings.keys_dir)
        with database.writing() as connection:
            key = encryption_keys.create_access_key(
                connection, keyring, to_internal_name(options.name), now=SystemClock().now()
            )
    if options.token:
        print(f"{key.access_key_id}.{key.secret}")
        return 0
    print(f"export AWS_ACCESS_KEY_ID={key.access_key_id}")
    print(f"export AWS_SECRET_ACCESS_KEY={key.secret}")
    return 0


def _add_user(options: argparse.Namespace) -> int:
    """Make the key pair, and the user with the public half."""
    from snowmelt.catalog.security import access_control, encryption_keys
    from snowmelt.clock import SystemClock
    from snowmelt.storage.overwrite_protection import check_output_outside_deployment

    name = to_internal_name(options.name)
    role = None if options.role is None else to_internal_name(options.role)
    path = options.key_out or Path(f"{options.name.lower()}.pem")
    settings = load_settings(options)
    check_output_outside_deployment("--key-out", str(path), reserved=settings.list_reserved_paths())
    private, public = encryption_keys.generate_key_pair()
    with (
        _creating_private_file(path, private),
        opening_catalog(settings) as database,
        database.writing() as connection,
    ):
        user = access_control.create_user(
            connection,
            name,
            public_key=public.decode(),
            default_role=role,
            now=SystemClock().now(),
        )
        if role is not None:
            access_control.grant_role(connection, role, name)
    granted = "" if role is None else f" with role {to_display_name(role)}"
    print(f"User {to_display_name(name)}{granted} created.")
    print(f"Private key: {path} (keep it; it is nowhere else)")
    print(f"Public key:  {user.fingerprints[0]}")
    return 0


@contextlib.contextmanager
def _creating_private_file(path: Path, content: bytes) -> Iterator[None]:
    """Write a file that only its owner may read; when the block raises, it goes again.

    It is written first: a user whose key could not be saved would be of no use.

    Raises:
        AlreadyExists: There is such a file.
    """
    from snowmelt.storage.local_store import create_durable_file

    try:
        create_durable_file(path, content)
    except FileExistsError:
        raise AlreadyExists(kind="File", name=path) from None
    try:
        yield
    except BaseException:
        path.unlink(missing_ok=True)
        raise
