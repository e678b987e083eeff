"""Sandboxed JavaScript functions from one JSON object to another, with CPU and memory limits.

A function has no files and no network. Numbers stay exact or are rejected. JavaScript numbers
hold integers up to 2^53 and decimals as doubles. A larger integer becomes a BigInt (arithmetic
that mixes it with numbers is a JavaScript error). A decimal that no double holds is rejected.
"""

from __future__ import annotations

import re
import secrets
from decimal import Decimal
from typing import Any

import quickjs

from snowmelt.json import exact

_MAX_CPU_S = 10.0
_MAX_MEMORY_BYTES = 256 * 1024 * 1024
_MAX_SAFE_INTEGER = 2**53 - 1

# Which bytes may belong to a number that a double does not hold: 16 digits and more, or exponents.
_BYTE_CLASSES = bytes(
    ord("1") if chr(byte) in "0123456789.+-" else ord("e") if chr(byte) in "eE" else ord(" ")
    for byte in range(256)
)
_LONG_NUMBER, _EXPONENT_NUMBER = b"1" * 16, b"1e1"

# `new Function` keeps the source apart from this one, whatever braces it has. A function's lines
# begin after the two that it adds.
_WRAPPER_LINES = 2
_RUNNER_SOURCE = """
(function (argument, source, mark) {
  BigInt.prototype.toJSON = function () { return mark + this.toString(); };
  const revive = (key, value) =>
    typeof value === "string" && value.startsWith(mark) ? BigInt(value.slice(mark.length)) : value;
  const capitals = argument.toUpperCase();
  const names = capitals === argument ? [argument] : [argument, capitals];
  const run = new Function(...names, source);
  return function (body, others, large) {
    const event = JSON.parse(others, large ? revive : undefined);
    if (body !== null) {
      try { event.body = JSON.parse(body, large ? revive : undefined); }
      catch (error) { event.body = body; }
    }
    const result = run(event, event);
    try { return JSON.stringify(result); } catch (error) { return null; }
  };
})
"""
_ERROR_NAME_PATTERN = re.compile(r"([A-Za-z]{0,40}Error)\b")
_STACK_FRAME_PATTERN = re.compile(r"^    at (?:([\w$]{1,60}) \()?<input>:(\d+)\)?$", re.MULTILINE)


class ScriptError(Exception):
    """A script cannot be read or did not end well; the message holds nothing of its data.

    `detail` does: it is what the script's own error says.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.detail = detail


class JavaScriptFunction:
    """One function; for any number of threads. It keeps nothing from one object to the next."""

    def __init__(
        self,
        argument: str,
        source: str,
        *,
        max_cpu_s: float = _MAX_CPU_S,
        max_memory_bytes: int = _MAX_MEMORY_BYTES,
    ) -> None:
        """Prepare; the source is not read before it is needed.

        Args:
            argument: The name under which the function finds its object; in capitals, too.
            source: The function's body.
            max_cpu_s: Of the process's processing time for one object.
            max_memory_bytes: Of memory.
        """
        self._max_cpu_s, self._max_memory_bytes = max_cpu_s, max_memory_bytes
        self._argument = argument
        self._source = source
        # No data can hold it by chance: it stands for "this text is an integer".
        self._mark = f"integer-{secrets.token_hex(12)}-"
        self._marked_integer_pattern = re.compile(b'"' + self._mark.encode() + b'(-?[0-9]+)"')

    def run(self, body: bytes | None, other_fields: bytes) -> str:
        """Return the JSON text of what the function returns.

        `body`: JSON that is the object's `body`, or a text that is none; None leaves it out.

        Raises:
            ScriptError: The function did, or what it was given or returned cannot be taken.
        """
        marked_body, large_body = (None, False) if body is None else self._mark_large_integers(body)
        marked_others, large_others = self._mark_large_integers(other_fields)
        # One context for one object: what a script leaves behind, rows of other queries above all,
        # is not there for the next. A context takes 0.8 ms (measured).
        context = quickjs.Context()
        context.set_memory_limit(self._max_memory_bytes)
        context.set_time_limit(self._max_cpu_s)
        try:
            run = context.eval(_RUNNER_SOURCE)(self._argument, self._source, self._mark)
            result = run(marked_body, marked_others, large_body or large_others)
        except quickjs.JSException as error:
            raise self._make_error(error) from None
        if not isinstance(result, str):
            raise ScriptError("what it returned is not JSON")
        return result

    def restore_integers(self, text: bytes) -> bytes:
        """Return a part of a result with all integers written as numbers."""
        return (
            self._marked_integer_pattern.sub(rb"\1", text) if self._mark.encode() in text else text
        )

    def _mark_large_integers(self, text: bytes) -> tuple[str, bool]:
        """Return JSON in which larger integers than JavaScript's are marked texts, if there are."""
        try:
            plain = text.decode()
        except UnicodeDecodeError as error:
            raise ScriptError(f"byte {error.start} of what it is given is not UTF-8") from None
        kinds = text.translate(_BYTE_CLASSES)
        if _LONG_NUMBER not in kinds and _EXPONENT_NUMBER not in kinds:
            return plain, False
        try:
            value = exact.parse_json(text)
        except exact.JsonSyntaxError:
            return plain, False
        try:
            marked, large = self._mark_value(value)
        except RecursionError:
            raise ScriptError("what it is given nests too deeply") from None
        return (exact.serialize_json(marked).decode(), True) if large else (plain, False)

    def _mark_value(self, value: Any) -> tuple[Any, bool]:
        match value:
            case Decimal():
                raise ScriptError(
                    "it is given a number with more digits than JavaScript's numbers hold"
                )
            case bool():
                return value, False
            case int() if not -_MAX_SAFE_INTEGER <= value <= _MAX_SAFE_INTEGER:
                return f"{self._mark}{value}", True
            case list():
                pairs = [self._mark_value(each) for each in value]
                return [each for each, _ in pairs], any(large for _, large in pairs)
            case dict():
                pairs = [self._mark_value(each) for each in value.values()]
                marked = dict(zip(value, (each for each, _ in pairs), strict=True))
                return marked, any(large for _, large in pairs)
            case _:
                return value, False

    def _make_error(self, error: quickjs.JSException) -> ScriptError:
        text = str(error)
        first = text.partition("\n")[0]
        if first == "InternalError: interrupted":
            return ScriptError(f"it took longer than {self._max_cpu_s:g} s")
        # Where there is no memory left for an error, the engine throws null.
        if first in {"InternalError: out of memory", "null"}:
            return ScriptError(f"it needed more than {self._max_memory_bytes} bytes, or threw null")
        kind = _ERROR_NAME_PATTERN.match(first)
        reason = kind[1] if kind else "an exception"
        place = _STACK_FRAME_PATTERN.search(text)
        if place is not None:
            reason += f" in line {max(int(place[2]) - _WRAPPER_LINES, 1)}"
            if place[1] and place[1] != "anonymous":
                reason += f", function {place[1]}"
        return ScriptError(reason, first)
