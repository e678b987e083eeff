"""XML with the control bytes that clients really send."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.select.errors import SelectError
from snowmelt.select.xml_request_and_event_stream import parse_xml


def _text(raw: bytes) -> str:
    return parse_xml(b"<a><b>" + raw + b"</b></a>").children[0].text


@pytest.mark.parametrize(
    ("raw", "meant"),
    [
        (b"\r\n", "\r\n"),
        (b"\r", "\r"),
        (b"\x01", "\x01"),
        (b"\x1e\x1f", "\x1e\x1f"),
        (b"\x00", "\x00"),
        (b" \t ", " \t "),
        (b"&#10;", "\n"),
        (b"&#xD;", "\r"),
        (b"&#x1;&#1;", "\x01\x01"),
        (b"&lt;&gt;&amp;&apos;&quot;", "<>&'\""),
        (b"<![CDATA[a\r\nb]]>", "a\r\nb"),
        ("\ue001\x02".encode(), "\ue001\x02"),
        ("þ".encode(), "þ"),
    ],
)
def test_a_text_arrives_as_the_client_meant_it(raw: bytes, meant: str) -> None:
    assert _text(raw) == meant


def test_namespaces_are_looked_through() -> None:
    root = parse_xml(b'<?xml version="1.0"?>\n<x:a xmlns:x="u"><x:b>1</x:b></x:a>')
    assert (root.name, root.children[0].name) == ("a", "b")


@pytest.mark.parametrize("body", [b"", b" \n "])
def test_no_body_is_its_own_error(body: bytes) -> None:
    with pytest.raises(SelectError) as caught:
        parse_xml(body)
    assert caught.value.s3_code == "EmptyRequestBody"


@pytest.mark.parametrize(
    "body",
    [
        b"<a>",
        b"a",
        b"<a></b>",
        b"<a>&nope;</a>",
        b"<a/><b/>",
        b'<!DOCTYPE a [<!ENTITY x "y">]><a>&x;</a>',
        b"<a>" * 100 + b"</a>" * 100,
        b"<a>\xff</a>",
    ],
)
def test_what_is_no_document_is_refused_with_a_sentence(body: bytes) -> None:
    with pytest.raises(SelectError, match="Invalid XML") as caught:
        parse_xml(body)
    assert caught.value.s3_code == "MalformedXML"


@given(st.binary(max_size=200))
def test_any_bytes_give_elements_or_the_right_error(body: bytes) -> None:
    try:
        outcome = parse_xml(body).name
    except SelectError as error:
        outcome = error.s3_code
    assert outcome


@given(st.text(alphabet=st.characters(max_codepoint=0x7F), max_size=60))
def test_every_ascii_text_survives_being_written_the_way_clients_write(text: str) -> None:
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    assert _text(escaped.encode()) == text
