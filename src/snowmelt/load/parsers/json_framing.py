"""Where JSON objects begin and end in a stream: on lines of their own, over several, or in an array."""

from __future__ import annotations

import re
from dataclasses import dataclass

from snowmelt.load.parsers.json_documents import Documents, NotJson

_BETWEEN = re.compile(rb"[ \t\r\n,\[\]]*")
# All that may stand in an object; a text does not go over a line end.
_TOKEN = re.compile(rb'[^"{}\[\]]+|"(?:[^"\\\n]|\\.)*"|[{}\[\]]', re.DOTALL)
_BEFORE_OBJECT = (b":", b"[", b",")


@dataclass(frozen=True, slots=True)
class Framed:
    """One record's bytes, and where the next may begin; `problem` where they are no JSON."""

    start: int
    end: int
    next: int
    problem: str | None = None


class Framing:
    """Finds records. With a terminator each ends there; without, objects follow each other."""

    def __init__(self, terminator: bytes, documents: Documents, max_record: int) -> None:
        self._terminator = terminator
        self._documents = documents
        self._max_record = max_record

    def find(self, data: bytes, at: int, *, is_last: bool) -> Framed | None:
        """Return the next record at or after `at`; None if it does not end here and more may come.

        An empty record (`start == end`) says that there is nothing but blanks up to its next.
        """
        if self._terminator:
            return self._terminated(data, at, is_last=is_last)
        between = _BETWEEN.match(data, at)
        start = at if between is None else between.end()
        if start == len(data):
            return Framed(start, start, start) if start > at else None
        line_end = data.find(b"\n", start)
        has_line = line_end >= 0 or is_last
        line_end = len(data) if line_end < 0 else line_end
        problem = self._problem(data[start:line_end]) if has_line else None
        if has_line and problem is None:
            return Framed(start, line_end, line_end)
        end = _closing(data, start)
        if end is not None and end > start and self._problem(data[start:end]) is None:
            return Framed(start, end, end)
        may_come = not is_last and len(data) - start < self._max_record
        if may_come and (end is None or not has_line):
            return None
        end = line_end if end is None else max(line_end, end)
        return Framed(start, end, end, problem or self._problem(data[start:end]))

    def _terminated(self, data: bytes, at: int, *, is_last: bool) -> Framed | None:
        end = data.find(self._terminator, at)
        after = end + len(self._terminator)
        if end < 0:
            if not is_last:
                return None
            end = after = len(data)
        if not data[at:end].strip():
            return Framed(at, at, after)
        return Framed(at, end, after, self._problem(data[at:end]))

    def _problem(self, data: bytes) -> str | None:
        try:
            self._documents.check(data)
        except NotJson as error:
            return str(error)
        return None


def _closing(data: bytes, start: int) -> int | None:
    """Return where the object that begins at `start` ends; None if it does not end yet.

    `start` says that it cannot become an object.
    """
    if not data.startswith(b"{", start):
        return start
    depth = 0
    at = start
    before = b":"
    while token := _TOKEN.match(data, at):
        text = token[0]
        at = token.end()
        if text == b"{" or text == b"[":
            if not before.rstrip().endswith(_BEFORE_OBJECT):
                return start
            depth += 1
        elif text == b"}" or text == b"]":
            depth -= 1
            if not depth:
                return at
        if text.strip():
            before = text
    # An opened text at the end may be closed by what comes.
    return None if at == len(data) or b"\n" not in data[at:] else start
