"""HTTP listener: a listening socket, its uvicorn server, and its TLS certificate."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import uvicorn

from snowmelt.config import Settings
from snowmelt.errors import ConfigurationError

if TYPE_CHECKING:
    import asyncio

    from starlette.types import ASGIApp


BACKLOG = 2048
# Keep-alive timeout in seconds. Longer than the minute for which the official client keeps an idle
# connection.
_KEEP_ALIVE_TIMEOUT_S = 75


class _SignalFreeServer(uvicorn.Server):
    """uvicorn server without signal handlers, which would end the process before the service closes."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no signal handlers."""
        yield


class HttpListener:
    """Serves one application on one port. Accepts connections immediately; `run` handles them."""

    def __init__(
        self,
        app: ASGIApp,
        listening_socket: socket.socket,
        *,
        drain_s: float,
        protocol: type[asyncio.Protocol] | Any = "httptools",
        certificate: TlsCertificate | None = None,
    ) -> None:
        """Create a server on a listening socket, which `close` closes.

        A stopping server waits `drain_s` seconds for open requests. `protocol` is uvicorn's
        protocol class or a compatible one. If `certificate` is None, the server does not use TLS.
        """
        self._socket = listening_socket
        self._thread: threading.Thread | None = None
        host, port = listening_socket.getsockname()[:2]
        scheme = "http" if certificate is None else "https"
        self.url = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
        config = uvicorn.Config(
            app,
            loop="uvloop",
            http=protocol,
            ws="none",
            lifespan="off",
            access_log=False,
            log_config=None,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE_TIMEOUT_S,
            timeout_graceful_shutdown=max(int(drain_s), 1),
        )
        config.load()
        if certificate is not None:
            # Use this context and not one that uvicorn creates, because its certificate can be
            # replaced later.
            config.ssl = certificate.context
        self._server = _SignalFreeServer(config)

    def run(self) -> None:
        """Handle requests until `stop` is called, then finish open requests."""
        self._server.run(sockets=[self._socket])

    def start(self, name: str) -> None:
        """Handle requests in a new thread."""
        self._thread = threading.Thread(target=self.run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Make `run` return. May be called from any thread or signal handler."""
        self._server.should_exit = True

    def close(self) -> None:
        """Stop, wait for the thread, and close the port."""
        self.stop()
        if self._thread is not None:
            self._thread.join()
        self._socket.close()


def open_listening_socket(host: str, port: int, *, setting: str) -> socket.socket:
    """Open a listening socket. Port 0 means any free port.

    Raises:
        ConfigurationError: If the address is in use, or is not an address of this machine. The
            error names `setting`.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigurationError(
            setting="host", reason=f"{host} is no address here: {error}"
        ) from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigurationError(
            setting=setting, reason=f"{host}:{port} cannot be listened on: {error.strerror}"
        ) from None
    return listener


class TlsCertificate:
    """A certificate chain and its key. `reload` reads the files again for new connections.

    A listener receives `context` once. Each handshake then switches to the current context, because
    replacing the certificate inside a shared context would fail handshakes in progress.
    """

    def __init__(self, certificate_path: Path, key_path: Path) -> None:
        """Read both files.

        Raises:
            ConfigurationError: If a file cannot be read, or the files do not match.
        """
        self._files = (certificate_path, key_path)
        self._current_context = self.context = self._load_context()
        self.context.sni_callback = self._use_current_context

    def reload(self) -> None:
        """Read the files again. Keep the old certificate if that fails.

        Raises:
            ConfigurationError: If the files cannot be used.
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
                reason=f"{certificate} and {key} are not a certificate and its key ({error})",
            ) from None
        return context


def load_certificate(settings: Settings) -> TlsCertificate | None:
    """Load the certificate that the settings specify. Return None if there is none.

    Raises:
        ConfigurationError: If only one of certificate and key is set, or they are invalid.
    """
    if not settings.tls_cert and not settings.tls_key:
        return None
    if not settings.tls_cert or not settings.tls_key:
        missing = "tls_key" if settings.tls_cert else "tls_cert"
        raise ConfigurationError(setting=missing, reason="certificate and key go together")
    return TlsCertificate(Path(settings.tls_cert).expanduser(), Path(settings.tls_key).expanduser())
