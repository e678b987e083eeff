"""Filter that pipes the bytes of a stream through a shell command."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING, cast

from snowmelt.errors import LoadRefused, PhaseFailed
from snowmelt.load.phase_definition import PhaseDefinition, PhaseParameter

if TYPE_CHECKING:
    from snowmelt.load.phase_protocols import ByteReader

# Default pipe capacity on Linux.
_PIPE_BYTES = 64 * 1024
_MAX_ERROR_OUTPUT_BYTES = 4 * 1024


class ExternalCommand:
    """A filter that pipes its input through `cmd`, run by `/bin/sh`.

    The environment variable CURRENT_NODE_NAME has the value of `node`. The load fails if the command
    exits with a nonzero status or writes to standard error. The command may exit before it has read
    its whole input. Leaving the iteration early kills the command and its children.
    """

    def __init__(self, cmd: str, node: str = "") -> None:
        if not cmd.strip():
            raise LoadRefused(what="ExternalCommand", reason="cmd is empty")
        self._command = ["/usr/bin/env", f"CURRENT_NODE_NAME={node}", "/bin/sh", "-c", cmd]
        self._display_command = cmd
        self._process_group: int | None = None
        self._cancelled = False

    def cancel(self) -> None:
        """Kill the command and its children, even if it starts later. Thread-safe."""
        self._cancelled = True
        self._kill_process_group()

    def _kill_process_group(self) -> None:
        group = self._process_group
        if group is not None:
            # Kill the process group too: children may outlive the command.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)

    def run(self, reader: ByteReader) -> Iterator[bytes]:
        """Yield the output of the command."""
        with self._running_process() as process:
            error_output = bytearray()
            yield from _exchange_data(process, reader, error_output)
            status = process.wait()
        text = error_output.decode(errors="replace").strip()
        if status or text:
            how = (
                f"was killed by signal {-status}" if status < 0 else f"exited with status {status}"
            )
            reason = f"the command {how}" + (f" and wrote: {text}" if text else "")
            raise PhaseFailed(reason=f"{reason} ({self._display_command})", offset=reader.offset)

    @contextlib.contextmanager
    def _running_process(self) -> Iterator[subprocess.Popen[bytes]]:
        pipe = subprocess.PIPE
        process = subprocess.Popen(  # noqa: S603 - the purpose of the filter
            self._command, stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, start_new_session=True
        )
        self._process_group = process.pid
        try:
            if self._cancelled:
                self._kill_process_group()
            yield process
        finally:
            self._kill_process_group()
            self._process_group = None
            for end in (process.stdin, process.stdout, process.stderr):
                with contextlib.suppress(OSError):
                    _require_pipe(end).close()
            process.wait()


def _exchange_data(
    process: subprocess.Popen[bytes], reader: ByteReader, error_output: bytearray
) -> Iterator[bytes]:
    """Write input and yield output whenever a pipe is ready, until the command closes its outputs."""
    stdin, stdout, stderr = map(_require_pipe, (process.stdin, process.stdout, process.stderr))
    os.set_blocking(stdin.fileno(), False)
    waiting, outputs = memoryview(b""), {stdout, stderr}
    with selectors.DefaultSelector() as selector:
        selector.register(stdin, selectors.EVENT_WRITE)
        for output in outputs:
            selector.register(output, selectors.EVENT_READ)
        while outputs:
            for key, _ in selector.select():
                end = cast("IO[bytes]", key.fileobj)
                if end is stdin:
                    waiting = waiting or memoryview(reader.read())
                    written = _write_available(stdin, waiting)
                    waiting = waiting[written:]
                    if written is None:
                        selector.unregister(stdin)
                        stdin.close()
                elif data := os.read(end.fileno(), _PIPE_BYTES):
                    if end is stdout:
                        yield data
                    else:
                        error_output += data[: _MAX_ERROR_OUTPUT_BYTES - len(error_output)]
                else:
                    selector.unregister(end)
                    outputs.discard(end)


def _write_available(stdin: IO[bytes], data: memoryview) -> int | None:
    """Write as much as the pipe accepts. Return None if `data` is empty or the pipe is closed."""
    try:
        return os.write(stdin.fileno(), data[:_PIPE_BYTES]) if data else None
    except BlockingIOError:
        return 0
    except BrokenPipeError:
        return None


def _require_pipe(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise ValueError("the command has no pipes")
    return pipe


EXTERNAL_COMMAND = PhaseDefinition(
    "ExternalCommand",
    ExternalCommand,
    (PhaseParameter("cmd", str, required=True), PhaseParameter("node", str)),
)
