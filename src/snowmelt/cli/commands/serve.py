"""`snowmelt serve`: run the service."""

from __future__ import annotations

import argparse

from snowmelt.cli.command_context import load_settings
from snowmelt.errors import UserError

NAME = "serve"
SUMMARY = "run the service: streaming APIs, S3 endpoint, migration and garbage collection"
EXAMPLES = """examples:
  snowmelt serve
  snowmelt serve --data-dir /var/lib/snowmelt --host 0.0.0.0 --port 8080
  snowmelt serve --backend s3://existing-bucket --backend logs=/var/log/exports
  snowmelt cert --out certs && snowmelt serve --tls-cert certs/server.pem --tls-key certs/server.key
  snowmelt serve --catalog postgresql://snowmelt@db/snowmelt --no-migrate

Settings can also be set in the environment, as SNOWMELT_ and their name in capitals, or in
snowmelt.toml. `snowmelt settings` shows all of them.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument(
        "--port", type=int, help="port to listen on, 0 for any free one (default: 8080)"
    )
    parser.add_argument(
        "--s3-port", type=int, help="port of the S3 endpoint, 0 for none (default: 9000)"
    )
    parser.add_argument(
        "--backend",
        metavar="[NAME=]URL",
        action="append",
        help="serve an existing location as a bucket: s3://bucket, gs://bucket, az://container "
        "or a folder; repeatable",
    )
    parser.add_argument(
        "--tls-cert", metavar="FILE", help="certificate file of both ports, for HTTPS"
    )
    parser.add_argument("--tls-key", metavar="FILE", help="key file of the certificate")
    parser.add_argument(
        "--verify",
        choices=("full", "footer"),
        help="verification of chunks before they commit (default: full)",
    )
    parser.add_argument(
        "--no-migrate",
        dest="migrate",
        action="store_const",
        const=False,
        help="do not migrate in the background (use `snowmelt migrate`)",
    )
    parser.add_argument(
        "--dev",
        action="store_const",
        const=True,
        help="accept requests without a token as ACCOUNTADMIN; on loopback only",
    )


def run(options: argparse.Namespace) -> int:
    """Serve until SIGTERM or Ctrl-C."""
    names = ("host", "port", "s3_port", "tls_cert", "tls_key", "verify", "migrate", "dev")
    backend = ",".join(options.backend) if options.backend else None
    given = {name: getattr(options, name) for name in names}
    settings = load_settings(options, s3_backend=backend, **given)
    if options.backend and not settings.s3_port:
        raise UserError("--backend requires the S3 endpoint, which --s3-port 0 disables.")
    from snowmelt.server.lifecycle import serve

    serve(settings)
    return 0
