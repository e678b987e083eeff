"""Text of any encoding becomes that of another; what is none of it is located."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.errors import LoadRefused, PhaseFailed
from snowmelt.load.filters import definition
from snowmelt.load.phase_protocols import ByteReader
from support.phases import built


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def converted(data: bytes, size: int = 1 << 20, **parameters: Any) -> bytes:
    made = built(definition("Iconverter"), parameters)
    return b"".join(made.run(ByteReader(cut(data, size))))


@given(
    text=st.text(max_size=40),
    source=st.sampled_from(["UTF-16", "utf-16-be", "UTF-32", "UTF-8", "utf-7", "GB18030"]),
    target=st.sampled_from(["UTF-8", "UTF-16", "UTF-32LE", "GB18030"]),
    size=st.integers(1, 11),
)
def test_any_text_in_any_cut(text: str, source: Any, target: Any, size: int) -> None:
    data = text.encode(source)
    found = converted(data, size, from_encoding=source, to_encoding=target)
    assert found == text.encode(target) or (not text and len(found) == 2)


def test_utf_16_becomes_utf_8_when_nothing_is_said() -> None:
    assert converted("Grüße €\n".encode("utf-16")) == "Grüße €\n".encode()


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("WINDOWS-1252", "€ Grüße"),
        ("ISO-8859-1", "Grüße"),
        ("SHIFT_JIS", "雪解け"),
        ("ISO-2022-JP", "雪a解け"),
        ("CP437", "█é"),
        ("EUC-KR", "눈"),
        ("UCS-2LE", "雪"),
    ],
)
def test_encodings_by_the_names_of_iconv(encoding: str, text: str) -> None:
    raw = text.encode("utf-16-le" if encoding == "UCS-2LE" else encoding)
    assert converted(raw, 1, from_encoding=encoding) == text.encode()
    assert converted(text.encode(), 1, from_encoding="UTF-8", to_encoding=encoding) == raw


@pytest.mark.parametrize("size", [1, 2, 5, 1000])
@pytest.mark.parametrize(
    ("encoding", "good", "bad"),
    [
        ("UTF-8", "Grüße ".encode(), b"\xff"),
        ("UTF-8", "Grüße ".encode(), b"\xc3("),
        ("UTF-16-LE", "Grüße ".encode("utf-16-le"), b"\x00\xdc"),
        ("UTF-16", "Grüße ".encode("utf-16"), b"\x00\xdc"),
        ("ASCII", b"text ", b"\x80"),
        ("SHIFT_JIS", "雪解け".encode("shift_jis"), b"\x81\x20"),
        ("CP1252", b"text", b"\x81"),
    ],
)
def test_illegal_bytes_are_located(encoding: str, good: bytes, bad: bytes, size: int) -> None:
    with pytest.raises(PhaseFailed, match=f"byte {len(good)} ") as failure:
        converted(good + bad + b"a\0" * 20, size, from_encoding=encoding)
    assert failure.value.fields["offset"] == len(good)


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("encoding", "data", "missing"),
    [
        ("UTF-8", "a€".encode(), 1),
        ("UTF-16-LE", "ab".encode("utf-16-le"), 1),
        ("UTF-16-BE", "a😀".encode("utf-16-be"), 2),
        ("SHIFT_JIS", "a雪".encode("shift_jis"), 1),
        ("UTF-32-LE", "ab".encode("utf-32-le"), 3),
    ],
)
def test_a_character_that_is_incomplete_at_the_end_is_located(
    encoding: str, data: bytes, missing: int, size: int
) -> None:
    start = len("a".encode(encoding))
    with pytest.raises(PhaseFailed, match=f"byte {start} ") as failure:
        converted(data[:-missing], size, from_encoding=encoding)
    assert failure.value.fields["offset"] == start


def test_what_the_new_encoding_does_not_have_is_named() -> None:
    with pytest.raises(
        PhaseFailed, match=r"'雪' \(U\+96EA\), character 1 after byte 5.* iso8859-1"
    ):
        converted("abcdef雪".encode(), 5, from_encoding="UTF-8", to_encoding="ISO-8859-1")


@pytest.mark.parametrize("name", ["", "KLINGON", "rot13", "base64", "idna-nothing"])
def test_unknown_encodings_are_refused(name: str) -> None:
    with pytest.raises(LoadRefused, match="unknown encoding"):
        built(definition("Iconverter"), {"from_encoding": name})


@pytest.mark.parametrize("size", [1, 2, 100])
def test_the_mark_of_utf_8_goes_and_nothing_else(size: int) -> None:
    strip = built(definition("StripBom"), {})
    for data, wanted in [
        (b"\xef\xbb\xbftext", b"text"),
        (b"\xef\xbb\xbf\xef\xbb\xbf", b"\xef\xbb\xbf"),
        (b"\xef\xbbtext", b"\xef\xbbtext"),
        (b"\xef\xbb", b"\xef\xbb"),
        (b"", b""),
    ]:
        assert b"".join(strip.run(ByteReader(cut(data, size)))) == wanted
