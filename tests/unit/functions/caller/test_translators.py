"""Translators rewrite requests and replies, keep numbers exact, and fail without showing data."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.functions.caller.plan import CallerOptions
from snowmelt.functions.caller.translator_runtime import TranslatorError, TranslatorOutput
from snowmelt.functions.caller.translators import (
    TranslatorPair,
    TranslatorProcess,
    run_javascript_translator,
)
from snowmelt.functions.definition import Translator, TranslatorLanguage
from snowmelt.functions.errors import TranslatorFailed
from snowmelt.json import exact
from support.call_plans import URL, plan

BODY = b'{"data":[[0,"Warsaw"],[1,"Toronto"]]}'


def javascript(source, argument="event"):
    return Translator("DB.S.T", TranslatorLanguage.JAVASCRIPT, argument, source)


def python(source, handler="handler"):
    return Translator("DB.S.T", TranslatorLanguage.PYTHON, "event", source, handler)


def translators(request=None, response=None, *, debug_payload=False, **changes):
    planned = plan(CallerOptions(debug_payload=debug_payload))
    return TranslatorPair(
        replace(planned, request_translator=request, response_translator=response, **changes)
    )


def both_ways(source_js, source_py):
    return pytest.mark.parametrize(
        "translator", [javascript(source_js), python(source_py)], ids=["javascript", "python"]
    )


def test_without_translators_bodies_are_what_they_were():
    plain = translators()
    assert plain.translate_request(BODY) == TranslatorOutput(BODY)
    assert plain.translate_response(BODY, None) is BODY


@both_ways(
    """
    let documents = [];
    for (let i = 0; i < event.body.data.length; i++) {
        documents.push({"id": event.body.data[i][0], "text": event.body.data[i][1]});
    }
    return {"body": {"documents": documents}, "urlSuffix": "/batch?v=2", "translatorData": {"n": 2}};
    """,
    """
def handler(event):
    documents = [{"id": n, "text": text} for n, text in event["body"]["data"]]
    return {"body": {"documents": documents}, "urlSuffix": "/batch?v=2", "translatorData": {"n": 2}}
""",
)
def test_a_request_becomes_what_the_service_expects(translator):
    translated = translators(translator).translate_request(BODY)
    assert json.loads(translated.body) == {
        "documents": [{"id": 0, "text": "Warsaw"}, {"id": 1, "text": "Toronto"}]
    }
    assert translated.url_suffix == "/batch?v=2"
    assert translated.translator_data == b'{"n":2}'


@both_ways(
    """
    const add = EVENT.translatorData.add;
    return {body: {data: event.body.results.map((each, at) => [at, each + add])}};
    """,
    """
def handler(event):
    add = event["translatorData"]["add"]
    return {"body": {"data": [[n, v + add] for n, v in enumerate(event["body"]["results"])]}}
