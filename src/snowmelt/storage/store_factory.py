"""Open a store by URL or by folder path."""

from __future__ import annotations

import os
import re
from urllib.parse import unquote, urlsplit

from snowmelt.errors import ConfigurationError, MissingExtra
from snowmelt.storage.local_store import LocalStore
from snowmelt.storage.store import Store

_URL_SCHEME_PATTERN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


def open_store(location: str | os.PathLike[str]) -> Store:
    """Open the store of a URL, or of a folder (path or `file:` URL), which is created if missing.

    Raises:
        ConfigurationError: If no store supports the URL.
        MissingExtra: If the URL needs a package that is not installed.
    """
    text = os.fspath(location)
    if not _URL_SCHEME_PATTERN.match(text):
        return LocalStore(text)
    parts = urlsplit(text)
    if parts.scheme.lower() == "file":
        if parts.netloc not in {"", "localhost"}:
            raise ConfigurationError(setting=text, reason="a file: URL has no host")
        return LocalStore(unquote(parts.path))
    try:
        from snowmelt.storage.remote_store import open_remote_store
    except ModuleNotFoundError as error:
        if error.name != "obstore":
            raise
        raise MissingExtra(
            what=f"A store at {parts.scheme}://", package="obstore", extra="server"
        ) from None
    return open_remote_store(text)
