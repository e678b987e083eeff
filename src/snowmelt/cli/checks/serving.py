"""Checks of what `snowmelt serve` would refuse to start with, and of what it would say in the clear."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.cli.checks.finding import Check, note, wrong
from snowmelt.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from snowmelt.config import Settings


def check_serving(settings: Settings) -> Iterator[Check]:
    """Check settings as a service does before it starts; tells nothing where all is well."""
    try:
        from snowmelt.server.checking import check_settings
        from snowmelt.server.routes.metrics import read_token
        from snowmelt.server.rows.parts import zone_named
    except ModuleNotFoundError:
        # What is not installed has been told.
        return
    for check in (
        lambda: check_settings(settings),
        lambda: read_token(settings.metrics_token_file),
        lambda: zone_named(settings.rows_timezone),
    ):
        try:
            check()
        except ConfigurationError as error:
            yield wrong("settings", f"{error} `snowmelt serve` does not start with that.")
    if not settings.listens_on_loopback and not settings.tls_cert:
        yield note(
            "tls",
            f"clients reach {settings.host} without TLS: tokens and rows of the row API can be read on "
            "the way; set SNOWMELT_TLS_CERT and SNOWMELT_TLS_KEY, unless a proxy in front speaks TLS",
        )
