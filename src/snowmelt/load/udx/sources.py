"""User-defined sources.

The SDK for Python has none; the names are those of the SDKs for other languages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from snowmelt.errors import PhaseFailed
from snowmelt.load.phase_protocols import Records
from snowmelt.load.portion import InputFile, Portion
from snowmelt.load.udx.filters import assemble_records, iter_checked_bytes, iter_written
from snowmelt.load.udx.instance import (
    SOURCE_PROCESS_ROLES,
    SOURCE_RECORDS_ROLES,
    UdxHost,
    UdxInstance,
)


class _UdxSourceBase:
    """The objects that a factory prepared, each by what its input is called."""

    def __init__(self, host: UdxHost, prepared: Mapping[str, object]) -> None:
        self._host = host
        self._instances = {
            name: UdxInstance(host, partial(prepared.get, name)) for name in prepared
        }

    def files(self) -> Sequence[InputFile]:
        """List the inputs; `getSize` is an estimate by the SDK's rules, so it says nothing.

        Raises:
            PhaseFailed: There is none.
        """
        if not self._instances:
            raise PhaseFailed(reason="it has no inputs", phase=self._host.name)
        return [InputFile(name) for name in self._instances]

    def cancel(self) -> None:
        """End what runs as cancelled, from any thread; user code is told once."""
        for instance in self._instances.values():
            instance.cancel()

    def _find_instance(self, portion: Portion) -> UdxInstance:
        instance = self._instances.get(portion.file.path)
        if instance is None:
            raise self._host.make_error(f"it has no input {portion.file.path} any more")
        return instance


class UdxSource(_UdxSourceBase):
    """Sources with `setup`, `process` and `destroy`, which write to an output only."""

    def read(self, portion: Portion) -> Iterator[bytes]:
        """Yield the bytes of one input, from the beginning.

        Raises:
            PhaseFailed: User code raised an error, broke a rule, or does not come to an end.
        """
        instance = self._find_instance(portion)
        for data, _ in iter_written(instance, "process", SOURCE_PROCESS_ROLES):
            yield data


class UdxRecordSource(_UdxSourceBase):
    """Sources with `useSideChannel` and `processWithMetadata`: they know where records end."""

    def read_records(self, portion: Portion) -> Iterator[Records]:
        """Yield the records of one input.

        Raises:
            PhaseFailed: As `UdxSource`, or the sum of lengths is not the number of bytes.
        """
        instance = self._find_instance(portion)
        written = iter_written(instance, "processWithMetadata", SOURCE_RECORDS_ROLES)
        return assemble_records(self._host, written)


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
        return iter_checked_bytes(self._host, self._run(), None)


def make_udx_source(
    host: UdxHost, display_name: str, sources: Sequence[Any]
) -> UdxSource | UdxRecordSource:
    """Return the source that a factory's prepared objects are together.

    Raises:
        PhaseFailed: One is a part of a file: where records begin in it only a parser could say.
    """
    prepared: dict[str, Any] = {}
    records = False
    for number, source in enumerate(sources, start=1):
        offset = getattr(_call_if_defined(source, "getPortion"), "offset", -1)
        if offset >= 0:
            raise host.make_error(
                f"getPortion() returned bytes from {offset:,} on; a source of a part of a file is "
                "not supported. Return None or a Portion of -1, and let each source be a whole file"
            )
        uri = str(_call_if_defined(source, "getUri") or "")
        prepared[uri if uri and uri not in prepared else f"{uri or display_name}#{number}"] = source
        records = records or bool(_call_if_defined(source, "useSideChannel"))
    return UdxRecordSource(host, prepared) if records else UdxSource(host, prepared)


def _call_if_defined(source: object, method_name: str) -> object:
    method = getattr(source, method_name, None)
    return method() if callable(method) else None
