"""Service on a port that sends exactly the bytes that a test specifies."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import threading
from typing import Any, Self

from snowmelt.functions.errors import BatchInvalid, BatchTooLarge
from snowmelt.functions.proxy import http1


def reply(status: int = 200, body: Any = b"", **headers: Any) -> Any:
    """Return the bytes of a response. Header names have underscores in place of hyphens."""
    lines = [f"HTTP/1.1 {status} Said", f"content-length: {len(body)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class RawService:
    """Server that responds to requests with `answers` in order, and repeats the last one.

    An answer is bytes, None for no response, or a coroutine function with the connection's writer
    as argument. `CLOSE` closes the connection, alone or in a tuple after bytes. `asked` and `ended`
    are semaphores that are released for each request and for each closed connection.
    """

    CLOSE = object()

    def __init__(self, *answers: Any, tls: ssl.SSLContext | None = None) -> None:
        self.answers = list(answers)
        self.requests: list[Any] = []
        self.connections = 0
        self.asked = threading.Semaphore(0)
        self.ended = threading.Semaphore(0)
        self._tls = tls
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        opening = asyncio.start_server(self._connected, "127.0.0.1", 0, ssl=self._tls)
        self._server = asyncio.run_coroutine_threadsafe(opening, self._loop).result()
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _end(self) -> None:
        self._server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            await self.converse(reader, writer)
        except (OSError, asyncio.IncompleteReadError, BatchInvalid, BatchTooLarge):
            pass
        except asyncio.CancelledError:
            pass  # Cancelled at the end of the test.
        finally:
            writer.close()
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await writer.wait_closed()
            self.ended.release()

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Respond to the requests of one connection."""
        async for request in http1.read_messages(reader, writer):
            self.requests.append(request)
            self.asked.release()
            answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
            if await self._say(answer, writer):
                break

    async def _say(self, answer: Any, writer: asyncio.StreamWriter) -> bool:
        parts = answer if isinstance(answer, tuple) else (answer,)
        for part in parts:
            if part is self.CLOSE:
                return True
            if callable(part):
                await part(writer)
            elif part is not None:
                writer.write(part)
                await writer.drain()
        return False
