"""Runs a translator's Python or JavaScript source on one object.

Errors name the line and function in the translator. Error text that may contain data is in the
separate attribute `detail`.

A JavaScript function runs in a sandbox without files and network, with CPU and memory limits.
Numbers stay exact or are rejected. An integer above 2^53 becomes a BigInt (mixing it with numbers
in arithmetic is a JavaScript error). A decimal that a double cannot represent is rejected.
"""

from __future__ import annotations

import re
import secrets
import traceback
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import msgspec

from snowmelt.functions.definition import Translator, TranslatorLanguage
from snowmelt.json import exact

if TYPE_CHECKING:
    import quickjs

TranslatorHandler: TypeAlias = Callable[[dict[str, object]], Mapping[str, object]]

# Translates an object, given as its `body` and its other fields in JSON. Raises TranslatorError.
TranslatorRunner: TypeAlias = "Callable[[bytes | None, bytes], TranslatorOutput]"

_SOURCE_FILE_NAME = "<translator>"


class TranslatorOutput(msgspec.Struct, frozen=True, tag=True):
    """A translated request. `translator_data` is JSON that the response translator receives."""

    body: bytes | None
    url_suffix: str = ""
    translator_data: bytes | None = None


class TranslatorError(Exception):
    """Failure of a translator. `detail` may contain payload. The message does not."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.detail = detail


def make_translator_runner(translator: Translator) -> TranslatorRunner:
    """Return a runner for a translator in this process.

    JavaScript keeps no state between objects. A Python module keeps its globals.
    """
    if translator.language is TranslatorLanguage.PYTHON:
        source, name = translator.body, translator.handler or ""
        return PythonTranslatorRunner(cache(lambda: _load_source(source, name)))
    return JavaScriptFunction(translator.argument, translator.body)


class PythonTranslatorRunner:
    """Runner for a callable, or for a function in Python source that is loaded at first use."""

    def __init__(self, load_handler: Callable[[], TranslatorHandler]) -> None:
        self._load_handler = load_handler

    def __call__(self, body: bytes | None, other_fields: bytes) -> TranslatorOutput:
        """Return the result for an object."""
        event = cast("dict[str, object]", exact.parse_json(other_fields))
        if body is not None:
            event["body"] = _parse_body(body)
        try:
            found = self._load_handler()(event)
        except Exception as error:
            raise TranslatorError(_describe_error(error), str(error)) from error
        if not isinstance(found, dict):
            raise TranslatorError("it returned an invalid result")
        body_found, data = found.get("body"), found.get("translatorData")
        suffix = found.get("urlSuffix")
        if suffix is not None and not isinstance(suffix, str):
            raise TranslatorError("its urlSuffix is not a string")
        return TranslatorOutput(
            body_found.encode()
            if isinstance(body_found, str)
            else _encode_field(body_found, "body"),
            suffix or "",
            _encode_field(data, "translatorData"),
        )


def _parse_body(body: bytes) -> object:
    try:
        return exact.parse_json(body, lenient=True)
    except exact.JsonSyntaxError:
        pass
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise TranslatorError(f"byte {error.start} of its input is not UTF-8") from None


def _encode_field(value: object, field_name: str) -> bytes | None:
    if value is None:
        return None
    try:
        return exact.serialize_json(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise TranslatorError(f"its {field_name} cannot be written as JSON") from error


def _load_source(source: str, handler_name: str) -> TranslatorHandler:
    module: dict[str, Any] = {"__name__": "translator"}
    exec(compile(source, _SOURCE_FILE_NAME, "exec"), module)  # noqa: S102 - who may create it decides
    handler = module.get(handler_name)
    if not callable(handler):
        raise TranslatorError(f"its source has no function {handler_name}")
    return cast("TranslatorHandler", handler)


def _describe_error(error: BaseException) -> str:
    """Return type and location of an exception. Omits its text, which may contain payload."""
    if isinstance(error, TranslatorError):
        return str(error)
    reason = type(error).__name__
    if isinstance(error, SyntaxError):
        return f"{reason} in line {error.lineno}"
    # Skip the first frame, which is in this module.
    frames = traceback.extract_tb(error.__traceback__)[1:]
    own = [frame for frame in frames if frame.filename == _SOURCE_FILE_NAME] or frames[-1:]
    if not own:
        return reason
    return f"{reason} in line {own[-1].lineno}, function {own[-1].name}"


_RAW_NULL = msgspec.Raw(b"null")


class _ScriptResult(msgspec.Struct, rename="camel"):
    """Result of a script. Other fields are ignored."""

    body: msgspec.Raw = _RAW_NULL
    url_suffix: str | None = None
    translator_data: msgspec.Raw = _RAW_NULL


_result_decoder = msgspec.json.Decoder(_ScriptResult)
_string_decoder = msgspec.json.Decoder(str)


_MAX_CPU_S = 10.0
_MAX_MEMORY_BYTES = 256 * 1024 * 1024
_MAX_SAFE_INTEGER = 2**53 - 1

# Matches numbers that a double may not represent: 16 or more digits, or an exponent.
_BYTE_CLASSES = bytes(
    ord("1") if chr(byte) in "0123456789.+-" else ord("e") if chr(byte) in "eE" else ord(" ")
    for byte in range(256)
)
_LONG_NUMBER, _EXPONENT_NUMBER = b"1" * 16, b"1e1"

# `new Function` isolates the translator's source from this script, even if its braces do not match.
# It adds two lines before the source.
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
      catch (error) {
        // Text that is not JSON. The parser reports an overflow of its stack as a SyntaxError, too.
        if (error.message === "stack overflow") return 1;
        event.body = body;
      }
    }
    const result = run(event, event);
    try { return JSON.stringify(result); }
    catch (error) { return error.message === "stack overflow" ? 2 : null; }
  };
})
"""
# Name of the value that is nested too deeply, by the number that the script above returns.
_DEEP_VALUES = {1: "argument", 2: "result"}
_ERROR_NAME_PATTERN = re.compile(r"([A-Za-z]{0,40}Error)\b")
_STACK_FRAME_PATTERN = re.compile(r"^    at (?:([\w$]{1,60}) \()?<input>:(\d+)\)?$", re.MULTILINE)


