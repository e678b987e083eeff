"""A file that is loaded, and the part of it that one task loads."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InputFile:
    """One input: its address, bytes (None where that is not known before), and its change mark."""

    path: str
    size: int | None = None
    tag: str | None = None


@dataclass(frozen=True, slots=True)
class Portion:
    """Bytes of one file from `offset` on; picklable.

    `size` is None for "to the end". A record belongs to the portion in which the byte before it
    lies, the first record of a file to the first portion: whoever starts at an offset above zero
    drops everything up to and including the first end of a record, and whoever ends before the
    end of the file reads on through the first end of a record behind its own bytes.
    """

    file: InputFile
    offset: int = 0
    size: int | None = None

    @property
    def is_first(self) -> bool:
        """Whether the file begins here."""
        return self.offset == 0

    @property
    def is_whole(self) -> bool:
        """Whether it is the whole file."""
        return self.offset == 0 and self.size is None
