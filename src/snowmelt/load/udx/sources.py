"""Sources of user code, which the SDK for Python does not have; the names are those of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from snowmelt.errors import PhaseFailed
from snowmelt.load.portion import InputFile
from snowmelt.load.udx.filters import checked_pieces, joined_records
from snowmelt.load.udx.instance import DESTROY, SOURCE_PROCESS, SOURCE_RECORDS, Flow, Guest
from snowmelt.load.udx.vertica_sdk.buffers import LengthBuffer, OutputBuffer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from snowmelt.load.phases import Records
    from snowmelt.load.portion import Portion
    from snowmelt.load.udx.instance import Host


class _Inputs:
    """The objects that a factory prepared, each by what its input is called."""

    def __init__(self, host: Host, display: str, prepare: Callable[[], Sequence[Any]]) -> None:
        self.host = host
        self._display = display
        self._prepare = prepare
        self._prepared: dict[str, Any] | None = None
        self._guests: dict[str, Guest] = {}
        self._cancelled = False

    def all(self) -> dict[str, Any]:
        """Return the objects by name."""
        if self._prepared is None:
            prepared: dict[str, Any] = {}
            for number, each in enumerate(self._prepare(), start=1):
                self._check_whole(each)
                ask = getattr(each, "getUri", None)
                uri = str(ask() or "") if callable(ask) else ""
                name = uri if uri and uri not in prepared else f"{uri or self._display}#{number}"
                prepared[name] = each
            self._prepared = prepared
        return self._prepared

    def _check_whole(self, source: Any) -> None:
        """Refuse a source of a part of a file: where records begin in it only a parser could say.

        Raises:
            PhaseFailed: If `getPortion` returns one that is valid.
        """
        ask = getattr(source, "getPortion", None)
        portion = ask() if callable(ask) else None
        offset = getattr(portion, "offset", -1)
        if portion is None or offset < 0:
            return
        raise self.host.failed(
            f"getPortion() returned bytes from {offset:,} on; a source of a part of a file is not "
            "supported. Return None or a Portion of -1, and let each source be a whole file"
        )

    def files(self) -> Sequence[InputFile]:
        """Return the inputs; `getSize` is an estimate by the SDK's rules, so it says nothing."""
        found = [InputFile(name) for name in self.all()]
        if not found:
            raise PhaseFailed(reason="it has no inputs", phase=self.host.name)
        return found

    def guest(self, portion: Portion) -> Guest:
        """Return the object of a portion's input."""
        made = self.all().get(portion.file.path)
        if made is None:
            raise self.host.failed(f"it has no input {portion.file.path} any more")
        guest = self._guests.setdefault(portion.file.path, Guest(self.host, lambda: made))
        if self._cancelled:
            guest.cancel()
        return guest

    def cancel(self) -> None:
        """Cancel all."""
        self._cancelled = True
        for guest in list(self._guests.values()):
            guest.cancel()


class HostedSource:
    """Sources with `setup`, `process` and `destroy`, which write to an output only."""

    def __init__(self, inputs: _Inputs) -> None:
        self._inputs = inputs

    def files(self) -> Sequence[InputFile]:
        """List the inputs that were prepared.

        Raises:
            PhaseFailed: There is none, or user code raised an error.
        """
        return self._inputs.files()

    def read(self, portion: Portion) -> Iterator[bytes]:
        """Yield the bytes of one input, from the beginning.

        Raises:
            PhaseFailed: User code raised an error, broke a rule, or does not come to an end.
        """
        guest = self._inputs.guest(portion)
        for data, _ in _read(guest, SOURCE_PROCESS, "process"):
            if data:
                yield data

    def cancel(self) -> None:
        """End what runs as cancelled, from any thread; user code is told once."""
        self._inputs.cancel()


class HostedRecordSource:
    """Sources with `useSideChannel` and `processWithMetadata`: they know where records end."""

    def __init__(self, inputs: _Inputs) -> None:
        self._inputs = inputs

    def files(self) -> Sequence[InputFile]:
        """List the inputs that were prepared.

        Raises:
            PhaseFailed: There is none, or user code raised an error.
        """
        return self._inputs.files()

    def read_records(self, portion: Portion) -> Iterator[Records]:
        """Yield the records of one input.

        Raises:
            PhaseFailed: As HostedSource, or the sum of lengths is not the number of bytes.
        """
        guest = self._inputs.guest(portion)
        return joined_records(guest.host, _read(guest, SOURCE_RECORDS, "processWithMetadata"))

    def cancel(self) -> None:
        """End what runs as cancelled, from any thread; user code is told once."""
        self._inputs.cancel()


class OwnSource:
    """A source that is one generator of bytes."""

    def __init__(self, host: Host, display: str, run: Callable[[], Iterator[bytes]]) -> None:
        self._host = host
        self._display = display
        self._run = run

    def files(self) -> Sequence[InputFile]:
        """Name the one input."""
        return (InputFile(self._display),)

    def read(self, portion: Portion) -> Iterator[bytes]:  # noqa: ARG002 - there is one input
        """Yield what user code yields.

        Raises:
            PhaseFailed: It raised an error, or yielded something else than bytes.
        """
        return checked_pieces(self._host, self._run(), lambda: None)


def hosted_source(
    host: Host, display: str, prepare: Callable[[], Sequence[Any]]
) -> HostedSource | HostedRecordSource:
    """Return the source that a factory's prepared objects are together."""
    inputs = _Inputs(host, display, prepare)
    uses = [getattr(each, "useSideChannel", None) for each in inputs.all().values()]
    records = any(callable(each) and each() for each in uses)
    return HostedRecordSource(inputs) if records else HostedSource(inputs)


def _read(
    guest: Guest, roles: Sequence[str], name: str
) -> Iterator[tuple[bytes, NDArray[np.uint32]]]:
    host = guest.host
    with guest.stream(DESTROY):
        output, lengths = OutputBuffer(host.limits.window_bytes), LengthBuffer()
        process = guest.function(name, roles)
        arguments = (host.server, output, lengths)[: len(roles)]
        flow = Flow(guest, None, output)
        done = False
        while not done:
            written = output.written
            answer = process(*arguments)
            wrote = output.written > written or lengths.offset > 0
            if wrote:
                yield output.take(), lengths.take()
            done = flow.after(answer.code, read=False, wrote=wrote)
        output.close()
