"""Processes of SDK clients, and the handles of the channels that they have open."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

from support.system_model.model import Channel, tick
from support.system_model.site import Site
from support.system_model.writer_process import receive_message, send_message


class WriterError(Exception):
    """Error that the SDK raised in a writer, with the name of its class in `kind`."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


class Writer:
    """Client of the SDK in a process of its own."""

    def __init__(self, site: Site, number: int, lag_s: float) -> None:
        self.number = number
        self.handles: dict[int, SdkHandle] = {}
        self._site, self._lag_s = site, lag_s
        self._process = self._start()

    def call(self, method: str, **arguments: Any) -> Any:
        """Return the result of a method of the process.

        Raises:
            WriterError: If the method raised an error.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        send_message(self._process.stdin, (method, arguments))
        kind, result = receive_message(self._process.stdout)
        if kind != "ok":
            raise WriterError(kind, result)
        return result

    def kill(self) -> list[SdkHandle]:
        """Kill the process and start another. Return the handles that were open."""
        self.stop()
        lost = list(self.handles.values())
        for handle in lost:
            handle.channel.release()
        self.handles = {}
        self._process = self._start()
        return lost

    def stop(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.communicate()

    def _start(self) -> subprocess.Popen[bytes]:
        module = "support.system_model.writer_process"
        with (self._site.folder / "writers.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", module, self._site.url, str(self._lag_s)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self._site.environment,
            )


class SdkHandle:
    """Channel that is open in a writer. `last_token` is the last token that was sent."""

    def __init__(self, writer: Writer, channel: Channel, on_error: str, *, evolves: bool) -> None:
        self.writer, self.channel = writer, channel
        self.on_error, self.evolves = on_error, evolves
        self.opened_at = tick()
        self.last_token = channel.token or 0
        self.is_closed = False

    def call(self, method: str, **arguments: Any) -> Any:
        """Return the result of a method of the writer for this channel.

        Raises:
            WriterError: If the method raised an error.
        """
        return self.writer.call(method, handle=self.opened_at, **arguments)
