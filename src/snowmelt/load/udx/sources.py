"""User-defined sources.

Vertica's SDK for Python has no sources. The names here are those of its SDKs for other languages.
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
    call_optional,
)


class _UdxSourceBase:
    """Objects that a factory prepared, by the name of their input."""

    def __init__(self, host: UdxHost, prepared: Mapping[str, object]) -> None:
        self._host = host
        self._instances = {
            name: UdxInstance(host, partial(prepared.get, name)) for name in prepared
        }

    def files(self) -> Sequence[InputFile]:
        """List the inputs. Omits sizes, because the SDK defines `getSize` as an estimate."""
        if not self._instances:
            raise PhaseFailed(reason="it has no inputs", phase=self._host.name)
        return [InputFile(name) for name in self._instances]

    def cancel(self) -> None:
        """Cancel the running streams and call the user's `cancel` once. Thread-safe."""
        for instance in self._instances.values():
            instance.cancel()

    def _find_instance(self, portion: Portion) -> UdxInstance:
        instance = self._instances.get(portion.file.path)
        if instance is None:
            raise self._host.make_error(f"input {portion.file.path} no longer exists")
        return instance


class UdxSource(_UdxSourceBase):
    """Sources with `setup`, `process` and `destroy`."""

    def read(self, portion: Portion) -> Iterator[bytes]:
        """Yield the bytes of one input."""
        instance = self._find_instance(portion)
        for data, _ in iter_written(instance, "process", SOURCE_PROCESS_ROLES):
            yield data


class UdxRecordSource(_UdxSourceBase):
    """Sources with `useSideChannel` and `processWithMetadata`, which write record boundaries."""

    def read_records(self, portion: Portion) -> Iterator[Records]:
        """Yield the records of one input."""
        instance = self._find_instance(portion)
        written = iter_written(instance, "processWithMetadata", SOURCE_RECORDS_ROLES)
        return assemble_records(self._host, written)


class GeneratorSource:
    """A source with a single input: a generator of bytes."""

    def __init__(
        self, host: UdxHost, display_name: str, run: Callable[[], Iterator[bytes]]
    ) -> None:
        self._host = host
        self._display_name = display_name
        self._run = run

    def files(self) -> Sequence[InputFile]:
        """Return the one input."""
        return (InputFile(self._display_name),)

    def read(self, portion: Portion) -> Iterator[bytes]:  # noqa: ARG002 - there is one input
        """Yield the bytes of user code."""
        return iter_checked_bytes(self._host, self._run(), None)


def make_udx_source(
    host: UdxHost, display_name: str, sources: Sequence[Any]
) -> UdxSource | UdxRecordSource:
    """Return one source for all objects that a factory prepared.

    Raises:
        PhaseFailed: If an object reads only a part of a file.
    """
    prepared: dict[str, Any] = {}
    records = False
    for number, source in enumerate(sources, start=1):
        offset = getattr(call_optional(source, "getPortion"), "offset", -1)
        if offset >= 0:
            raise host.make_error(
                f"getPortion() returned offset {offset:,}, but parts of files are not supported. "
                "Return None or a Portion of -1, and read a whole file with each source"
            )
        uri = str(call_optional(source, "getUri") or "")
        name = uri or f"{display_name}#{number}"
        while name in prepared:
            name += f"#{number}"
        prepared[name] = source
        records = records or bool(call_optional(source, "useSideChannel"))
    return UdxRecordSource(host, prepared) if records else UdxSource(host, prepared)
