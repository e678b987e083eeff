"""TCP relay with a fixed address, for services that stop and restart."""

from __future__ import annotations

import asyncio
import ssl
import threading
from typing import Any

from support.ports import free_port

LOOPBACK = "127.0.0.1"


class Relay:
    """Relay from one address to another. A change of the target closes all connections.

    With a context, the relay terminates TLS. Without a target, it refuses connections.
    """

    def __init__(
        self,
        target: int | tuple[str, int] | None,
        tls: ssl.SSLContext | None = None,
        *,
        host: str = LOOPBACK,
        port: int | None = None,
    ) -> None:
        self.port = free_port() if port is None else port
        self._target = _to_address(target)
        self._loop = asyncio.new_event_loop()
        self._open: set[Any] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        serving = asyncio.start_server(self._relay, host, self.port, ssl=tls)
        self._server = asyncio.run_coroutine_threadsafe(serving, self._loop).result(60)

    def turn_to(self, target: int | tuple[str, int] | None) -> None:
        def turn() -> None:
            self._target = _to_address(target)
            for each in self._open:
                each.close()

        self._loop.call_soon_threadsafe(turn)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = self._target
        try:
            if target is None:
                raise ConnectionRefusedError
            far_reader, far_writer = await asyncio.open_connection(*target)
        except OSError:
            writer.close()
            return
        if target != self._target:
            # The target has changed during the connection attempt.
            writer.close()
            far_writer.close()
            return
        self._open |= {writer, far_writer}

        async def carry(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            try:
                while data := await source.read(65536):
                    self.on_data(target, data, is_response=source is far_reader)
                    sink.write(data)
                    await sink.drain()
            except OSError:
                pass
            finally:
                sink.close()

        await asyncio.gather(carry(reader, far_writer), carry(far_reader, writer))
        self._open -= {writer, far_writer}

    def on_data(self, target: tuple[str, int], data: bytes, *, is_response: bool) -> None:
        """Handle relayed data. Subclasses override this method."""

    def close(self) -> None:
        async def end() -> None:
            self._server.close()
            for each in self._open:
                each.close()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(60)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()


def _to_address(target: int | tuple[str, int] | None) -> tuple[str, int] | None:
    return (LOOPBACK, target) if isinstance(target, int) else target
