"""Parsers of users: rows are checked as all rows are, rejects are placed, portions are told."""

from __future__ import annotations

import itertools
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.errors import LoadRefused, PhaseFailed
from snowmelt.load.phase_protocols import ByteReader, ColumnOptions, Parser
from snowmelt.load.portion import InputFile, Portion
from snowmelt.schema.iceberg_table_form import native_schema
from snowmelt.schema.types import Column, LogicalType
from support.phases import built
from support.user_code import NUMBER, TEXT, library, parsed, target

# Lines of a number and a text; a line of another form is rejected when all before it are read.
LINES = """
class Lines(vertica_sdk.UDParser):
    def setup(self, srvInterface, returnType):
        self.skip = False
        self.last = False
    def process(self, srvInterface, inputbuffer, inputstate, streamwriter):
        if inputstate == InputState.START_OF_PORTION and not self.skip:
            self.skip = True
        while True:
            window = inputbuffer.peek()
            end = window.find(b"\\n") + 1
            if self.skip:
                inputbuffer.advance(end or len(window))
                if not end and inputstate in (InputState.END_OF_FILE, InputState.END_OF_PORTION):
                    return StreamState.DONE
                if not end:
                    return StreamState.INPUT_NEEDED
                self.skip = False
                continue
            if self.last and inputstate == InputState.END_OF_PORTION and not end:
                return StreamState.INPUT_NEEDED
            if not end and inputstate == InputState.END_OF_FILE:
                end = len(window)
            if not end:
                if not window and inputstate == InputState.END_OF_FILE:
                    return StreamState.DONE
                if inputstate == InputState.END_OF_PORTION:
                    self.last = True
                return StreamState.DONE if inputstate == InputState.END_OF_FILE else (
                    StreamState.INPUT_NEEDED)
            line = window[:end]
            left, comma, right = line.rstrip(b"\\n").partition(b",")
            if not comma:
                inputbuffer.advance(end)
                return StreamState.REJECT(vertica_sdk.RejectedRecord("no comma", line[:-1]))
            streamwriter.setInt(0, left.decode())
            streamwriter.setString(1, right.decode() or None)
            streamwriter.next()
            inputbuffer.advance(end)
            if self.last:
                return StreamState.DONE

class Apportioned(vertica_sdk.ParserFactory):
    def prepare(self, srvInterface, perColumnParamReader, planContext, returnType):
        return Lines()
    def canApportionParser(cls):
        return True
"""


def lines() -> Any:
    return built(library(LINES).parser("Apportioned"), {})


def test_rows_and_rejects_come_in_order_with_their_places() -> None:
    rows, rejects = parsed(lines(), [b"1,a\nbad\n2,\n", b"wor", b"se\nx,y\n3,abcdefg"])
    assert rows == [
        {"A": Decimal(1), "B": "a"}, {"A": Decimal(2), "B": None}, {"A": Decimal(3), "B": "abcde"},
    ]  # fmt: skip
    assert [(each.record, each.offset, each.data) for each in rejects] == [
        (2, 4, b"bad"),
        (4, 11, b"worse"),
        (5, 17, b"x|y"),
    ]
    assert rejects[2].column == "A"
    assert "rowIndex" not in rejects[2].reason


def test_a_text_that_is_too_long_is_rejected_where_the_load_says_so() -> None:
    for into in (
        target(enforce_length=True),
        target(options={"B": ColumnOptions(enforce_length=True)}),
    ):
        rows, rejects = parsed(lines(), [b"1,abcdef\n2,ok\n"], into)
        assert [row["A"] for row in rows] == [2]
        assert (rejects[0].record, rejects[0].column) == (1, "B")


def test_a_null_where_none_may_be_is_a_reject() -> None:
    required = Column("B", LogicalType.TEXT, 2, nullable=False, length=5, byte_length=20)
    rows, rejects = parsed(lines(), [b"1,\n2,b\n"], target(NUMBER, required))
    assert [row["A"] for row in rows] == [2]
    assert "B" in rejects[0].reason


def test_rows_are_in_native_form_with_companions_and_quoted_names() -> None:
    code = """
    import datetime
    class P:
        def process(self, srv, inp, state, writer):
            inp.read()
            writer.setTimestamp(0, datetime.datetime(2024, 1, 1, 12, tzinfo=datetime.timezone.utc))
            writer.setString(1, "{}")
            writer.next()
            return StreamState.DONE
    """
    stamp = Column("when", LogicalType.TIMESTAMP_TZ, 1, scale=9)
    into = target(stamp, Column("V", LogicalType.VARIANT, 2))
    (block,) = built(library(code).parser("P"), {}).parse(
        ByteReader([b"x"]), into, Portion(InputFile("f"))
    )  # fmt: skip
    assert block.rows.schema == native_schema(into.schema)
    assert block.rows.column_names == ["when", "when$ns", "when$tz", "V"]


