"""Runs a translator's source, in Python or JavaScript, over one object.

Errors name the translator's line and function; what they say of its data is kept apart.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

import msgspec

from snowmelt.errors import MissingExtra
from snowmelt.functions.definition import Language, Translator
from snowmelt.functions.wire import exact_json

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from snowmelt.functions.caller.javascript import Script

    Handler: TypeAlias = Callable[[dict[str, object]], Mapping[str, object]]

_FILE = "<translator>"


@dataclass(frozen=True, slots=True)
class Translated:
    """What a request becomes; `data` is JSON for the reply's translator."""

    body: bytes | None
    url_suffix: str = ""
    data: bytes | None = None


class TranslatorFailure(Exception):
    """A translator failed; `detail` may hold payload, the message does not."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.detail = detail


class TranslatorRun(Protocol):
    """Runs a translator."""

    def __call__(self, body: bytes | None, others: bytes) -> Translated:
        """Return what it makes of an object: `body`, and the others as JSON.

        Raises:
            TranslatorFailure: The translator failed.
        """


def translator_run(translator: Translator) -> TranslatorRun:
    """Return what runs a translator in this process.

    A script keeps nothing from one object to the next. A Python module keeps its globals.

    Raises:
        MissingExtra: It is JavaScript, and the engine is not installed.
    """
    if translator.language is Language.PYTHON:
        source, name = translator.body, translator.handler or ""
        return PythonRun(cache(lambda: _loaded(source, name)))
    return JavaScriptRun(_script(translator.argument, translator.body))


class PythonRun:
    """A callable, or a function of a source that is loaded when it is first needed."""

    def __init__(self, load: Callable[[], Handler]) -> None:
        self._load = load

    def __call__(self, body: bytes | None, others: bytes) -> Translated:
        """Return what it makes of an object."""
        event = cast("dict[str, object]", exact_json.parse(others))
        if body is not None:
            event["body"] = _parsed(body)
        try:
            found = self._load()(event)
        except Exception as error:
            raise TranslatorFailure(_place(error), str(error)) from error
        if not isinstance(found, dict):
            raise TranslatorFailure("it returned no object as it must be")
        body_found, data = found.get("body"), found.get("translatorData")
        return Translated(
            body_found.encode() if isinstance(body_found, str) else _written(body_found, "body"),
            _suffix(found.get("urlSuffix")),
            _written(data, "translatorData"),
        )


def _parsed(body: bytes) -> object:
    try:
        return exact_json.parse(body, lenient=True)
    except exact_json.NotJson:
        pass
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise TranslatorFailure(f"byte {error.start} of what it is given is not UTF-8") from None


def _written(value: object, what: str) -> bytes | None:
    if value is None:
        return None
    try:
        return exact_json.write(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise TranslatorFailure(f"its {what} cannot be written as JSON") from error


def _loaded(source: str, name: str) -> Handler:
    module: dict[str, Any] = {"__name__": "translator"}
    exec(compile(source, _FILE, "exec"), module)  # noqa: S102 - who may create it decides
    handler = module.get(name)
    if not callable(handler):
        raise TranslatorFailure(f"its source has no function {name}")
    return cast("Handler", handler)


def _place(error: BaseException) -> str:
    """Return an exception's kind and place; its text may hold payload."""
    if isinstance(error, TranslatorFailure):
        return str(error)
    reason = type(error).__name__
    if isinstance(error, SyntaxError):
        return f"{reason} in line {error.lineno}"
    # The first frame is this module's own.
    frames = traceback.extract_tb(error.__traceback__)[1:]
    own = [frame for frame in frames if frame.filename == _FILE] or frames[-1:]
    if not own:
        return reason
    return f"{reason} in line {own[-1].lineno}, function {own[-1].name}"


_NULL = msgspec.Raw(b"null")


class _Returned(msgspec.Struct, rename="camel"):
    """What a script returns; whatever else it has does not count."""

    body: msgspec.Raw = _NULL
    url_suffix: str | None = None
    translator_data: msgspec.Raw = _NULL


_returned = msgspec.json.Decoder(_Returned)
_text = msgspec.json.Decoder(str)


class JavaScriptRun:
    """A script."""

    def __init__(self, script: Script) -> None:
        self._script = script

    def __call__(self, body: bytes | None, others: bytes) -> Translated:
        """Return what it makes of an object."""
        from snowmelt.functions.caller.javascript import ScriptFailed

        try:
            result = self._script.run(body, others)
        except ScriptFailed as error:
            raise TranslatorFailure(str(error), error.detail) from None
        try:
            found = _returned.decode(result)
        except msgspec.ValidationError as error:
            raise TranslatorFailure(f"it returned no object as it must be: {error}") from None
        except (msgspec.DecodeError, RecursionError):
            raise TranslatorFailure("what it returned nests too deeply") from None
        return Translated(
            self._bytes(found.body, is_text_as_it_is=True),
            found.url_suffix or "",
            self._bytes(found.translator_data, is_text_as_it_is=False),
        )

    def _bytes(self, raw: msgspec.Raw, *, is_text_as_it_is: bool) -> bytes | None:
        found = bytes(raw)
        if found == b"null":
            return None
        if is_text_as_it_is and found.startswith(b'"'):
            found = _text.decode(found).encode()
        return self._script.exact(found)


@lru_cache(maxsize=64)
def _script(argument: str, source: str) -> Script:
    try:
        from snowmelt.functions.caller.javascript import Script
    except ImportError as error:
        raise MissingExtra(
            what="A translator in JavaScript", package="quickjs", extra="functions"
        ) from error
    return Script(argument, source)


def _suffix(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise TranslatorFailure("its urlSuffix is no text")
    return value
