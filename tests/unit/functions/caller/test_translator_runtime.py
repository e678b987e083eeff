"""Scripts run confined: within bounds of time and memory, and with no way out."""

from __future__ import annotations

import json

import pytest

from snowmelt.functions.caller.translator_runtime import JavaScriptFunction, TranslatorError


def test_the_object_is_found_under_its_name_and_its_name_in_capitals():
    script = JavaScriptFunction("event", "return [event.body, EVENT.a, event === EVENT]")
    assert json.loads(script.run(b"1", b'{"a":2}')) == [1, 2, True]


def test_an_argument_written_in_capitals_is_found_as_such():
    assert JavaScriptFunction("EVENT", "return EVENT").run(None, b"{}") == "{}"


def test_braces_of_the_source_end_nothing():
    with pytest.raises(TranslatorError, match="SyntaxError"):
        JavaScriptFunction("event", "} ; throw 1; {").run(b"1", b"{}")


def test_a_script_that_never_ends_is_stopped_and_works_for_the_next_object():
    script = JavaScriptFunction("event", "while (event.body); return 1", max_cpu_s=0.1)
    for _ in range(2):
        with pytest.raises(TranslatorError, match=r"it took longer than 0.1 s"):
            script.run(b"true", b"{}")
        assert script.run(b"false", b"{}") == "1"


def test_a_script_that_needs_too_much_memory_is_stopped_and_works_for_the_next_object():
    source = "let a = []; while (event.body) a.push([a.length]); return 1"
    script = JavaScriptFunction("event", source, max_memory_bytes=8_000_000)
    with pytest.raises(TranslatorError, match="it needed more than 8000000 bytes"):
        script.run(b"true", b"{}")
    assert script.run(b"false", b"{}") == "1"


def test_endless_recursion_is_an_error_like_any_other():
    with pytest.raises(TranslatorError, match="InternalError in line 3"):
        JavaScriptFunction("event", "\nfunction f() { return f() + 1 }\nreturn f()").run(
            b"1", b"{}"
        )


def test_scripts_have_no_way_out():
    names = ("require", "std", "os", "fetch", "process", "globalThis.scriptArgs")
    source = f"return [{', '.join(f'typeof {name}' for name in names)}]"
    assert set(json.loads(JavaScriptFunction("event", source).run(b"1", b"{}"))) == {"undefined"}


def test_an_object_that_nests_deeply_is_an_error_or_a_value():
    script = JavaScriptFunction("event", "return event.body")
    deep = b"[" * 900 + b"9007199254740993" + b"]" * 900
    try:
        assert script.restore_integers(script.run(deep, b"{}").encode()) == deep
    except TranslatorError as error:
        assert "nests too deeply" in str(error)  # noqa: PT017 - either is right


@pytest.mark.parametrize("depth", [3_000, 5_000, 20_000])
def test_an_object_that_nests_too_deeply_for_the_engine_never_becomes_text(depth: int) -> None:
    script = JavaScriptFunction("event", "return event.body")
    deep = b"[" * depth + b"1" + b"]" * depth
    try:
        assert script.run(deep, b"{}").encode() == deep
    except TranslatorError as error:
        assert "nests too deeply" in str(error)  # noqa: PT017 - either is right


def test_half_a_surrogate_pair_and_zeros_pass():
    body = rb'["\ud800","\u0000"]'
    assert json.loads(JavaScriptFunction("e", "return e.body").run(body, b"{}")) == json.loads(body)


def test_text_that_is_not_utf_8_is_refused_with_its_place():
    with pytest.raises(TranslatorError, match="byte 1 of its input is not UTF-8"):
        JavaScriptFunction("e", "return e.body").run(b'"\xff"', b"{}")


def test_a_script_finds_nothing_that_it_left_behind():
    source = """
        const before = [typeof globalThis.n, typeof [].mine, typeof Object.prototype.mine];
        globalThis.n = Array.prototype.mine = Object.prototype.mine = e.secret;
        JSON.stringify = () => e.secret;
        return before
    """
    script = JavaScriptFunction("e", source)
    for _ in range(3):
        assert script.run(None, b'{"secret":"of another query"}') == "of another query"
    plain = JavaScriptFunction("e", source.replace("JSON.stringify = () => e.secret;", ""))
    for _ in range(3):
        found = json.loads(plain.run(None, b'{"secret":"of another query"}'))
        assert found == ["undefined"] * 3
