"""Create the transport of a client from its arguments: URL, credentials, certificates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Self

from snowmelt.client.auth import (
    CallbackTokenProvider,
    KeyPairTokenProvider,
    OAuth,
    RefreshTokenProvider,
    TokenProvider,
    load_private_key,
)
from snowmelt.client.settings import ClientSettings
from snowmelt.client.transport import ServiceAddress, Transport, make_ssl_context, parse_service_url
from snowmelt.errors import ConfigurationError


def make_transport(
    url: str,
    settings: ClientSettings,
    *,
    user: str | None,
    private_key: str | bytes | Path | None,
    oauth: OAuth | str | Callable[[], str] | None,
    timeout_s: float,
) -> Transport:
    """Create the transport of a client. Sends no request.

    Raises:
        ConfigurationError: If an argument is invalid, or `oauth` is combined with user and key.
    """
    address = parse_service_url(url)
    if oauth is None:
        tokens = _make_key_pair_provider(address, user, private_key, settings)
    elif user is None and private_key is None:
        tokens = _make_oauth_provider(address, oauth, settings)
    else:
        reason = "it replaces user and private_key. Set only one of them"
        raise ConfigurationError(setting="oauth", reason=reason)
    return Transport(address, tokens, settings.clock, timeout_s=timeout_s, ca_file=settings.ca_file)


def _make_key_pair_provider(
    address: ServiceAddress,
    user: str | None,
    private_key: str | bytes | Path | None,
    settings: ClientSettings,
) -> TokenProvider | None:
    if user is None and private_key is None:
        return None
    if user is None or private_key is None:
        missing = "user" if user is None else "private_key"
        raise ConfigurationError(setting=missing, reason="set both user and private_key")
    account = settings.account or address.account
    return KeyPairTokenProvider(account, user, load_private_key(private_key), settings.clock)


def _make_oauth_provider(
    address: ServiceAddress, oauth: OAuth | str | Callable[[], str], settings: ClientSettings
) -> TokenProvider:
    if not isinstance(oauth, OAuth):
        return CallbackTokenProvider(oauth)
    endpoint = oauth.token_endpoint or f"{address.url}/oauth/token-request"
    return RefreshTokenProvider(
        oauth, endpoint, settings.clock, ssl_context=make_ssl_context(settings.ca_file)
    )


class ServiceConnection:
    """Base of clients that send one request after another. A context manager closes its connections."""

    def __init__(
        self,
        url: str,
        *,
        user: str | None,
        private_key: str | bytes | Path | None,
        oauth: OAuth | str | Callable[[], str] | None,
        ca_file: str | None,
        timeout_s: float,
    ) -> None:
        self._transport = make_transport(
            url,
            ClientSettings(ca_file=ca_file),
            user=user,
            private_key=private_key,
            oauth=oauth,
            timeout_s=timeout_s,
        )

    @property
    def url(self) -> str:
        """The address of the service."""
        return self._transport.address.url

    def close(self) -> None:
        """Close connections."""
        self._transport.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
