"""The certificate that the service shows, if it shows one."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING

from snowmelt.errors import ConfigurationError

if TYPE_CHECKING:
    from snowmelt.config import Settings


class Certificate:
    """A chain and its key; `reload` reads the files anew, for connections that come later."""

    def __init__(self, certificate: Path, key: Path) -> None:
        """Read both.

        Raises:
            ConfigurationError: One cannot be read, or they do not belong together.
        """
        self._files = (certificate, key)
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.reload()

    def reload(self) -> None:
        """Read the files again; the old certificate stays where that fails.

        Raises:
            ConfigurationError: They cannot be used.
        """
        certificate, key = self._files
        for setting, path in (("tls_cert", certificate), ("tls_key", key)):
            if not path.is_file():
                raise ConfigurationError(setting=setting, reason=f"there is no file {path}")
        try:
            # Tried on a context of its own first: one that failed half-way would be of no use.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
            self.context.load_cert_chain(certificate, key)
        except (ssl.SSLError, OSError) as error:
            raise ConfigurationError(
                setting="tls_cert",
                reason=f"{certificate} and {key} are no certificate and its key ({error})",
            ) from None


def certificate_of(settings: Settings) -> Certificate | None:
    """Return the certificate that the settings name, None where they name none.

    Raises:
        ConfigurationError: Only one of certificate and key is named, or they cannot be used.
    """
    if not settings.tls_cert and not settings.tls_key:
        return None
    if not settings.tls_cert or not settings.tls_key:
        missing = "tls_key" if settings.tls_cert else "tls_cert"
        raise ConfigurationError(setting=missing, reason="certificate and key go together")
    return Certificate(Path(settings.tls_cert).expanduser(), Path(settings.tls_key).expanduser())
