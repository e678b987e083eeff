"""`snowmelt console`: open the console in a browser, logged in as the user of a key."""

from __future__ import annotations

import argparse
import webbrowser
from urllib.parse import quote

from snowmelt.cli.command_context import add_service_options, create_console_client

NAME = "console"
SUMMARY = "open the console of a service in a browser, logged in with a key pair"
EXAMPLES = """examples:
  snowmelt console                                     (the profile `default`)
  snowmelt console --url https://ingest.example.com:8080 --user ops --private-key ops.pem
  snowmelt console --print                             (a link for a browser on another machine)

The link opens one session and is valid for a minute.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--print", action="store_true", help="print the link without opening a browser"
    )
    parser.add_argument("--role", help="role of the session (default: the user's default role)")
    add_service_options(parser.add_argument_group("service"))


def run(options: argparse.Namespace) -> int:
    """Request a code, and open or print the link with it."""
    with create_console_client(options) as client:
        url = client.url
        if client.has_key:
            found = client.fetch("/login-codes")
            url += f"{found['path']}#{quote(str(found['code']))}"
        else:
            # Without users, the console is open on the machine of the service.
            url += "/console/"
    if options.print or not webbrowser.open(url):
        print(url)
    else:
        print(f"Opened the console of {client.url}.")
    return 0