@pytest.mark.slow
@given(
    lengths=st.lists(st.integers(0, 6), max_size=30),
    cuts=st.lists(st.integers(1, 200), max_size=4),
    size=st.integers(1, 40),
)
def test_portions_cut_anywhere_give_every_row_once(
    lengths: list[Any], cuts: list[Any], size: int
) -> None:
    data = b"".join(b"%d,%s\n" % (n, b"x" * min(k, 5)) for n, k in enumerate(lengths))
    edges = sorted({0, *(cut for cut in cuts if cut < len(data)), len(data)})
    got = []
    parser = lines()
    for start, end in itertools.pairwise(edges):
        last = end == len(data)
        portion = Portion(InputFile("f"), start, None if last else end - start)
        rest = data[start:]
        pieces = [rest[at : at + size] for at in range(0, len(rest), size)]
        rows, rejects = parsed(parser, pieces, portion=portion)
        assert not rejects
        got += [int(row["A"]) for row in rows]
    assert got == list(range(len(lengths)))


@pytest.mark.slow
def test_many_rows_come_in_blocks() -> None:
    code = """
    class P:
        def process(self, srv, inp, state, writer):
            for line in inp.read().split():
                writer.setInt(0, int(line))
                writer.next()
            return StreamState.DONE if state == InputState.END_OF_FILE else StreamState.INPUT_NEEDED
    """
    parser = built(library(code).parser("P"), {})
    pieces = [b"123456789 " * 100_000] * 4
    blocks = list(parser.parse(ByteReader(pieces), target(), Portion(InputFile("f"))))
    assert sum(block.records for block in blocks) == 400_000
    assert len(blocks) == 2


REFUSED = {
    "expected a RejectedRecord": "return StreamState.REJECT(None)",
    "within a row": "writer.setInt(0, 1); return StreamState.DONE",
    "unknown column 2: the row has 2": "writer.setInt(2, 1)",
    "unknown column -1": "writer.setInt(-1, 1)",
    "requested input after the end": "return StreamState.INPUT_NEEDED",
    "returned REJECT again without reading": "return StreamState.REJECT(vertica_sdk.RejectedRecord('no'))",
}


@pytest.mark.parametrize("reason", REFUSED)
def test_a_parser_that_breaks_a_rule_fails_with_the_reason(reason: str) -> None:
    code = f"""
    class P:
        def process(self, srv, inp, state, writer):
            {REFUSED[reason]}
    """
    with pytest.raises(PhaseFailed, match=reason):
        parsed(built(library(code).parser("P"), {}), [b"abc"])


def test_rejected_without_a_record_the_object_is_asked() -> None:
    code = """
    class P(vertica_sdk.UDParser):
        def process(self, srv, inp, state, writer):
            self.record = inp.read()
            if not self.record:
                return StreamState.DONE
            return StreamState.REJECT
        def getRejectedRecord(self):
            return vertica_sdk.RejectedRecord(reason="no", data=self.record, length=2)
    """
    rows, rejects = parsed(built(library(code).parser("P"), {}), [b"abc"])
    assert (rows, rejects[0].data) == ([], b"ab")


def test_each_record_of_the_side_channel_is_a_row_or_a_reject() -> None:
    code = """
    class P(vertica_sdk.UDParser):
        def useSideChannel(self):
            return True
        def processWithMetadata(self, srv, input, input_lengths, input_state, writer):
            for length in input_lengths.read(1):
                record = input.read(length)
                if not record.isdigit():
                    return StreamState.REJECT(vertica_sdk.RejectedRecord("no digits", record))
                writer.setInt(0, int(record))
                writer.next()
                return StreamState.INPUT_NEEDED
            last = input_state == InputState.END_OF_FILE
            return StreamState.DONE if last else StreamState.INPUT_NEEDED
    """
    parser = built(library(code).parser("P"), {})
    assert not isinstance(parser, Parser)
    records = [pa.array([b"1", b"x\n", b""], pa.binary()), pa.array([b"22"], pa.binary())]
    blocks = list(parser.parse_records(iter(records), target()))
    assert [row["A"] for block in blocks for row in block.rows.to_pylist()] == [1, 22]
    rejects = [each for block in blocks for each in block.rejects]
    assert [(each.record, each.offset, each.data) for each in rejects] == [
        (2, 1, b"x\n"),
        (3, 3, b""),
    ]


