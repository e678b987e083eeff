"""COPY uses unmodified files that were written for Vertica's SDK."""

from __future__ import annotations

import warnings

import pytest

from fixtures.copy import Copying
from snowmelt.errors import LoadFailed, LoadRefused

# A typical user file: a filter and a parser, with the argument order of existing code.
OWN = '''
import vertica_sdk
from vertica_sdk import InputState, StreamState
import words


class Comments(vertica_sdk.UDFilter):
    """Drops lines that begin with a mark; holds back a line that is not whole yet."""

    def setup(self, srvInterface):
        self.mark = srvInterface.getParamReader().getString("mark").encode()

    def process(self, srvInterface, inputbuffer, inputstate, outputbuffer):
        last = inputstate == InputState.END_OF_FILE
        window = inputbuffer.peek()
        end = len(window) if last else window.rfind(b"\\n") + 1
        for line in inputbuffer.read(end).splitlines(True):
            if words.FORBIDDEN in line:
                raise ValueError("forbidden")
            if not line.startswith(self.mark):
                outputbuffer.write(line)
        return StreamState.DONE if last else StreamState.INPUT_NEEDED


class CommentsFactory(vertica_sdk.FilterFactory):
    def getParameterType(self, srvInterface, parameterTypes):
        parameterTypes.addVarchar(1, "mark")

    def plan(self, srvInterface, planContext):
        if not srvInterface.getParamReader().containsParameter("mark"):
            raise ValueError("mark is missing")

    def prepare(self, srvInterface, planContext):
        return Comments()


class Arrows(vertica_sdk.UDParser):
    def process(self, srvInterface, inputbuffer, inputstate, streamwriter):
        window = inputbuffer.peek()
        end = window.find(b"\\n") + 1
        if not end and inputstate != InputState.END_OF_FILE:
            return StreamState.INPUT_NEEDED
        if not window:
            return StreamState.DONE
        line = inputbuffer.read(end or None)
        number, arrow, word = line.rstrip(b"\\n").partition(b"->")
        if not arrow:
            return StreamState.REJECT(vertica_sdk.RejectedRecord("there is no arrow", line))
        streamwriter.setString(0, number.decode())
        streamwriter.setString(1, word.decode())
        streamwriter.next()
        return StreamState.KEEP_GOING


class ArrowsFactory(vertica_sdk.ParserFactory):
    def prepare(self, srvInterface, perColumnParamReader, planContext, returnType):
        return Arrows()
'''


@pytest.fixture
def own(copying: Copying) -> Copying:
    (copying.folder / "words.py").write_text("FORBIDDEN = b'forbidden'\n")
    (copying.folder / "own.py").write_text(OWN)
    copying.sql(
        f"CREATE LIBRARY own AS '{copying.folder / 'own.py'}' "
        f"DEPENDS '{copying.folder / 'words.py'}' LANGUAGE 'Python'"
    )
    copying.sql("CREATE FILTER comments AS LANGUAGE 'Python' NAME 'CommentsFactory' LIBRARY own")
    copying.sql("CREATE PARSER arrows AS LANGUAGE 'Python' NAME 'ArrowsFactory' LIBRARY own")
    return copying


def test_a_filter_and_a_parser_load_rows_and_reject_records(own: Copying) -> None:
    path = own.file("a.txt", "# numbers\n1->one\nbroken\n2->two\nx->three\n")
    copied = own.copy(
        f"COPY numbers FROM {path} FILTER Comments(mark='#') PARSER Arrows() "
        "REJECTED DATA AS TABLE rejects"
    )
    assert (copied.totals.rows, copied.totals.rejects) == (2, 2)
    assert own.house.read(columns=["WORD"])["WORD"].to_pylist() == ["one", "two"]
    assert ("there is no arrow", 1) in copied.reject_reasons


def test_an_error_of_user_code_names_all_there_is_to_know(own: Copying) -> None:
    path = own.file("a.txt", "1->one\n2->forbidden\n")
    with pytest.raises(LoadFailed) as info:
        own.copy(f"COPY numbers FROM {path} FILTER comments(mark='#') PARSER arrows()")
    text = str(info.value)
    assert "a.txt, filter comments(mark='#')" in text
    assert "process() raised ValueError: forbidden (OWN/own.py, line" in text


def test_what_plan_refuses_is_refused_and_what_nobody_declares_is_warned_of(own: Copying) -> None:
    path = own.file("a.txt", "1->one\n")
    with pytest.raises(LoadRefused, match="mark is missing"):
        own.copy(f"COPY numbers FROM {path} FILTER comments() PARSER arrows()")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        own.copy(f"COPY numbers FROM {path} FILTER comments(mark='#') PARSER arrows(more=1)")
    assert ["declares no parameter more" in str(each.message) for each in said] == [True]
