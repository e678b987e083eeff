"""Functions that rewrite requests and replies, for services that speak another format.

A request translator gets `{"body": {"data": …}, "serviceUrl": …, "contextHeaders": {…}}` and
returns any of `body` (JSON, or a text that is sent as it is; without one the POST has no body),
`urlSuffix` (percent-encoded, put behind the function's URL) and `translatorData`. A response
translator gets `{"body": …, "translatorData": …}`, where a body that is no JSON is a text, and
returns `{"body": {"data": …}}` with the same row numbers in the same order.

Errors name the translator's line and function; what data it had only if payload may be shown.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

import msgspec

from snowmelt.errors import MissingExtra
from snowmelt.functions.definition import Language, Translator
from snowmelt.functions.refusals import TranslatorFailed, UrlRefused
from snowmelt.functions.urls import parse_url
from snowmelt.functions.wire import exact

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from snowmelt.functions.calling.javascript import Script
    from snowmelt.functions.calling.plan import CallPlan

    Handler: TypeAlias = Callable[[dict[str, object]], Mapping[str, object]]

_CONTEXT = "SF_CONTEXT_"
_SHOWN = 200  # characters of an error's own text, where payload may be shown
_FILE = "<translator>"


@dataclass(frozen=True, slots=True)
class Translated:
    """What a request becomes; `data` is JSON for the reply's translator."""

    body: bytes | None
    url_suffix: str = ""
    data: bytes | None = None


class _Failure(Exception):
    """A translator failed; `detail` may hold payload, the message does not."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.detail = detail


class _Run(Protocol):
    """Runs a translator in its language."""

    def __call__(self, body: bytes | None, others: bytes) -> Translated:
        """Return what it makes of an object: `body`, and the others as JSON."""


class Translators:
    """Both translators of a function, either of which may be missing; for any number of threads."""

    def __init__(self, plan: CallPlan) -> None:
        """Prepare.

        Raises:
            MissingExtra: A translator is JavaScript, and the engine is not installed.
        """
        self._function = plan.function.signature.name
        self._url = plan.function.url
        self._shows_payload = plan.options.debug_payload
        self._request = _runner(plan.request_translator)
        self._response = _runner(plan.response_translator)
        self._surroundings = exact.write(
            {
                "serviceUrl": plan.function.url,
                "contextHeaders": {_CONTEXT + key: text for key, text in plan.context.items()},
            }
        )

    def request(self, body: bytes) -> Translated:
        """Return what is sent instead of a body.

        Raises:
            TranslatorFailed: The translator did, or its suffix leads away from the function's URL.
        """
        if self._request is None:
            return Translated(body)
        try:
            translated = self._request(body, self._surroundings)
            if translated.url_suffix:
                _check_suffix(self._url, translated.url_suffix)
        except _Failure as failure:
            raise self._failed("request", failure) from failure
        return translated

    def reply(self, body: bytes, data: bytes | None) -> bytes:
        """Return what a reply's body means.

        Args:
            body: Of the reply.
            data: What the request's translator left for it.

        Raises:
            TranslatorFailed: The translator did.
        """
        if self._response is None:
            return body
        others = b"{}" if data is None else b'{"translatorData":%b}' % data
        try:
            translated = self._response(body, others)
        except _Failure as failure:
            raise self._failed("response", failure) from failure
        if translated.body is None:
            raise self._failed("response", _Failure("it returned no body"))
        return translated.body

    def _failed(self, which: str, failure: _Failure) -> TranslatorFailed:
        reason = str(failure)
        if self._shows_payload and failure.detail:
            reason = f"{reason}: {failure.detail[:_SHOWN]}"
        return TranslatorFailed(function=self._function, which=which, reason=reason)


def _runner(translator: Translator | Handler | None) -> _Run | None:
    if translator is None:
        return None
    if not isinstance(translator, Translator):
        return _InPython(lambda: translator)
    if translator.language is Language.PYTHON:
        source, name = translator.body, translator.handler or ""
        return _InPython(lambda: _loaded(source, name))
    return _InJavaScript(_script(translator.argument, translator.body))


class _InPython:
    """Runs a callable, or a function of a source that is loaded when it is first needed."""

    def __init__(self, load: Callable[[], Handler]) -> None:
        self._load = load

    def __call__(self, body: bytes | None, others: bytes) -> Translated:
        event = cast("dict[str, object]", exact.parse(others))
        if body is not None:
            event["body"] = _parsed(body)
        try:
            found = self._load()(event)
        except Exception as error:
            raise _Failure(_place(error), str(error)) from error
        if not isinstance(found, dict):
            raise _Failure("it returned no object as it must be")
        body_found, data = found.get("body"), found.get("translatorData")
        return Translated(
            body_found.encode() if isinstance(body_found, str) else _written(body_found, "body"),
            _suffix(found.get("urlSuffix")),
            _written(data, "translatorData"),
        )


def _parsed(body: bytes) -> object:
    try:
        return exact.parse(body, lenient=True)
    except exact.NotJson:
        pass
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise _Failure(f"byte {error.start} of what it is given is not UTF-8") from None


def _written(value: object, what: str) -> bytes | None:
    if value is None:
        return None
    try:
        return exact.write(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise _Failure(f"its {what} cannot be written as JSON") from error


@lru_cache(maxsize=64)
def _loaded(source: str, name: str) -> Handler:
    module: dict[str, Any] = {"__name__": "translator"}
    exec(compile(source, _FILE, "exec"), module)  # noqa: S102 - who may create it decides
    handler = module.get(name)
    if not callable(handler):
        raise _Failure(f"its source has no function {name}")
    return cast("Handler", handler)


def _place(error: BaseException) -> str:
    """Return an exception's kind and place; its text may hold payload."""
    if isinstance(error, _Failure):
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


class _InJavaScript:
    """Runs a script."""

    def __init__(self, script: Script) -> None:
        self._script = script

    def __call__(self, body: bytes | None, others: bytes) -> Translated:
        from snowmelt.functions.calling.javascript import ScriptFailed

        try:
            result = self._script.run(body, others)
        except ScriptFailed as error:
            raise _Failure(str(error), error.detail) from None
        try:
            found = _returned.decode(result)
        except msgspec.ValidationError as error:
            raise _Failure(f"it returned no object as it must be: {error}") from None
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
        from snowmelt.functions.calling.javascript import Script
    except ImportError as error:
        raise MissingExtra(what="A translator in JavaScript", extra="functions") from error
    return Script(argument, source)


def _suffix(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _Failure("its urlSuffix is no text")
    return value


def _check_suffix(url: str, suffix: str) -> None:
    """Refuse a suffix that changes what is before it; prefixes are checked when it is called."""
    try:
        base, whole = parse_url(url), parse_url(url + suffix)
    except UrlRefused as error:
        raise _Failure(f"the URL with its urlSuffix {error.fields['reason']}") from None
    if (whole.scheme, whole.host, whole.port) != (base.scheme, base.host, base.port) or not (
        whole.path.startswith(base.path)
    ):
        raise _Failure("its urlSuffix leads away from the function's URL")
