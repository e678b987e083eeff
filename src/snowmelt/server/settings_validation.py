"""Validate combinations of settings before resources are opened."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote

from snowmelt.config import Settings
from snowmelt.errors import ConfigurationError
from snowmelt.table.snapshot import check_retention_outlasts_queries


def check_settings(settings: Settings) -> None:
    """Verify the combination of settings of a service.

    Raises:
        ConfigurationError: If the combination of settings is invalid.
    """
    if settings.dev and not settings.listens_on_loopback:
        raise ConfigurationError(
            setting="dev",
            reason="requests without a token are accepted on loopback only, and host is"
            f" {settings.host}. Remove dev, or set host to 127.0.0.1",
        )
    if settings.dev and settings.public_host_names:
        raise ConfigurationError(
            setting="public_hosts",
            reason="with dev, every client of the proxy would be an administrator. Remove dev or"
            " public_hosts",
        )
    for name, url in (("stage", settings.stage_url), ("warehouse", settings.warehouse_url)):
        folder = _parse_local_folder(url)
        if folder is not None and settings.keys_dir.resolve().is_relative_to(folder):
            raise ConfigurationError(
                setting="keys_dir",
                reason=f"{settings.keys_dir} is in the {name}, so every reader of the {name} could read"
                f" the master key. Set keys_dir to a folder outside of the {name}",
            )
    check_retention_outlasts_queries(settings.retention_s)
    is_folder = _parse_local_folder(settings.stage_url) is not None
    if not settings.s3_port and not is_folder:
        raise ConfigurationError(
            setting="s3_port",
            reason="clients upload to the S3 endpoint, because stage_url is not a local folder."
            " Set s3_port, for example to 9000",
        )
    if not settings.s3_port and has_remote_clients(settings):
        raise ConfigurationError(
            setting="s3_port",
            reason="clients on other machines upload to the S3 endpoint. Set s3_port, for example"
            " to 9000",
        )
    if settings.stage_role and is_folder:
        raise ConfigurationError(
            setting="stage_role",
            reason="it requires a stage_url that begins with s3://. Remove stage_role, or change"
            " stage_url",
        )
    if settings.port and settings.port == settings.s3_port:
        raise ConfigurationError(
            setting="s3_port",
            reason=f"{settings.port} is the port of the streaming API. Set another port",
        )


def has_remote_clients(settings: Settings) -> bool:
    """Return True if clients on other machines may connect. They cannot write to local folders."""
    has_proxy = bool(settings.public_host_names)
    return not settings.listens_on_loopback or has_proxy or bool(settings.stage_endpoint)


def _parse_local_folder(url: str) -> Path | None:
    scheme, separator, rest = url.partition("://")
    if separator and scheme != "file":
        return None
    return Path(unquote(rest) if separator else url).expanduser().resolve()
