"""User-defined sources.

The SDK for Python has none; the names are those of the SDKs for other languages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from snowmelt.errors import PhaseFailed
from snowmelt.load.portion import InputFile
from snowmelt.load.udx.filters import assemble_records, iter_checked_bytes
from snowmelt.load.udx.instance import (
    DESTROY_ROLES,
    SOURCE_PROCESS_ROLES,
    SOURCE_RECORDS_ROLES,
    CallLoop,
    UdxInstance,
)
from snowmelt.load.udx.vertica_sdk.buffers import LengthBuffer, OutputBuffer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from snowmelt.load.phase_protocols import Records
    from snowmelt.load.portion import Portion
    from snowmelt.load.udx.instance import UdxHost


class _PreparedInputs:
    """The objects that a factory prepared, each by what its input is called."""

    def __init__(
        self, host: UdxHost, display_name: str, prepare: Callable[[], Sequence[Any]]
    ) -> None:
        self.host = host
        self._display_name = display_name
        self._prepare = prepare
        self._prepared: dict[str, Any] | None = None
        self._instances: dict[str, UdxInstance] = {}
        self._cancelled = False

    def prepare_by_name(self) -> dict[str, Any]:
        """Return the objects by name."""
        if self._prepared is None:
            prepared: dict[str, Any] = {}
            for number, each in enumerate(self._prepare(), start=1):
                self._check_whole_file(each)
                ask = getattr(each, "getUri", None)
                uri = str(ask() or "") if callable(ask) else ""
                name = (
                    uri if uri and uri not in prepared else f"{uri or self._display_name}#{number}"
                )
                prepared[name] = each
            self._prepared = prepared
        return self._prepared

    def _check_whole_file(self, source: Any) -> None:
        """Refuse a source of a part of a file: where records begin in it only a parser could say.

        Raises:
            PhaseFailed: If `getPortion` returns one that is valid.
        """
        ask = getattr(source, "getPortion", None)
        portion = ask() if callable(ask) else None
        offset = getattr(portion, "offset", -1)
        if portion is None or offset < 0:
            return
        raise self.host.make_error(
            f"getPortion() returned bytes from {offset:,} on; a source of a part of a file is not "
            "supported. Return None or a Portion of -1, and let each source be a whole file"
        )

    def list_files(self) -> Sequence[InputFile]:
        """Return the inputs; `getSize` is an estimate by the SDK's rules, so it says nothing."""
        found = [InputFile(name) for name in self.prepare_by_name()]
        if not found:
            raise PhaseFailed(reason="it has no inputs", phase=self.host.name)
        return found

    def find_instance(self, portion: Portion) -> UdxInstance:
        """Return the object of a portion's input."""
        made = self.prepare_by_name().get(portion.file.path)
        if made is None:
            raise self.host.make_error(f"it has no input {portion.file.path} any more")
        guest = self._instances.setdefault(portion.file.path, UdxInstance(self.host, lambda: made))
        if self._cancelled:
            guest.cancel()
        return guest

    def cancel(self) -> None:
        """Cancel all."""
        self._cancelled = True
        for guest in list(self._instances.values()):
            guest.cancel()


class UdxSource:
    """Sources with `setup`, `process` and `destroy`, which write to an output only."""

    def __init__(self, inputs: _PreparedInputs) -> None:
        self._inputs = inputs

    def files(self) -> Sequence[InputFile]:
        """List the inputs that were prepared.

        Raises:
            PhaseFailed: There is none, or user code raised an error.
        """
        return self._inputs.list_files()

    def read(self, portion: Portion) -> Iterator[bytes]:
        """Yield the bytes of one input, from the beginning.

        Raises:
            PhaseFailed: User code raised an error, broke a rule, or does not come to an end.
        """
        guest = self._inputs.find_instance(portion)
        for data, _ in _run_stream(guest, SOURCE_PROCESS_ROLES, "process"):
            if data:
                yield data

    def cancel(self) -> None:
        """End what runs as cancelled, from any thread; user code is told once."""
        self._inputs.cancel()


class UdxRecordSource:
    """Sources with `useSideChannel` and `processWithMetadata`: they know where records end."""

    def __init__(self, inputs: _PreparedInputs) -> None:
        self._inputs = inputs

    def files(self) -> Sequence[InputFile]:
        """List the inputs that were prepared.

        Raises:
            PhaseFailed: There is none, or user code raised an error.
        """
        return self._inputs.list_files()

    def read_records(self, portion: Portion) -> Iterator[Records]:
        """Yield the records of one input.

        Raises:
            PhaseFailed: As HostedSource, or the sum of lengths is not the number of bytes.
        """
        guest = self._inputs.find_instance(portion)
        return assemble_records(
            guest.host, _run_stream(guest, SOURCE_RECORDS_ROLES, "processWithMetadata")
        )

    def cancel(self) -> None:
        """End what runs as cancelled, from any thread; user code is told once."""
        self._inputs.cancel()


class GeneratorSource:
    """A source that is one generator of bytes."""

    def __init__(
        self, host: UdxHost, display_name: str, run: Callable[[], Iterator[bytes]]
    ) -> None:
        self._host = host
        self._display_name = display_name
        self._run = run

    def files(self) -> Sequence[InputFile]:
        """Name the one input."""
        return (InputFile(self._display_name),)

    def read(self, portion: Portion) -> Iterator[bytes]:  # noqa: ARG002 - there is one input
        """Yield what user code yields.

        Raises:
            PhaseFailed: It raised an error, or yielded something else than bytes.
        """
        return iter_checked_bytes(self._host, self._run(), lambda: None)


def make_udx_source(
    host: UdxHost, display_name: str, prepare: Callable[[], Sequence[Any]]
) -> UdxSource | UdxRecordSource:
    """Return the source that a factory's prepared objects are together."""
    inputs = _PreparedInputs(host, display_name, prepare)
    uses = [getattr(each, "useSideChannel", None) for each in inputs.prepare_by_name().values()]
    records = any(callable(each) and each() for each in uses)
    return UdxRecordSource(inputs) if records else UdxSource(inputs)


def _run_stream(
    instance: UdxInstance, roles: Sequence[str], method_name: str
) -> Iterator[tuple[bytes, NDArray[np.uint32]]]:
    host = instance.host
    with instance.running_stream(DESTROY_ROLES):
        output, lengths = OutputBuffer(host.limits.window_bytes), LengthBuffer()
        process = instance.bind_state_method(method_name, roles)
        arguments = (host.server, output, lengths)[: len(roles)]
        flow = CallLoop(instance, None, output)
        done = False
        while not done:
            written = output.written
            answer = process(*arguments)
            wrote = output.written > written or lengths.offset > 0
            if wrote:
                yield output.pop_written(), lengths.pop_written()
            done = flow.handle_state(answer.code, has_read=False, has_written=wrote)
        output.close()
