"""The phases of a load as this project writes them: source, filter and parser.

Classes written for other hosts are turned into these by `snowmelt.load.hosting`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from snowmelt.load.parsed import Parsed, Target
    from snowmelt.load.portion import InputFile, Portion
    from snowmelt.load.reader import Reader
    from snowmelt.load.records import Records


class Source(Protocol):
    """Where bytes come from; made by name with parameters, on the driver and in each task."""

    def files(self) -> Sequence[InputFile]:
        """List the inputs, on the driver.

        Raises:
            PhaseFailed: There is none, or they cannot be listed.
        """

    def read(self, portion: Portion) -> Iterator[bytes]:
        """Yield the bytes of a portion and, as long as it is asked, those that follow them.

        Raises:
            PhaseFailed: The file cannot be read, or has changed since it was listed.
        """


@runtime_checkable
class RecordSource(Protocol):
    """A source that knows where its records end: what begins the side channel."""

    def files(self) -> Sequence[InputFile]:
        """List the inputs, on the driver.

        Raises:
            PhaseFailed: There is none, or they cannot be listed.
        """

    def read_records(self, portion: Portion) -> Iterator[Records]:
        """Yield the records of a portion.

        Raises:
            PhaseFailed: They cannot be read.
        """


@runtime_checkable
class Filter(Protocol):
    """Bytes in, bytes out. One object may run many times, one after the other."""

    def run(self, reader: Reader) -> Iterator[bytes]:
        """Yield the filtered bytes of one stream. Leaving early ends the stream.

        Raises:
            PhaseFailed: The input cannot be filtered; it fails as a whole.
        """


@runtime_checkable
class RecordFilter(Protocol):
    """Records in, records or bytes out: what works with the side channel.

    A filter that yields bytes ends the side channel: it is a `Filter` for what comes after it.
    """

    ends_records: bool

    def run_records(self, records: Iterator[Records]) -> Iterator[Records] | Iterator[bytes]:
        """Yield filtered records, or bytes if `ends_records`."""


@runtime_checkable
class Parser(Protocol):
    """Bytes in, rows out."""

    splittable: bool
    """Whether it can begin in the middle of a file, by `Portion`'s rule."""

    def parse(self, reader: Reader, target: Target, portion: Portion) -> Iterator[Parsed]:
        """Yield what the bytes of one portion hold, in blocks of bounded size.

        `reader` goes on behind the portion's end; the parser stops by `Portion`'s rule. A portion
        of a filtered file is whole.

        Raises:
            PhaseFailed: The bytes are not of this format at all, from some place on.
        """


@runtime_checkable
class RecordParser(Protocol):
    """Records in, rows out, each record accepted or rejected by itself."""

    def parse_records(self, records: Iterator[Records], target: Target) -> Iterator[Parsed]:
        """Yield what the records hold; a rejected record is one of these."""