def test_declared_columns_must_be_those_of_the_load() -> None:
    code = """
    class Factory:
        def getParserReturnType(self, srv, perColumn, planContext, argTypes, returnTypes):
            returnTypes.addInt("only")
        def prepare(self, srv, perColumn, planContext, returnType):
            return vertica_sdk.UDParser()
    """
    with pytest.raises(PhaseFailed, match="declares 1 columns, expected 2"):
        parsed(built(library(code).parser("Factory"), {}), [b""])
    with pytest.raises(LoadRefused, match="a method prepare, process or parse"):
        built(library("class Nothing: pass").parser("Nothing"), {})


def test_a_buffer_that_is_used_again_does_not_change_earlier_rows() -> None:
    code = """
    class P:
        def process(self, srv, inp, state, writer):
            held = bytearray(2)
            for byte in inp.read():
                held[:] = bytes([byte, byte])
                writer.setBinary(0, held)
                writer.next()
            return StreamState.DONE
    """
    parser = built(library(code).parser("P"), {})
    rows, _ = parsed(parser, [b"ab"], target(Column("X", LogicalType.BINARY, 1, byte_length=10)))
    assert [row["X"] for row in rows] == [b"aa", b"bb"]


def test_columns_set_twice_or_not_at_all_stay_in_their_rows() -> None:
    code = """
    class P:
        def process(self, srv, inp, state, writer):
            for number in range(5):
                if number % 2:
                    writer.setInt(0, -1)
                    writer.setInt(0, number)
                if number > 2:
                    writer.setString(1, "s%d" % number)
                assert writer.next()
            writer.setString(1, "dropped")
            rest = inp.read()
            if rest:
                return StreamState.REJECT(vertica_sdk.RejectedRecord("no", rest))
            writer.setString(1, None)
            writer.next()
            return StreamState.DONE
    """
    rows, rejects = parsed(built(library(code).parser("P"), {}), [b"x"])
    once = [(None, None), (1, None), (None, None), (3, "s3"), (None, "s4")]
    assert [(row["A"], row["B"]) for row in rows] == [*once, *once, (None, None)]
    assert [(each.record, each.data) for each in rejects] == [(6, b"x")]


def test_numbers_separated_by_anything_with_a_last_one_that_nothing_ends() -> None:
    # As the SDK's BasicInteger.
    code = """
    class P(vertica_sdk.UDParser):
        def process(self, srv, inp, state, writer):
            window = inp.peek()
            last = state == InputState.END_OF_FILE
            end = len(window)
            if not last:
                while end and window[end - 1:end].isdigit():
                    end -= 1
            digits = bytes(each if 48 <= each <= 57 else 32 for each in inp.read(end))
            for number in digits.split():
                writer.setInt(0, int(number))
                writer.next()
            return StreamState.DONE if last else StreamState.INPUT_NEEDED
    """
    parser = built(library(code).parser("P"), {})
    rows, _ = parsed(parser, [b"1,2-3", b"4\n5 ", b"67"], target(NUMBER, TEXT))
    assert [row["A"] for row in rows] == [1, 2, 34, 5, 67]


def test_a_text_that_is_no_unicode_is_a_reject_among_rows() -> None:
    code = """
    class Escaping(vertica_sdk.UDParser):
        def process(self, srvInterface, inputbuffer, inputstate, streamwriter):
            while number := inputbuffer.read(1):
                text = inputbuffer.read(3).decode("utf-8", "surrogateescape")
                if number == b"x":
                    return StreamState.REJECT(vertica_sdk.RejectedRecord("bad " + text, text))
                streamwriter.setInt(0, int(number))
                streamwriter.setString(1, text)
                streamwriter.next()
            return StreamState.DONE
    """
    data = [b"1a\xffb2abcx\xff\xfec3def"]
    rows, rejects = parsed(built(library(code).parser("Escaping"), {}), data)
    assert [row["A"] for row in rows] == [2, 3]
    assert [(each.record, each.data, each.reason[-22:]) for each in rejects] == [
        (1, b"1|a\xffb", "Invalid Unicode string"),
        (3, b"\xff\xfec", r"bad \udcff\udcfec"),
    ]
