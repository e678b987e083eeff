"""Regular expressions of COPY expressions: the subset in which Vertica and DuckDB agree.

Vertica uses Perl's syntax and DuckDB uses RE2. A construct that one of them lacks or interprets
differently is rejected with an error that names it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from snowmelt.load.expressions.types import ExpressionInvalid

_MAX_REPEAT = 1000
_QUANTIFIER = re.compile(r"([*+?]|\{(\d+)(?:,(\d*))?\})(\??)(\+?)")
_CLASS_ESCAPES = {"d": r"\d", "D": r"\D", "w": r"\w", "W": r"\W"}
_SPACE_CHARACTERS = r"\t\n\x0B\f\r "
_CONTROL_ESCAPES = frozenset("tnrf")
_ZERO_WIDTH_ESCAPES = frozenset("bBAz")
_POSIX_CLASS = re.compile(
    r"\[:(?:alpha|digit|alnum|upper|lower|space|punct|xdigit|cntrl|print|graph|blank):\]"
)


@dataclass(frozen=True, slots=True)
class Re2Pattern:
    """Regular expression for RE2.

    `is_nullable` is True if it may match the empty string. `has_end` is True if it contains `$`,
    which in Perl also matches before a final newline.
    """

    sql: str
    groups: int
    is_nullable: bool
    has_end: bool


def translate_pattern_to_re2(pattern: str) -> Re2Pattern:
    """Validate a regular expression and translate it to RE2.

    Raises:
        ExpressionInvalid: If a part of it is not supported.
    """
    return _Re2Translator(pattern).translate()


def validate_replacement(replacement: str, group_count: int) -> str:
    r"""Return a replacement text after validation. \1 to \9 refer to groups.

    Raises:
        ExpressionInvalid: If it has any other backslash, or a group that the pattern lacks.
    """
    for match in re.finditer(r"\\(.?)", replacement, re.DOTALL):
        if match[1] not in "123456789" or not match[1] or int(match[1]) > group_count:
            raise ExpressionInvalid(
                f"replacement {replacement!r}: a backslash is followed by the number of one of "
                f"the {group_count} groups"
            )
    return replacement


class _Re2Translator:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._position = 0
        self._groups = 0
        self._has_end = False

    def translate(self) -> Re2Pattern:
        sql, nullable = self._parse_alternatives()
        if self._position < len(self._pattern):
            raise self._make_error("a closing parenthesis has no opening one")
        return Re2Pattern(sql, self._groups, nullable, self._has_end)

    def _make_error(self, reason: str) -> ExpressionInvalid:
        return ExpressionInvalid(f"regular expression {self._pattern!r}: {reason}")

    def _parse_alternatives(self) -> tuple[str, bool]:
        sql, nullable = self._parse_sequence()
        while self._accept("|"):
            more, also = self._parse_sequence()
            sql, nullable = f"{sql}|{more}", nullable or also
        return sql, nullable

    def _accept(self, text: str) -> bool:
        if self._pattern.startswith(text, self._position):
            self._position += len(text)
            return True
        return False

    def _parse_sequence(self) -> tuple[str, bool]:
        sql, nullable = "", True
        while self._position < len(self._pattern) and self._pattern[self._position] not in "|)":
            piece, empty = self._parse_quantified_atom()
            sql, nullable = sql + piece, nullable and empty
        return sql, nullable

    def _parse_quantified_atom(self) -> tuple[str, bool]:
        atom, empty, is_anchor = self._parse_atom()
        match = _QUANTIFIER.match(self._pattern, self._position)
        if match is None:
            if self._pattern.startswith("{", self._position):
                raise self._make_error(
                    r"invalid quantifier: expected {n}, {n,} or {n,m}; write a literal brace as \{"
                )
            return atom, empty
        self._position = match.end()
        if match[5]:
            raise self._make_error("possessive quantifiers are not supported; omit the + after one")
        if is_anchor or empty:
            raise self._make_error("cannot repeat a part that matches the empty text")
        low, high = int(match[2] or 0), match[3]
        if max(low, int(high or 0)) > _MAX_REPEAT:
            raise self._make_error(f"a repetition count must be at most {_MAX_REPEAT}")
        nullable = match[1] in "*?" or (match[2] is not None and low == 0)
        return f"{atom}{match[1]}{match[4]}", nullable

    def _parse_atom(self) -> tuple[str, bool, bool]:
        """Return an atom for RE2, True if it may be empty, and True if it is an anchor."""
        char = self._pattern[self._position]
        self._position += 1
        match char:
            case "(":
                return *self._parse_group(), False
            case "[":
                return self._parse_class(), False, False
            case "\\":
                return self._parse_escape()
            case "^":
                return "^", True, True
            case "$":
                self._has_end = True
                return r"\z", True, True
            case "*" | "+" | "?" | "{":
                raise self._make_error(
                    f"{char} has nothing to repeat; write a literal one as \\{char}"
                )
            case _:
                return char, False, False

    def _parse_group(self) -> tuple[str, bool]:
        opening = "("
        if self._accept("?"):
            if not self._accept(":"):
                raise self._make_error(
                    "the only groups are (…) and (?:…); lookahead, lookbehind, named groups and flags "
                    "are not supported"
                )
            opening = "(?:"
        elif self._pattern.startswith("*", self._position):
            raise self._make_error("verbs (*…) are not supported")
        else:
            self._groups += 1
        sql, nullable = self._parse_alternatives()
        if not self._accept(")"):
            raise self._make_error("a parenthesis is not closed")
        return f"{opening}{sql})", nullable

    def _parse_escape(self) -> tuple[str, bool, bool]:
        char = self._pattern[self._position : self._position + 1]
        self._position += 1
        if char in _CLASS_ESCAPES:
            return _CLASS_ESCAPES[char], False, False
        if char in {"s", "S"}:
            return f"[{'^' if char == 'S' else ''}{_SPACE_CHARACTERS}]", False, False
        if char and char in _ZERO_WIDTH_ESCAPES:
            return f"\\{char}", True, True
        return self._translate_escape(char), False, False

    def _translate_escape(self, char: str) -> str:
        if char and (char in _CONTROL_ESCAPES or (char.isascii() and not char.isalnum())):
            return f"\\{char}"
        raise self._make_error(f"\\{char} is not supported")

    def _parse_class(self) -> str:
        sql = "[^" if self._accept("^") else "["
        if self._pattern.startswith("]", self._position):
            raise self._make_error(r"write a ] at the start of a class as \]")
        while not self._accept("]"):
            sql += self._parse_class_member()
        return f"{sql}]"

    def _parse_class_member(self) -> str:
        if self._position >= len(self._pattern):
            raise self._make_error("a class [ is not closed")
        posix = _POSIX_CLASS.match(self._pattern, self._position)
        if posix is not None:
            self._position = posix.end()
            return posix[0]
        char = self._pattern[self._position]
        self._position += 1
        if char == "[":
            raise self._make_error(r"write a [ in a class as \[")
        if char != "\\":
            return char
        char = self._pattern[self._position : self._position + 1]
        self._position += 1
        if char in _CLASS_ESCAPES:
            return _CLASS_ESCAPES[char]
        return _SPACE_CHARACTERS if char == "s" else self._translate_escape(char)
