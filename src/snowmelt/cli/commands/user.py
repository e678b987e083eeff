"""`snowmelt user`: add, list and drop users, replace their keys, and create access keys."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from pathlib import Path

from snowmelt.cli.command_context import (
    add_action,
    add_service_options,
    load_settings,
    opening_statement_runner,
    run_action,
)
from snowmelt.cli.output import add_format_option, print_rows
from snowmelt.errors import AlreadyExists
from snowmelt.schema.types import to_display_name, to_internal_name

NAME = "user"
SUMMARY = "add, list and drop users, replace their keys, and create access keys"
EXAMPLES = """examples:
  snowmelt user add loader --role ACCOUNTADMIN
  snowmelt user add loader --role loading --key-out /etc/loader/key.pem
  snowmelt user list
  snowmelt user rotate loader --key-out new.pem
  snowmelt user drop loader

The role must exist: snowmelt sql "CREATE ROLE loading". It becomes the user's default.
"""
_ACCESS_KEY_EXAMPLES = """examples:
  snowmelt user access-key loader
  eval "$(snowmelt user access-key loader)"
  PAT=$(snowmelt user access-key loader --token)

The output is for a shell. The secret is shown only once. A user may have several keys: SHOW ACCESS
KEYS lists them, ALTER USER loader DROP ACCESS KEY 'SMAK…' drops one.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="action", required=True)
    help_ = "add a user with a new key pair"
    adding = add_action(actions, "add", _add_user, help=help_, epilog=EXAMPLES)
    adding.add_argument("name", help="name, as in SQL: in upper case unless double-quoted")
    adding.add_argument(
        "--key-out",
        metavar="FILE",
        type=Path,
        help="new file for the private key (default: NAME.pem)",
    )
    adding.add_argument(
        "--role",
        dest="granted_role",
        metavar="ROLE",
        help="grant this role and make it the default (default: PUBLIC only)",
    )
    listing = add_action(actions, "list", _list_users, help="list users with their public keys")
    add_format_option(listing)
    dropping = add_action(
        actions,
        "drop",
        _drop_user,
        help="drop a user with all keys",
        description="Drop a user with all keys. Its committed rows stay; its requests are rejected "
        "within five seconds.",
    )
    dropping.add_argument("name", help="user, as in SQL")
    rotating = add_action(
        actions,
        "rotate",
        _rotate_key,
        help="replace the key pair of a user",
        description="Give a user a new key pair. The former key stays valid until the next rotation. "
        "With --revoke the service rejects it within five seconds.",
    )
    rotating.add_argument("name", help="user, as in SQL")
    rotating.add_argument(
        "--key-out",
        metavar="FILE",
        type=Path,
        required=True,
        help="new file for the private key",
    )
    rotating.add_argument(
        "--revoke", action="store_true", help="reject the former key within five seconds"
    )
    help_ = "create an access key for the S3 endpoint and the row API"
    giving = add_action(
        actions, "access-key", _create_access_key, help=help_, epilog=_ACCESS_KEY_EXAMPLES
    )
    giving.add_argument("name", help="user, as in SQL")
    giving.add_argument(
        "--token",
        action="store_true",
        help="print a programmatic access token for the row API instead",
    )
    for action in (adding, listing, dropping, rotating, giving):
        service = action.add_argument_group("service (default: the catalog of this machine)")
        add_service_options(service, is_optional=True)


run = run_action


def _list_users(options: argparse.Namespace) -> None:
    with opening_statement_runner(options) as execute:
        shown = execute("SHOW USERS")
    print_rows(shown.columns, shown.rows, options.format)


def _drop_user(options: argparse.Namespace) -> None:
    with opening_statement_runner(options) as execute:
        execute(f"DROP USER {_quote(options.name)}")
    print(f"User {_quote(options.name)} dropped.")


