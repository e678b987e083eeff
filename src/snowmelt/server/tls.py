"""TLS certificate of the service, with reload of its files."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING

from snowmelt.errors import ConfigurationError

if TYPE_CHECKING:
    from snowmelt.config import Settings


class TlsCertificate:
    """A chain and its key; `reload` reads the files anew, for connections that come later.

    A listener is given `context` once. Each handshake goes on with the context of the moment: a
    certificate put into the one that connections come from would have those in between fail.
    """

    def __init__(self, certificate_path: Path, key_path: Path) -> None:
        """Read both.

        Raises:
            ConfigurationError: One cannot be read, or they do not belong together.
        """
        self._files = (certificate_path, key_path)
        self._current_context = self.context = self._load_context()
        self.context.sni_callback = self._use_current_context

    def reload(self) -> None:
        """Read the files again; the old certificate stays where that fails.

        Raises:
            ConfigurationError: They cannot be used.
        """
        self._current_context = self._load_context()

    def _use_current_context(
        self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _: ssl.SSLContext
    ) -> None:
        connection.context = self._current_context

    def _load_context(self) -> ssl.SSLContext:
        certificate, key = self._files
        for setting, path in (("tls_cert", certificate), ("tls_key", key)):
            if not path.is_file():
                raise ConfigurationError(setting=setting, reason=f"there is no file {path}")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            context.load_cert_chain(certificate, key)
        except (ssl.SSLError, OSError) as error:
            raise ConfigurationError(
                setting="tls_cert",
                reason=f"{certificate} and {key} are no certificate and its key ({error})",
            ) from None
        return context


def load_certificate(settings: Settings) -> TlsCertificate | None:
    """Return the certificate that the settings name, None where they name none.

    Raises:
        ConfigurationError: Only one of certificate and key is named, or they cannot be used.
    """
    if not settings.tls_cert and not settings.tls_key:
        return None
    if not settings.tls_cert or not settings.tls_key:
        missing = "tls_key" if settings.tls_cert else "tls_cert"
        raise ConfigurationError(setting=missing, reason="certificate and key go together")
    return TlsCertificate(Path(settings.tls_cert).expanduser(), Path(settings.tls_key).expanduser())
