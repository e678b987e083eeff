"""TCP relay with a fixed address, for services that stop and restart."""

from __future__ import annotations

import asyncio
import ssl
import threading
from typing import Any

from support.ports import free_port


class Relay:
    """Relay from one address to a port. A change of the port closes all connections.

    With a context, the relay terminates TLS.
    """

    def __init__(self, target: int, tls: ssl.SSLContext | None = None) -> None:
        self.port, self.target = free_port(), target
        self._loop = asyncio.new_event_loop()
        self._open: set[Any] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        serving = asyncio.start_server(self._relay, "127.0.0.1", self.port, ssl=tls)
        self._server = asyncio.run_coroutine_threadsafe(serving, self._loop).result(60)

    def turn_to(self, target: int) -> None:
        self.target = target
        self._loop.call_soon_threadsafe(lambda: [each.close() for each in self._open])

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.close()
            return
        self._open |= {writer, far_writer}

        async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            try:
                while data := await source.read(65536):
                    sink.write(data)
                    await sink.drain()
            except OSError:
                pass
            finally:
                sink.close()

        await asyncio.gather(carry(reader, far_writer), carry(far_reader, writer))
        self._open -= {writer, far_writer}

    def close(self) -> None:
        async def end() -> None:
            self._server.close()
            for each in self._open:
                each.close()
            await asyncio.sleep(0)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()
