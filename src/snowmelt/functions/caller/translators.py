"""Functions that rewrite requests and replies, for services that speak another format.

A request translator gets `{"body": {"data": …}, "serviceUrl": …, "contextHeaders": {…}}` and
returns any of `body` (JSON, or a text that is sent as it is; without one the POST has no body),
`urlSuffix` (percent-encoded, put behind the function's URL) and `translatorData`. A response
translator gets `{"body": …, "translatorData": …}`, where a body that is no JSON is a text, and
returns `{"body": {"data": …}}` with the same row numbers in the same order.

Errors name the translator's line and function; what data it had only if payload may be shown.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from snowmelt.functions.caller.translator_process import TranslatorProcess, check_engine, run_script
from snowmelt.functions.caller.translator_runtime import PythonRun, Translated, TranslatorFailure
from snowmelt.functions.definition import Language, Translator
from snowmelt.functions.errors import TranslatorFailed, UrlRefused
from snowmelt.functions.urls import is_extended, parse_url
from snowmelt.functions.wire import exact_json

if TYPE_CHECKING:
    from snowmelt.functions.caller.plan import CallPlan
    from snowmelt.functions.caller.translator_runtime import Handler, TranslatorRun

_CONTEXT = "SF_CONTEXT_"
_SHOWN = 200  # characters of an error's own text, where payload may be shown


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
        self._names = {
            "request": _name(plan.request_translator),
            "response": _name(plan.response_translator),
        }
        self._surroundings = exact_json.write(
            {
                "serviceUrl": plan.function.url,
                "contextHeaders": {_CONTEXT + key: text for key, text in plan.context.items()},
            }
        )

    def close(self) -> None:
        """End the processes of translators in Python."""
        for run in (self._request, self._response):
            if isinstance(run, TranslatorProcess):
                run.close()

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
        except TranslatorFailure as failure:
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
        except TranslatorFailure as failure:
            raise self._failed("response", failure) from failure
        if translated.body is None:
            raise self._failed("response", TranslatorFailure("it returned no body"))
        return translated.body

    def _failed(self, which: str, failure: TranslatorFailure) -> TranslatorFailed:
        reason = str(failure)
        if self._shows_payload and failure.detail:
            reason = f"{reason}: {failure.detail[:_SHOWN]}"
        return TranslatorFailed(
            function=self._function,
            which=which,
            translator=self._names[which],
            reason=reason.rstrip("."),
        )


def _runner(translator: Translator | Handler | None) -> TranslatorRun | None:
    if translator is None:
        return None
    if not isinstance(translator, Translator):
        return PythonRun(lambda: translator)
    check_engine(translator)
    if translator.language is Language.PYTHON:
        return TranslatorProcess(translator)
    return partial(run_script, translator)


def _name(translator: Translator | Handler | None) -> str:
    if isinstance(translator, Translator):
        return translator.name
    return getattr(translator, "__qualname__", type(translator).__name__)


def _check_suffix(url: str, suffix: str) -> None:
    """Refuse a suffix that changes what is before it; prefixes are checked when it is called."""
    try:
        base, whole = parse_url(url), parse_url(url + suffix)
    except UrlRefused as error:
        raise TranslatorFailure(f"the URL with its urlSuffix {error.fields['reason']}") from None
    if not is_extended(whole, base):
        raise TranslatorFailure(
            "its urlSuffix leads away from the function's URL: it begins with / or ?, "
            "or with & where the URL has a query"
        )