""",
)
def test_a_reply_becomes_rows_with_what_the_request_left_for_it(translator):
    found = translators(response=translator).translate_response(b'{"results":[1,2]}', b'{"add":10}')
    assert found == b'{"data":[[0,11],[1,12]]}'


@both_ways(
    "return {body: [event.serviceUrl, event.contextHeaders]}",
    "def handler(event):\n    return {'body': [event['serviceUrl'], event['contextHeaders']]}",
)
def test_a_request_s_translator_sees_url_and_context(translator):
    found = translators(translator, context={"CURRENT_USER": "Zoë"}).translate_request(BODY)
    assert json.loads(found.body) == [URL, {"SF_CONTEXT_CURRENT_USER": "Zoë"}]


@both_ways("return {}", "def handler(event):\n    return {}")
def test_a_request_without_body_is_one(translator):
    assert translators(translator).translate_request(BODY) == TranslatorOutput(None)


@both_ways(
    "return {body: 'a=' + event.body.data[0][1]}",
    "def handler(event):\n    return {'body': 'a=' + event['body']['data'][0][1]}",
)
def test_a_body_that_is_a_text_is_sent_as_it_is(translator):
    assert translators(translator).translate_request(BODY).body == b"a=Warsaw"


@both_ways(
    "return {body: {data: event.body.split(',').map((each, at) => [at, each])}}",
    "def handler(event):\n"
    "    return {'body': {'data': [[*each] for each in enumerate(event['body'].split(','))]}}",
)
def test_a_reply_that_is_no_json_is_a_text(translator):
    found = translators(response=translator).translate_response(b"52.23,43.65", None)
    assert found == b'{"data":[[0,"52.23"],[1,"43.65"]]}'


@both_ways("return {body: event.body}", "def handler(event):\n    return {'body': event['body']}")
@pytest.mark.parametrize(
    "number",
    ["9007199254740993", "-99999999999999999999999999999999999999", "0.1", "1.5e300", "-2e-7"],
)
def test_numbers_that_are_passed_on_keep_every_digit(translator, number):
    body = b'{"data":[[0,%b,{"a":[%b]}]]}' % ((number.encode(),) * 2)
    sent: Any = exact.parse_json(translators(translator).translate_request(body).body)
    (row,) = sent["data"]
    assert row == [
        0,
        exact.parse_json(number.encode()),
        {"a": [exact.parse_json(number.encode())]},
    ]
    reply = translators(response=translator).translate_response(body, None)
    assert exact.parse_json(reply) == exact.parse_json(body)


@both_ways(
    "return {body: 1, translatorData: event.body.data[0][1]}",
    "def handler(event):\n    return {'body': 1, 'translatorData': event['body']['data'][0][1]}",
)
def test_large_integers_survive_on_their_way_from_request_to_reply(translator):
    large = b"123456789012345678901234567890"
    data = translators(translator).translate_request(b'{"data":[[0,%b]]}' % large).translator_data
    back = javascript("return {body: {data: [[0, event.translatorData + 1n]]}}")
    assert data == large
    assert (
        translators(response=back).translate_response(b"0", data)
        == b'{"data":[[0,%b1]]}' % large[:-1]
    )


def test_large_integers_are_bigints_in_a_body_that_is_a_text_too():
    script = javascript("return {body: JSON.stringify({id: event.body.data[0][1]})}")
    body = b'{"data":[[0,9007199254740993]]}'
    assert translators(script).translate_request(body).body == b'{"id":9007199254740993}'


def test_python_sees_decimals_and_javascript_refuses_what_it_cannot_hold():
    body = b'{"data":[[0,12345678901234567890.123]]}'
    seen = []

    def noted(event):
        seen.append(event)
        return {}

    translators(noted).translate_request(body)
    assert seen[0]["body"]["data"] == [[0, Decimal("12345678901234567890.123")]]
    with pytest.raises(TranslatorFailed, match="more digits than JavaScript supports"):
        translators(javascript("return event")).translate_request(body)
    with pytest.raises(TranslatorFailed, match="more digits"):
        translators(javascript("return event")).translate_request(b'{"data":[[0,1e400]]}')


@pytest.mark.parametrize(
    ("translator", "reason"),
    [
        (javascript("\nfunction g(r) {\n  return r.a.b;\n}\nreturn g(event);"), "TypeError in line 3, function g"),
        (javascript("return event.body.data[7][0]"), "TypeError in line 1"),
        (javascript("throw event.body.data[0][1]"), "an exception"),
        (javascript("throw new Error(event.body.data[0][1])"), "Error in line 1"),
        (javascript("return {"), "SyntaxError in line"),
        (javascript("event.self = event; return event"), "its result is not JSON"),
        (javascript("return undefined"), "its result is not JSON"),
        (javascript("return [1]"), "it returned an invalid result"),
        (javascript("return {urlSuffix: 1}"), "urlSuffix"),
        (python("def handler(event):\n    return event['Warsaw']"), "KeyError in line 2, function handler"),
        (python("def handler(event):\n    int(event['body']['data'][0][1])"), "ValueError in line 2"),
        (python("def handler(event) return"), "SyntaxError in line 1"),
        (python("def handler(event):\n    return {'urlSuffix': 1}"), "urlSuffix"),
        (python("x = 1"), "its source has no function handler"),
        (python("def handler(event):\n    return [1]"), "it returned an invalid result"),
        (python("def handler(event):\n    return {'body': {1j}}"), "its body cannot be written"),
    ],
)  # fmt: skip
def test_an_error_names_kind_and_line_and_never_the_data(translator, reason):
    with pytest.raises(TranslatorFailed) as failure:
        translators(translator).translate_request(BODY)
    text = str(failure.value)
    assert text.startswith("f: its request translator DB.S.T failed: ")
    assert reason in text
    assert "Warsaw" not in text


@pytest.mark.parametrize(
    "translator",
    [
        javascript("throw new Error(event.body.data[0][1])"),
        python("def handler(event):\n    raise ValueError(event['body']['data'][0][1])"),
    ],
)
def test_payload_is_shown_where_it_may_be(translator):
    with pytest.raises(TranslatorFailed, match=r"Error in line [12].*: .*Warsaw"):
        translators(translator, debug_payload=True).translate_request(BODY)


def test_a_reply_cannot_forge_what_the_request_left():
    script = javascript("return {body: {data: [[0, event.translatorData + typeof event.body]]}}")
    forged = b'1},"translatorData":{"x":1'
    found = translators(response=script).translate_response(forged, b'"kept "')
    assert found == b'{"data":[[0,"kept string"]]}'


def test_a_response_s_translator_must_give_a_body():
    with pytest.raises(
        TranslatorFailed, match=r"response translator DB\.S\.T failed: it returned no body"
    ):
        translators(response=javascript("return {}")).translate_response(BODY, None)


@pytest.mark.parametrize("suffix", ["/a/b", "?a=%20b", "/%C3%A9?x=1&y=2", ""])
def test_a_suffix_that_is_encoded_is_put_behind_the_url(suffix):
    assert (
        translators(lambda event: {"urlSuffix": suffix}).translate_request(BODY).url_suffix
        == suffix
    )


@pytest.mark.parametrize(
    ("suffix", "reason"),
    [
        ("/a b", "must be percent-encoded"),
        ("/é", "must be percent-encoded"),
        ("/%2", "must be percent-encoded"),
        ("/../admin", "has . or .. in its path"),
        ("/%2e%2e/admin", "has . or .. in its path"),
        ("_admin", "leads away from the function's URL"),
        (";x=1", "leads away"),
        ("%2Fadmin", "encoded /"),
        ("#x", "fragment"),
        ("/" + "a" * 9_000, "expected at most"),
    ],
)
def test_a_suffix_that_leads_astray_is_refused(suffix, reason):
    with pytest.raises(TranslatorFailed, match=reason) as failure:
        translators(lambda event: {"urlSuffix": suffix}).translate_request(BODY)
    assert suffix not in str(failure.value)


@pytest.mark.parametrize("suffix", [".evil.test/", "@evil.test/", ":81/", "0/x"])
def test_a_suffix_does_not_change_the_host(suffix):
    planned = plan(url="http://service.test:80")
    bare = TranslatorPair(replace(planned, request_translator=lambda event: {"urlSuffix": suffix}))
    with pytest.raises(TranslatorFailed):
        bare.translate_request(BODY)


@pytest.mark.parametrize(
    ("suffix", "fits"), [("&b=2", True), ("b", False), ("/x", False), ("?", False)]
)
def test_a_suffix_changes_no_parameter_of_the_url(suffix, fits):
    planned = plan(url="http://service.test:80/f?a=1")
    bare = TranslatorPair(replace(planned, request_translator=lambda event: {"urlSuffix": suffix}))
    if fits:
        assert bare.translate_request(BODY).url_suffix == suffix
    else:
        with pytest.raises(TranslatorFailed, match="leads away"):
            bare.translate_request(BODY)


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**38), 10**38)
    | st.floats(allow_nan=False, allow_infinity=False).filter(lambda number: number != 0)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(_JSON)
def test_what_a_script_passes_on_is_what_it_was_given(value):
    body = exact.serialize_json({"data": [[0, value]]})
    found = (
        translators(javascript("return {body: {data: event.body.data}}"))
        .translate_request(body)
        .body
    )
    # JavaScript writes 5.0 as 5, so integers are compared with what was an integer before.
    assert json.loads(found, parse_int=float) == json.loads(body, parse_int=float)
    before, after = (Counter(_integers(exact.parse_json(text))) for text in (body, found))
    assert before <= after


def _integers(value):
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, list):
        return [number for each in value for number in _integers(each)]
    return [value] if type(value) is int else []


def test_a_script_that_no_engine_interrupts_is_stopped():
    source = "return {body: /^(a+)+$/.test('a'.repeat(60) + '!')}"
    with pytest.raises(TranslatorError, match=r"it took longer than 0.5 s of processing time"):
        run_javascript_translator(javascript(source), b"1", b"{}", max_cpu_s=0.5)
    assert run_javascript_translator(javascript("return {body: 1}"), b"1", b"{}").body == b"1"


def test_a_script_that_crashes_its_engine_is_an_error_like_any_other():
    source = "let a = []; for (let i = 0; i < 20000; i++) a = [a]; return {body: a}"
    with pytest.raises(TranslatorFailed) as raised:
        translators(javascript(source)).translate_request(BODY)
    text = str(raised.value)
    assert text.startswith("f: its request translator DB.S.T failed: ")
    assert "its process crashed (SIGSEGV)" in text or "nests too deeply" in text
    assert translators(javascript("return {body: 1}")).translate_request(BODY).body == b"1"


def test_a_document_that_nests_deeply_is_an_error_or_a_value():
    deep = b"[" * 50_000 + b"]" * 50_000
    for translator in (javascript("return {body: 1}"), python("def handler(event): return {}")):
        try:
            translators(translator).translate_request(deep)
        except TranslatorFailed as error:
            assert "DB.S.T failed: " in str(error)  # noqa: PT017 - either is right


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import time\ndef handler(event): time.sleep(60)", "it took longer than 0.5 s"),
        ("def handler(event):\n  while True: pass", "it took longer than 1 s of processing time"),
        ("import os\ndef handler(event): os._exit(3)", "its process ended with exit status 3"),
        ("import os\ndef handler(event): os.abort()", r"its process crashed \(SIGABRT\)"),
        ("def handler(event): return {'body': 'x' * 2**40}", "MemoryError|too much memory"),
    ],
)
def test_a_translator_in_python_is_stopped_and_harms_nothing_else(source, reason):
    waits = "sleep" in source
    process = TranslatorProcess(python(source), max_cpu_s=1, max_wall_s=0.5 if waits else 60)
    with contextlib.closing(process), pytest.raises(TranslatorError, match=reason):
        process(b"1", b"{}")


def test_a_translator_whose_process_reads_nothing_more_is_stopped():
    # It answers, then holds the process: what is sent next fills the socket and waits.
    holding = python(
        "import os, signal, threading\n"
        "def handler(event):\n"
        "  threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGSTOP)).start()\n"
        "  return {'body': 1}"
    )
    process = TranslatorProcess(holding, max_cpu_s=60, max_wall_s=2)
    large = b'"' + b"x" * (16 << 20) + b'"'

    def send_until_it_holds():
        while True:
            process(large, b"{}")

    with contextlib.closing(process):
        assert process(b"1", b"{}").body == b"1"
        with pytest.raises(TranslatorError, match=r"it took longer than 2 s"):
            send_until_it_holds()


def test_a_translator_in_python_keeps_nothing_for_another_task():
    counting = python(
        "seen = []\ndef handler(e):\n  seen.append(e['body'])\n  return {'body': seen}"
    )
    for body in (b"1", b"2"):
        task = translators(counting)
        with contextlib.closing(task):
            assert task.translate_request(body).body == b"[%b]" % body
            assert task.translate_request(b"3").body == b"[%b,3]" % body


def test_what_a_translator_prints_is_no_answer():
    printing = python("print('out')\ndef handler(e):\n  print('x' * 100)\n  return {'body': 1}")
    assert translators(printing).translate_request(b"1").body == b"1"
