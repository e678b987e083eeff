"""Request and response translators of a function, for services with another format.

A request translator gets `{"body": {"data": …}, "serviceUrl": …, "contextHeaders": {…}}` and
returns any of `body` (JSON, or a string that is sent unchanged; without one the POST has no body),
`urlSuffix` (percent-encoded, appended to the function's URL) and `translatorData`. A response
translator gets `{"body": …, "translatorData": …}`, where a body that is not JSON is a string, and
returns `{"body": {"data": …}}` with the same row numbers in the same order.

Errors name the line and the function of the translator. They contain data only if the options
allow payload in errors.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from snowmelt.functions.caller.translator_process import (
    TranslatorProcess,
    require_translator_engine,
    run_javascript_translator,
)
from snowmelt.functions.caller.translator_runtime import (
    PythonTranslatorRunner,
    TranslatorError,
    TranslatorOutput,
)
from snowmelt.functions.definition import Translator, TranslatorLanguage
from snowmelt.functions.errors import TranslatorFailed, UrlRefused
from snowmelt.functions.urls import is_url_extension, parse_url
from snowmelt.json import exact

if TYPE_CHECKING:
    from snowmelt.functions.caller.plan import CallPlan
    from snowmelt.functions.caller.translator_runtime import TranslatorHandler, TranslatorRunner

_CONTEXT_HEADER_PREFIX = "SF_CONTEXT_"
_MAX_DETAIL_CHARS = 200  # characters of an error's own text, where payload may be shown


class TranslatorPair:
    """Both translators of a function, either of which may be missing; for any number of threads."""

    def __init__(self, plan: CallPlan) -> None:
        """Prepare.

        Raises:
            MissingExtra: A translator is JavaScript, and the engine is not installed.
        """
        self._function = plan.function.signature.name
        self._url = plan.function.url
        self._shows_payload = plan.options.debug_payload
        self._request_runner = _make_runner(plan.request_translator)
        self._response_runner = _make_runner(plan.response_translator)
        self._names = {
            "request": _get_translator_name(plan.request_translator),
            "response": _get_translator_name(plan.response_translator),
        }
        self._request_fields = exact.serialize_json(
            {
                "serviceUrl": plan.function.url,
                "contextHeaders": {
                    _CONTEXT_HEADER_PREFIX + key: text for key, text in plan.context.items()
                },
            }
        )

    def close(self) -> None:
        """End the processes of translators in Python."""
        for run in (self._request_runner, self._response_runner):
            if isinstance(run, TranslatorProcess):
                run.close()

    def translate_request(self, body: bytes) -> TranslatorOutput:
        """Return what is sent instead of a body.

        Raises:
            TranslatorFailed: The translator did, or its suffix leads away from the function's URL.
        """
        if self._request_runner is None:
            return TranslatorOutput(body)
        try:
            translated = self._request_runner(body, self._request_fields)
            if translated.url_suffix:
                _check_url_suffix(self._url, translated.url_suffix)
        except TranslatorError as failure:
            raise self._make_translator_failed("request", failure) from failure
        return translated

    def translate_response(self, body: bytes, translator_data: bytes | None) -> bytes:
        """Return what a reply's body means.

        Raises:
            TranslatorFailed: The translator did.
        """
        if self._response_runner is None:
            return body
        others = b"{}" if translator_data is None else b'{"translatorData":%b}' % translator_data
        try:
            translated = self._response_runner(body, others)
        except TranslatorError as failure:
            raise self._make_translator_failed("response", failure) from failure
        if translated.body is None:
            raise self._make_translator_failed("response", TranslatorError("it returned no body"))
        return translated.body

    def _make_translator_failed(self, which: str, failure: TranslatorError) -> TranslatorFailed:
        reason = str(failure)
        if self._shows_payload and failure.detail:
            reason = f"{reason}: {failure.detail[:_MAX_DETAIL_CHARS]}"
        return TranslatorFailed(
            function=self._function,
            which=which,
            translator=self._names[which],
            reason=reason.rstrip("."),
        )


def _make_runner(translator: Translator | TranslatorHandler | None) -> TranslatorRunner | None:
    if translator is None:
        return None
    if not isinstance(translator, Translator):
        return PythonTranslatorRunner(lambda: translator)
    require_translator_engine(translator)
    if translator.language is TranslatorLanguage.PYTHON:
        return TranslatorProcess(translator)
    return partial(run_javascript_translator, translator)


def _get_translator_name(translator: Translator | TranslatorHandler | None) -> str:
    if isinstance(translator, Translator):
        return translator.name
    return getattr(translator, "__qualname__", type(translator).__name__)


def _check_url_suffix(url: str, suffix: str) -> None:
    """Refuse a suffix that changes what is before it; prefixes are checked when it is called."""
    try:
        base, whole = parse_url(url), parse_url(url + suffix)
    except UrlRefused as error:
        raise TranslatorError(f"the URL with its urlSuffix {error.fields['reason']}") from None
    if not is_url_extension(whole, base):
        raise TranslatorError(
            "its urlSuffix leads away from the function's URL: it begins with / or ?, "
            "or with & where the URL has a query"
        )