class JavaScriptFunction:
    """A JavaScript function without state between objects. Thread-safe."""

    def __init__(
        self,
        argument: str,
        source: str,
        *,
        max_cpu_s: float = _MAX_CPU_S,
        max_memory_bytes: int = _MAX_MEMORY_BYTES,
    ) -> None:
        """Create a function. The source is parsed at first use.

        Args:
            argument: Name of the function's argument. Also available in upper case.
            source: Body of the function.
            max_cpu_s: Limit of processor time for one object, in seconds.
            max_memory_bytes: Memory limit in bytes.
        """
        self._max_cpu_s, self._max_memory_bytes = max_cpu_s, max_memory_bytes
        self._argument = argument
        self._source = source
        # Marker for strings that represent integers. Random, so that data cannot contain it by
        # chance.
        self._mark = f"integer-{secrets.token_hex(12)}-"
        self._marked_integer_pattern = re.compile(b'"' + self._mark.encode() + b'(-?[0-9]+)"')

    def run(self, body: bytes | None, other_fields: bytes) -> str:
        """Return the JSON text of the function's result.

        `body` is the object's `body`: JSON, or text that is not JSON. None: the object has no
        `body`.

        Raises:
            TranslatorError: If the function failed, or its input or result is invalid.
        """
        marked_body, large_body = (None, False) if body is None else self._mark_large_integers(body)
        marked_others, large_others = self._mark_large_integers(other_fields)
        # Use a new context per object, so that data, such as rows of other queries, does not leak
        # to the next object. Creating a context takes 0.8 ms (measured).
        import quickjs

        context = quickjs.Context()
        context.set_memory_limit(self._max_memory_bytes)
        context.set_time_limit(self._max_cpu_s)
        try:
            run = context.eval(_RUNNER_SOURCE)(self._argument, self._source, self._mark)
            result = run(marked_body, marked_others, large_body or large_others)
        except quickjs.JSException as error:
            raise self._make_error(error) from None
        if isinstance(result, int):
            raise TranslatorError(f"its {_DEEP_VALUES[result]} nests too deeply")
        if not isinstance(result, str):
            raise TranslatorError("its result is not JSON")
        return result

    def __call__(self, body: bytes | None, other_fields: bytes) -> TranslatorOutput:
        """Return the result for an object."""
        try:
            found = _result_decoder.decode(self.run(body, other_fields))
        except msgspec.ValidationError as error:
            raise TranslatorError(f"it returned an invalid result: {error}") from None
        except (msgspec.DecodeError, RecursionError):
            raise TranslatorError("its result nests too deeply") from None
        return TranslatorOutput(
            self._decode_field(found.body, unquote_text=True),
            found.url_suffix or "",
            self._decode_field(found.translator_data, unquote_text=False),
        )

    def _decode_field(self, raw: msgspec.Raw, *, unquote_text: bool) -> bytes | None:
        found = bytes(raw)
        if found == b"null":
            return None
        if unquote_text and found.startswith(b'"'):
            found = _string_decoder.decode(found).encode()
        return self.restore_integers(found)

    def restore_integers(self, text: bytes) -> bytes:
        """Return a part of a result in which marked strings are integers again."""
        return (
            self._marked_integer_pattern.sub(rb"\1", text) if self._mark.encode() in text else text
        )

    def _mark_large_integers(self, text: bytes) -> tuple[str, bool]:
        """Replace integers above 2^53 with marked strings. Also return True if there are any."""
        try:
            plain = text.decode()
        except UnicodeDecodeError as error:
            raise TranslatorError(f"byte {error.start} of its input is not UTF-8") from None
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
            raise TranslatorError("its argument nests too deeply") from None
        return (exact.serialize_json(marked).decode(), True) if large else (plain, False)

    def _mark_value(self, value: Any) -> tuple[Any, bool]:
        match value:
            case Decimal():
                raise TranslatorError(
                    "its input has a number with more digits than JavaScript supports"
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

    def _make_error(self, error: quickjs.JSException) -> TranslatorError:
        text = str(error)
        first = text.partition("\n")[0]
        if first == "InternalError: interrupted":
            return TranslatorError(f"it took longer than {self._max_cpu_s:g} s")
        # The engine throws null if it has no memory for an error.
        if first in {"InternalError: out of memory", "null"}:
            return TranslatorError(
                f"it needed more than {self._max_memory_bytes} bytes, or threw null"
            )
        kind = _ERROR_NAME_PATTERN.match(first)
        reason = kind[1] if kind else "an exception"
        place = _STACK_FRAME_PATTERN.search(text)
        if place is not None:
            reason += f" in line {max(int(place[2]) - _WRAPPER_LINES, 1)}"
            if place[1] and place[1] != "anonymous":
                reason += f", function {place[1]}"
        return TranslatorError(reason, first)
