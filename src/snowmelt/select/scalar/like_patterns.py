"""LIKE patterns, including Ceph's character classes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from snowmelt.select.dialect import Dialect
from snowmelt.select.errors import SelectError, make_skippable_row_error

_PATTERN_CACHE_SIZE = 256
# Characters that are rejected inside a class, and directly after one. Ceph's regular expressions
# give them a special meaning.
_REJECTED_CLASS_CHARACTERS = frozenset("%_[\\")
_REPEAT_OPERATORS = frozenset("*+?{")
_CEPH_ESCAPE = "\\"


@dataclass(frozen=True, slots=True)
class CharacterClass:
    """A character class, such as `[a-z]` or `[^0-9]`. `expression` is in `re` syntax."""

    expression: str


PatternElement: TypeAlias = str | CharacterClass | None
"""Matches one character of a text. None matches any character."""


class LikePattern:
    """A LIKE pattern, split at each `%` into segments. Each element of a segment matches one character."""

    def __init__(self, segments: tuple[tuple[PatternElement, ...], ...]) -> None:
        """Compile the segments. The number of segments is one more than the number of `%`."""
        self.segments = segments
        # Search each segment once, from left to right, so that no pattern takes exponential time.
        self._segment_patterns = [
            re.compile(_segment_to_regex(piece), re.DOTALL) for piece in segments
        ]

    @property
    def segments_without_classes(self) -> tuple[tuple[str | None, ...], ...] | None:
        """The segments, or None if the pattern has a character class."""
        pieces = tuple(
            tuple(each for each in piece if not isinstance(each, CharacterClass))
            for piece in self.segments
        )
        return pieces if pieces == self.segments else None

    def matches(self, text: str) -> bool:
        """Return True if the whole text matches the pattern."""
        first, last = self._segment_patterns[0], self._segment_patterns[-1]
        if len(self._segment_patterns) == 1:
            return first.fullmatch(text) is not None
        start = first.match(text)
        end = len(text) - len(self.segments[-1])
        if start is None or start.end() > end or last.match(text, end) is None:
            return False
        at = start.end()
        for search in self._segment_patterns[1:-1]:
            found = search.search(text, at, end)
            if found is None:
                return False
            at = found.end()
        return True


def _segment_to_regex(segment: tuple[PatternElement, ...]) -> str:
    return "".join(_element_to_regex(element) for element in segment)


def _element_to_regex(element: PatternElement) -> str:
    if isinstance(element, CharacterClass):
        return element.expression
    return "." if element is None else re.escape(element)


def compile_like_pattern(pattern: str, escape: str | None, dialect: Dialect) -> LikePattern:
    """Compile a pattern by the rules of a dialect.

    In the Ceph dialects `[a-z]` is a character class, and backslash is the default escape character.

    Raises:
        SelectError: If the pattern or its escape is invalid (LikeInvalidInputs).
    """
    is_ceph = dialect.is_ceph
    try:
        return parse_like_pattern(
            pattern, _CEPH_ESCAPE if is_ceph and escape is None else escape, is_ceph
        )
    except SelectError as error:
        raise make_skippable_row_error(error.s3_code, str(error), dialect) from None


@lru_cache(maxsize=_PATTERN_CACHE_SIZE)
def parse_like_pattern(
    pattern: str, escape: str | None = None, allow_classes: bool = False
) -> LikePattern:
    """Parse a pattern. `%` matches any text, `_` any character.

    Args:
        pattern: LIKE pattern.
        escape: Escape character, which makes the next character literal. None: the pattern has no escapes.
        allow_classes: True if `[…]` is a character class.

    Raises:
        SelectError: If `escape` is not one character or ends the pattern, or a character class is
            invalid (LikeInvalidInputs).
    """
    if escape is not None and len(escape) != 1:
        raise SelectError("LikeInvalidInputs", f"ESCAPE expects one character, got {escape!r}")
    pieces: list[list[PatternElement]] = [[]]
    at = 0
    while at < len(pattern):
        character = pattern[at]
        at += 1
        if character == escape:
            if at == len(pattern):
                message = f"the pattern ends with its escape character {escape!r}"
                raise SelectError("LikeInvalidInputs", message)
            pieces[-1].append(pattern[at])
            at += 1
        elif character == "%":
            pieces.append([])
        elif allow_classes and character == "[":
            end = _find_class_end(pattern, at)
            pieces[-1].append(_parse_character_class(pattern[at:end], pattern, escape))
            at = end + 1
        else:
            pieces[-1].append(None if character == "_" else character)
    return LikePattern(tuple(tuple(piece) for piece in pieces))


def _find_class_end(pattern: str, offset: int) -> int:
    """Return the offset of the `]` that closes a class."""
    end = pattern.find("]", offset)
    if end < 0:
        raise _invalid_class_error(
            pattern, "'[' is not closed by ']'; write '\\[' for a literal bracket"
        )
    if pattern[end + 1 : end + 2] in _REPEAT_OPERATORS:
        reason = f"{pattern[end + 1]!r} behind ']' is a repetition, which LIKE does not support"
        raise _invalid_class_error(pattern, reason)
    return end


def _parse_character_class(class_text: str, pattern: str, escape: str | None) -> CharacterClass:
    """Parse the text between brackets: characters and ranges, or `^` to negate them."""
    negated = class_text.startswith("^")
    members = class_text.removeprefix("^")
    odd = _REJECTED_CLASS_CHARACTERS.union(escape or "").intersection(members)
    if not members or odd:
        what = f"holds {min(odd)!r}" if odd else "is empty"
        raise _invalid_class_error(
            pattern, f"'[{class_text}]' {what}; expected characters and ranges such as a-z"
        )
    expression = ""
    at = 0
    while at < len(members):
        first, last = members[at], members[at + 2 : at + 3]
        if members[at + 1 : at + 2] != "-" or not last:
            expression += re.escape(first)
            at += 1
            continue
        if last < first or members[at + 3 : at + 4] == "-":
            raise _invalid_class_error(pattern, f"'{first}-{last}' is no range")
        expression += f"{re.escape(first)}-{re.escape(last)}"
        at += 3
    return CharacterClass(f"[{'^' if negated else ''}{expression}]")


def _invalid_class_error(pattern: str, reason: str) -> SelectError:
    return SelectError("LikeInvalidInputs", f"Invalid LIKE pattern {pattern!r}: {reason}.")
