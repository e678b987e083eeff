"""HTTP listener: a listening socket, the uvicorn server behind it, and its TLS certificate."""

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
# Longer than the minute that the official client keeps an idle connection.
_KEEP_ALIVE_TIMEOUT_S = 75


class _SignalFreeServer(uvicorn.Server):
    """uvicorn without its own signal handling, which would end the process before we tidy up."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to whoever runs this."""
        yield


class HttpListener:
    """One port with one application; connections are taken from the beginning, answered by `run`."""

    def __init__(
        self,
        app: ASGIApp,
        listening_socket: socket.socket,
        *,
        drain_s: float,
        protocol: type[asyncio.Protocol] | Any = "httptools",
        certificate: TlsCertificate | None = None,
    ) -> None:
        """Prepare to answer on a socket that listens, and is closed with `close`.

        A stopping server waits `drain_s` for open requests. `protocol` is uvicorn's, or a class of
        its kind; without `certificate` there is no TLS.
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
            # Ours instead of one made from files: it can be given another certificate later.
            config.ssl = certificate.context
        self._server = _SignalFreeServer(config)

    def run(self) -> None:
        """Answer requests until `stop`; then finish the open ones."""
        self._server.run(sockets=[self._socket])

    def start(self, name: str) -> None:
        """Answer requests in a thread of its own."""
        self._thread = threading.Thread(target=self.run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ask `run` to end; from any thread or signal handler."""
        self._server.should_exit = True

    def close(self) -> None:
        """Stop, wait for the thread, and let go of the port."""
        self.stop()
        if self._thread is not None:
            self._thread.join()
        self._socket.close()


def open_listening_socket(host: str, port: int, *, setting: str) -> socket.socket:
    """Return a socket that listens; port 0 is any free one.

    Raises:
        ConfigurationError: The address is taken, or none of this machine's; names `setting`.
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
