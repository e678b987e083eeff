"""The options by which a command finds the service that it writes to, and the client for it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse

    from snowmelt.client.client import Client


def add_service(group: argparse._ArgumentGroup) -> None:
    """Describe where the service is, and as whom it is written to."""
    group.add_argument(
        "--url", default="http://127.0.0.1:8080", help="its streaming API (default: %(default)s)"
    )
    group.add_argument("--user", help="needed unless it was started with --dev")
    group.add_argument(
        "--private-key", type=Path, metavar="FILE", help="the user's, as `snowmelt user add` writes"
    )
    group.add_argument(
        "--ca-file", type=Path, metavar="FILE", help="authority of its certificate, if not known"
    )


def client_of(options: argparse.Namespace) -> Client:
    """Return a client by these options and `--role`.

    Raises:
        ConfigurationError: The URL, the key or the file of certificates is none.
    """
    from snowmelt.client.client import Client

    return Client(
        options.url,
        user=options.user,
        private_key=options.private_key,
        role=options.role,
        ca_file=options.ca_file,
    )
