"""`snowmelt replica`: create, show, promote, suspend and drop the failover group of a site."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from snowmelt.cli.command_context import (
    StatementRunner,
    add_action,
    add_service_options,
    opening_statement_runner,
    run_action,
)
from snowmelt.cli.output import add_format_option, print_message, print_rows
from snowmelt.errors import UserError
from snowmelt.schema.types import quote_literal, to_display_name, to_internal_name

NAME = "replica"
SUMMARY = "replicate to another site, show the state of replication, and fail over"
EXAMPLES = """examples:
  snowmelt replica status
  snowmelt replica create sites --site site1 --allow site2 --address https://one.example:8080
  snowmelt replica create sites --site site2 --of site1 --primary-url https://one.example:8080
  snowmelt replica promote --planned
  snowmelt replica promote --url https://two.example:8080 --user admin --private-key admin.pem
  snowmelt replica status --profile site2 --format json

`create`, `drop` and the changes (`promote`, `suspend`, `resume`, `allow`, `forbid`) run CREATE, DROP and ALTER
FAILOVER GROUP, or REPLICATION GROUP. `status` runs SHOW FAILOVER GROUPS and SHOW REPLICAS, `diverged` runs
SHOW DIVERGED CHANGES. Without --url and --profile, the command opens the catalog of this site.
"""
_NO_GROUP = "This installation has no failover group. Create one with `snowmelt replica create`."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="action", required=True)
    status = add_action(
        actions,
        "status",
        _show_status,
        help="show the failover group of this site, and the sites that follow it",
    )
    add_format_option(status)
    creating = add_action(
        actions,
        "create",
        _create,
        help="make this site the primary of a new group, or with --of a secondary",
    )
    _add_create_options(creating)
    promoting = add_action(
        actions,
        "promote",
        _promote,
        help="make this secondary the primary",
        description="Make this secondary the primary immediately. Rejected if rows that the primary "
        "has reported as committed could be lost.",
    )
    kinds = promoting.add_mutually_exclusive_group()
    kinds.add_argument(
        "--planned",
        action="store_true",
        help="first stop writes at the primary and copy its last rows, so that no row is lost",
    )
    kinds.add_argument(
        "--force", action="store_true", help="promote this site even if reported rows are lost"
    )
    suspending = add_action(
        actions, "suspend", _make_alteration("SUSPEND"), help="stop following the primary"
    )
    resuming = add_action(
        actions, "resume", _make_alteration("RESUME"), help="follow the primary again"
    )
    allowing = add_action(actions, "allow", _allow, help="let another site follow this primary")
    forbidding = add_action(
        actions,
        "forbid",
        _forbid,
        help="stop replicating to a site, and stop waiting for its confirmations",
    )
    for action in (allowing, forbidding):
        action.add_argument("site", help="name of the site, as in SQL")
    diverged = add_action(
        actions,
        "diverged",
        _list_diverged_changes,
        help="list the changes that only this site had when another site replaced it as primary",
    )
    add_format_option(diverged)
    dropping = add_action(
        actions, "drop", _drop, help="leave the group; the site keeps its state and accepts writes"
    )
    for action in (
        *(status, creating, promoting, suspending),
        *(resuming, allowing, forbidding, diverged, dropping),
    ):
        service = action.add_argument_group(
            "service that runs the statement (default: this process)"
        )
        add_service_options(service, is_optional=True)


run = run_action


def _add_create_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", help="name of the group, the same at all sites")
    parser.add_argument("--site", required=True, help="name of this site")
    parser.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="SITE",
        help="site that may follow; may be given several times (required at the primary)",
    )
    parser.add_argument("--of", metavar="SITE", help="name of the primary, which this site follows")
    parser.add_argument("--primary-url", metavar="URL", help="address of the primary")
    parser.add_argument(
        "--address",
        action="append",
        default=[],
        metavar="URL",
        help="address of this site for clients and other sites; may be given several times",
    )
    parser.add_argument(
        "--replica-user", metavar="USER", help="user with the privilege REPLICATE at the primary"
    )
    parser.add_argument(
        "--replica-key",
        metavar="FILE",
        help="private key file of that user, on the machine of the service",
    )
    parser.add_argument(
        "--replica-ca-file", metavar="FILE", help="certificate authority of the other sites"
    )
    parser.add_argument(
        "--read-only",
        action="store_true",
        help="create a replication group, whose replicas are never promoted",
    )


def _show_status(options: argparse.Namespace) -> None:
    with opening_statement_runner(options) as execute:
        group = _find_group(execute)
        replicas = execute("SHOW REPLICAS")
    if options.format == "json":
        # In JSON, print one object: the group with the sites that follow it.
        sites = [dict(zip(replicas.columns, row, strict=True)) for row in replicas.rows]
        print_rows((*group, "replicas"), [(*group.values(), sites)], options.format)
        return
    print_rows(tuple(group), [tuple(group.values())], options.format)
    if replicas.rows:
        print_rows(replicas.columns, replicas.rows, options.format)


def _create(options: argparse.Namespace) -> None:
    kind = "REPLICATION" if options.read_only else "FAILOVER"
    name = _quote(options.name)
    if options.of is None:
        if not options.allow or options.primary_url is not None:
            raise UserError(
                "A primary needs --allow SITE and takes no --primary-url. For a secondary, give "
                "--of SITE and --primary-url URL."
            )
        sites = ", ".join(map(_quote, options.allow))
        statement = f"CREATE {kind} GROUP {name} ALLOWED_ACCOUNTS = {sites}"
    else:
        if options.primary_url is None or options.allow:
            raise UserError("A secondary needs --primary-url URL and takes no --allow.")
        statement = (
            f"CREATE {kind} GROUP {name} AS REPLICA OF {_quote(options.of)}.{name} "
            f"URL = {quote_literal(options.primary_url)}"
        )
    statement += f" SITE = {_quote(options.site)}"
    if options.address:
        statement += f" ADDRESSES = ({', '.join(map(quote_literal, options.address))})"
    if options.replica_user is not None:
        statement += f" USER = {quote_literal(options.replica_user)}"
    if options.replica_key is not None:
        statement += f" PRIVATE_KEY = {quote_literal(f'file:{options.replica_key}')}"
    if options.replica_ca_file is not None:
        statement += f" CA_FILE = {quote_literal(options.replica_ca_file)}"
    # A secondary is an installation without objects, which may have no catalog yet.
    creates_catalog = options.of is not None
    with opening_statement_runner(options, creates_catalog=creates_catalog) as execute:
        print_message(execute(statement).message, "table")


def _promote(options: argparse.Namespace) -> None:
    form = " PLANNED" if options.planned else " FORCE" if options.force else ""
    _alter(options, f"PRIMARY{form}")


def _allow(options: argparse.Namespace) -> None:
    _alter(options, f"ADD {_quote(options.site)} TO ALLOWED_ACCOUNTS")


def _forbid(options: argparse.Namespace) -> None:
    _alter(options, f"REMOVE {_quote(options.site)} FROM ALLOWED_ACCOUNTS")


def _make_alteration(words: str) -> Callable[[argparse.Namespace], None]:
    return lambda options: _alter(options, words)


def _alter(options: argparse.Namespace, words: str) -> None:
    with opening_statement_runner(options) as execute:
        group = _find_group(execute)
        statement = f"ALTER {group['kind']} GROUP {to_display_name(str(group['name']))} {words}"
        print_message(execute(statement).message, "table")


def _list_diverged_changes(options: argparse.Namespace) -> None:
    with opening_statement_runner(options) as execute:
        shown = execute("SHOW DIVERGED CHANGES")
    print_rows(shown.columns, shown.rows, options.format)


def _drop(options: argparse.Namespace) -> None:
    with opening_statement_runner(options) as execute:
        group = _find_group(execute)
        name = to_display_name(str(group["name"]))
        print_message(execute(f"DROP {group['kind']} GROUP {name}").message, "table")


def _find_group(execute: StatementRunner) -> dict[str, object]:
    """Return the row of SHOW FAILOVER GROUPS.

    Raises:
        UserError: If there is no group.
    """
    shown = execute("SHOW FAILOVER GROUPS")
    if not shown.rows:
        raise UserError(_NO_GROUP)
    return dict(zip(shown.columns, shown.rows[0], strict=True))


def _quote(name: str) -> str:
    return to_display_name(to_internal_name(name))
