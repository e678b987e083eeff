"""Execution of a translator's Python or JavaScript source on one object.

Errors name the line and the function of the translator. Text that may contain data is in a
separate attribute.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

import msgspec

from snowmelt.errors import MissingExtra
from snowmelt.functions.definition import Translator, TranslatorLanguage
from snowmelt.json import exact

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from snowmelt.functions.caller.javascript import JavaScriptFunction

    TranslatorHandler: TypeAlias = Callable[[dict[str, object]], Mapping[str, object]]

_SOURCE_FILE_NAME = "<translator>"


@dataclass(frozen=True, slots=True)
class TranslatorOutput:
    """What a request becomes; `translator_data` is JSON for the reply's translator."""

    body: bytes | None
    url_suffix: str = ""
    translator_data: bytes | None = None


class TranslatorError(Exception):
    """A translator failed; `detail` may hold payload, the message does not."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.detail = detail


class TranslatorRunner(Protocol):
    """Runs a translator."""

    def __call__(self, body: bytes | None, other_fields: bytes) -> TranslatorOutput:
        """Return what it makes of an object: `body`, and the others as JSON.

        Raises:
            TranslatorError: The translator failed.
        """


def make_translator_runner(translator: Translator) -> TranslatorRunner:
    """Return what runs a translator in this process.

    A script keeps nothing from one object to the next. A Python module keeps its globals.

    Raises:
        MissingExtra: It is JavaScript, and the engine is not installed.
    """
    if translator.language is TranslatorLanguage.PYTHON:
        source, name = translator.body, translator.handler or ""
        return PythonTranslatorRunner(cache(lambda: _load_source(source, name)))
    return JavaScriptTranslatorRunner(_load_script(translator.argument, translator.body))


class PythonTranslatorRunner:
    """A callable, or a function of a source that is loaded when it is first needed."""

    def __init__(self, load_handler: Callable[[], TranslatorHandler]) -> None:
        self._load_handler = load_handler

    def __call__(self, body: bytes | None, other_fields: bytes) -> TranslatorOutput:
        """Return what it makes of an object."""
        event = cast("dict[str, object]", exact.parse_json(other_fields))
        if body is not None:
            event["body"] = _parse_body(body)
        try:
            found = self._load_handler()(event)
        except Exception as error:
            raise TranslatorError(_describe_error(error), str(error)) from error
        if not isinstance(found, dict):
            raise TranslatorError("it returned no object as it must be")
        body_found, data = found.get("body"), found.get("translatorData")
        return TranslatorOutput(
            body_found.encode()
            if isinstance(body_found, str)
            else _encode_field(body_found, "body"),
            _validate_url_suffix(found.get("urlSuffix")),
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
        raise TranslatorError(f"byte {error.start} of what it is given is not UTF-8") from None


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
    """Return an exception's kind and place; its text may hold payload."""
    if isinstance(error, TranslatorError):
        return str(error)
    reason = type(error).__name__
    if isinstance(error, SyntaxError):
        return f"{reason} in line {error.lineno}"
    # The first frame is this module's own.
    frames = traceback.extract_tb(error.__traceback__)[1:]
    own = [frame for frame in frames if frame.filename == _SOURCE_FILE_NAME] or frames[-1:]
    if not own:
        return reason
    return f"{reason} in line {own[-1].lineno}, function {own[-1].name}"


_RAW_NULL = msgspec.Raw(b"null")


class _ScriptResult(msgspec.Struct, rename="camel"):
    """What a script returns; whatever else it has does not count."""

    body: msgspec.Raw = _RAW_NULL
    url_suffix: str | None = None
    translator_data: msgspec.Raw = _RAW_NULL


_result_decoder = msgspec.json.Decoder(_ScriptResult)
_string_decoder = msgspec.json.Decoder(str)


class JavaScriptTranslatorRunner:
    """A script."""

    def __init__(self, script: JavaScriptFunction) -> None:
        self._script = script

    def __call__(self, body: bytes | None, other_fields: bytes) -> TranslatorOutput:
        """Return what it makes of an object."""
        from snowmelt.functions.caller.javascript import ScriptError

        try:
            result = self._script.run(body, other_fields)
        except ScriptError as error:
            raise TranslatorError(str(error), error.detail) from None
        try:
            found = _result_decoder.decode(result)
        except msgspec.ValidationError as error:
            raise TranslatorError(f"it returned no object as it must be: {error}") from None
        except (msgspec.DecodeError, RecursionError):
            raise TranslatorError("what it returned nests too deeply") from None
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
        return self._script.restore_integers(found)


@lru_cache(maxsize=64)
def _load_script(argument_name: str, source: str) -> JavaScriptFunction:
    try:
        from snowmelt.functions.caller.javascript import JavaScriptFunction
    except ImportError as error:
        raise MissingExtra(
            what="A translator in JavaScript", package="quickjs", extra="functions"
        ) from error
    return JavaScriptFunction(argument_name, source)


def _validate_url_suffix(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise TranslatorError("its urlSuffix is no text")
    return value