def _add_user(options: argparse.Namespace) -> None:
    """Create a key pair, and the user with the public key."""
    path = options.key_out or Path(f"{options.name.lower()}.pem")
    name = _quote(options.name)
    with _creating_key_file(options, path) as public, opening_statement_runner(options) as execute:
        default = (
            ""
            if options.granted_role is None
            else f" DEFAULT_ROLE = {_quote(options.granted_role)}"
        )
        execute(f"CREATE USER {name} RSA_PUBLIC_KEY = '{public}'{default}")
        if options.granted_role is not None:
            try:
                execute(f"GRANT ROLE {_quote(options.granted_role)} TO USER {name}")
            except BaseException:
                execute(f"DROP USER {name}")
                raise
    granted = "" if options.granted_role is None else f" with role {_quote(options.granted_role)}"
    print(f"User {_quote(options.name)}{granted} created.")
    _print_key(path)
    print(f"To connect:  --user {options.name} --private-key {path}; in Python:")
    print(f'             snowmelt.Client(URL, user="{options.name}", private_key="{path}")')


def _rotate_key(options: argparse.Namespace) -> None:
    """Set a new public key in slot 1 and move the former key to slot 2."""
    name = _quote(options.name)
    with (
        _creating_key_file(options, options.key_out) as public,
        opening_statement_runner(options) as execute,
    ):
        described = {str(word): value for word, value in execute(f"DESCRIBE USER {name}").rows}
        former = described["RSA_PUBLIC_KEY"] or described["RSA_PUBLIC_KEY_2"]
        fingerprint = described["RSA_PUBLIC_KEY_FP"] or described["RSA_PUBLIC_KEY_2_FP"]
        is_kept = former is not None and not options.revoke
        # One statement, so that the user always has a valid key.
        second = f" RSA_PUBLIC_KEY_2 = '{former}'" if is_kept else ""
        execute(f"ALTER USER {name} SET RSA_PUBLIC_KEY = '{public}'{second}")
        if not is_kept:
            execute(f"ALTER USER {name} UNSET RSA_PUBLIC_KEY_2")
    print(f"User {name} has a new key.")
    _print_key(options.key_out)
    if is_kept:
        print(f"Still valid: {fingerprint} (until the next rotation)")


def _print_key(path: Path) -> None:
    from snowmelt.client.auth import compute_key_fingerprint, load_private_key

    print(f"Private key: {path} (keep it; there is no copy)")
    print(f"Public key:  {compute_key_fingerprint(load_private_key(path))}")


def _quote(name: str) -> str:
    """Quote a name for SQL if necessary."""
    return to_display_name(to_internal_name(name))


def _create_access_key(options: argparse.Namespace) -> int:
    """Create an access key. Print it as shell exports or, with --token, as a token."""
    with opening_statement_runner(options) as execute:
        [(key_id, secret)] = execute(f"ALTER USER {_quote(options.name)} ADD ACCESS KEY").rows
    if options.token:
        print(f"{key_id}.{secret}")
        return 0
    print(f"export AWS_ACCESS_KEY_ID={key_id}")
    print(f"export AWS_SECRET_ACCESS_KEY={secret}")
    return 0


@contextlib.contextmanager
def _creating_key_file(options: argparse.Namespace, path: Path) -> Iterator[str]:
    """Create a key pair. Write the private key to a file and yield the public key as PEM.

    The file is written first, so that a failure leaves no user without a private key. If the block
    raises, the file is deleted.

    Raises:
        AlreadyExists: If the file exists.
    """
    from snowmelt.catalog.security.encryption_keys import generate_key_pair
    from snowmelt.storage.local_store import create_durable_file
    from snowmelt.storage.overwrite_protection import check_output_outside_deployment

    reserved = load_settings(options).list_reserved_paths()
    check_output_outside_deployment("--key-out", str(path), reserved=reserved)
    private, public = generate_key_pair()
    try:
        create_durable_file(path, private)
    except FileExistsError:
        raise AlreadyExists(
            f"File {path} already exists. Name another with --key-out, or give user {options.name} "
            f"a new key: snowmelt user rotate {options.name} --key-out FILE.",
            kind="File",
            name=path,
        ) from None
    try:
        yield public.decode()
    except BaseException:
        path.unlink(missing_ok=True)
        raise
