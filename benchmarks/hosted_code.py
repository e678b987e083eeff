"""User-defined filters and a parser, for benchmarks of loads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.load.library import load_library
from snowmelt.load.phase_protocols import ByteReader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from snowmelt.load.phase_protocols import Parser

_CODE = b"""
import vertica_sdk
from vertica_sdk import InputState, StreamState


class Pass(vertica_sdk.UDFilter):
    def process(self, srvInterface, inputbuffer, inputstate, outputbuffer):
        outputbuffer.write(inputbuffer.read())
        last = inputstate == InputState.END_OF_FILE
        return StreamState.DONE if last else StreamState.INPUT_NEEDED


class PassFactory(vertica_sdk.FilterFactory):
    def prepare(self, srvInterface, planContext):
        return Pass()


class Lines(vertica_sdk.UDParser):
    def process(self, srvInterface, inputbuffer, inputstate, streamwriter):
        inputbuffer.setEncoding("utf-8")
        end = inputbuffer.peek().rfind("\\n") + 1
        for line in inputbuffer.read(end).splitlines():
            a, b, c, d, e, f, g, h = line.split(",")
            streamwriter.setInt(0, int(a))
            streamwriter.setInt(1, int(b))
            streamwriter.setFloat(2, float(c))
            streamwriter.setString(3, d)
            streamwriter.setString(4, e)
            streamwriter.setInt(5, int(f))
            streamwriter.setFloat(6, float(g))
            streamwriter.setString(7, h)
            streamwriter.next()
        last = inputstate == InputState.END_OF_FILE
        return StreamState.DONE if last else StreamState.INPUT_NEEDED


class LinesFactory(vertica_sdk.ParserFactory):
    def prepare(self, srvInterface, perColumnParamReader, planContext, returnType):
        return Lines()
"""


def pass_through_pair(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Yield slices through two user-defined filters that copy their input."""
    library = load_library("pass", {"code.py": _CODE})
    first, second = (library.filter("PassFactory").build_phase({}) for _ in range(2))
    return second.run(ByteReader(first.run(ByteReader(pieces))))  # type: ignore[union-attr]


def row_parser() -> Parser:
    """Return a user-defined parser of lines: int, int, float, str, str, int, float, str."""
    return load_library("rows", {"code.py": _CODE}).parser("LinesFactory").build_phase({})  # type: ignore[return-value]


def bare_rows(pieces: Iterable[bytes]) -> list[list[object]]:
    """Parse the same lines without a UDx host. Return their columns."""
    columns: list[list[object]] = [[] for _ in range(8)]
    rest = ""
    for piece in pieces:
        text = rest + piece.decode()
        end = text.rfind("\n") + 1
        rest = text[end:]
        for line in text[:end].splitlines():
            a, b, c, d, e, f, g, h = line.split(",")
            row = (int(a), int(b), float(c), d, e, int(f), float(g), h)
            for column, value in zip(columns, row, strict=True):
                column.append(value)
    return columns
