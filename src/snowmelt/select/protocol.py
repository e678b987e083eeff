"""A SelectObjectContentRequest in XML, read into a SelectRequest (specification §1.6)."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar
from xml.parsers import expat
from zlib import crc32

from snowmelt.select.dialect import Dialect
from snowmelt.select.errors import SelectError
from snowmelt.select.request import (
    Compression,
    CsvInput,
    CsvOutput,
    Header,
    Input,
    JsonInput,
    JsonOutput,
    Output,
    ParquetInput,
    ScanRange,
    SelectRequest,
)

if TYPE_CHECKING:
    from enum import StrEnum

# --- XML as S3 clients really write it: delimiters stand raw in it, whatever XML says of them.
#
# Clients put `\r\n` and `\x01` into a text as they are. A parser of XML folds the first into
# `\n` and refuses the second, so both are carried past it in disguise: each control byte of a
# text travels as a character that the document does not use (specification of Select, §1.6).

_DEEPEST = 16
# A tag (what CDATA holds is text), a raw control byte, or a reference to a control character.
_CONTROL = re.compile(
    rb"<(?!!\[CDATA\[)[^>]*>|[\x00-\x1f]|&#(?:0*([0-9]{1,2})|[xX]0*(1?[0-9a-fA-F]));"
)
_ELEMENT = re.compile(rb"<[^?!]")
_CONTROLS = 0x20
_PRIVATE_USE = range(0xE000, 0xF8E0, _CONTROLS)


@dataclass(slots=True)
class Element:
    """A tag's local name, its own text as the client meant it, and the elements inside."""

    name: str
    text: str = ""
    children: list[Element] = field(default_factory=list)

    def child(self, name: str) -> Element | None:
        """Return the one element of this name, None when there is none.

        Raises:
            SelectError: It stands there twice.
        """
        found = [child for child in self.children if child.name == name]
        if len(found) > 1:
            raise malformed(f"<{self.name}> holds <{name}> {len(found)} times; once is right")
        return found[0] if found else None

    def only(self, *names: str) -> None:
        """Refuse children with other names, so that a misspelt option is not lost in silence.

        Raises:
            SelectError: An unknown element, or text where elements belong.
        """
        for child in self.children:
            if child.name not in names:
                known = ", ".join(names)
                raise malformed(f"<{self.name}> cannot hold <{child.name}>; it takes {known}")
        if names and self.text.strip():
            raise malformed(f"<{self.name}> holds text where elements belong")


def malformed(reason: str) -> SelectError:
    """Return the error for a document that is no request."""
    return SelectError("MalformedXML", f"The request's XML is not valid: {reason}.")


def parse_elements(body: bytes) -> Element:
    """Read a document.

    Raises:
        SelectError: It is empty, no XML, too deep, or declares a document type.
    """
    if not body.strip():
        raise SelectError("EmptyRequestBody", "The request has no body; it must be XML.")
    base = _unused(body)
    parser = expat.ParserCreate(encoding="utf-8", namespace_separator=" ")
    builder = _Builder(base)
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.characters
    parser.StartDoctypeDeclHandler = builder.doctype
    parser.buffer_text = True
    try:
        parser.Parse(_disguised(body, base), True)
    except expat.ExpatError as error:
        place = f"line {error.lineno}, column {error.offset + 1}"
        raise malformed(f"{expat.ErrorString(error.code)} at {place}") from error
    return builder.root


class _Builder:
    def __init__(self, base: int) -> None:
        self._open: list[Element] = [Element("")]
        self._plain = {base + control: control for control in range(_CONTROLS)}

    @property
    def root(self) -> Element:
        return self._open[0].children[0]

    def start(self, name: str, attributes: dict[str, str]) -> None:
        del attributes
        if len(self._open) > _DEEPEST:
            raise malformed(f"elements lie more than {_DEEPEST} deep")
        element = Element(name.rpartition(" ")[2])
        self._open[-1].children.append(element)
        self._open.append(element)

    def end(self, name: str) -> None:
        del name
        self._open.pop()

    def characters(self, text: str) -> None:
        self._open[-1].text += text.translate(self._plain)

    def doctype(self, *declaration: object) -> None:
        del declaration
        raise malformed("it declares a document type, which no request needs")


def _unused(body: bytes) -> int:
    text = body.decode("utf-8", errors="replace")
    taken = {
        (ord(one) - _PRIVATE_USE.start) // _CONTROLS for one in set(text) if ord(one) >= 0xE000
    }
    for place, base in enumerate(_PRIVATE_USE):
        if place not in taken:
            return base
    raise malformed("it uses every private character there is")


def _disguised(body: bytes, base: int) -> bytes:
    def replace(match: re.Match[bytes]) -> bytes:
        found = match.group()
        if found[:1] == b"<":
            return found
        decimal, hexadecimal = match.groups()
        if decimal is not None:
            control = int(decimal)
        else:
            control = int(hexadecimal, 16) if hexadecimal else found[0]
        return chr(base + control).encode() if control < _CONTROLS else found

    # Before the first element's tag line ends are no text, and disguised they would be errors.
    body = body.strip()
    first = _ELEMENT.search(body)
    start = first.start() if first else 0
    return body[:start] + _CONTROL.sub(replace, body[start:])


REQUEST = (
    "Expression",
    "ExpressionType",
    "RequestProgress",
    "InputSerialization",
    "OutputSerialization",
    "ScanRange",
)
CSV_INPUT = (
    "FileHeaderInfo",
    "Comments",
    "QuoteEscapeCharacter",
    "RecordDelimiter",
    "FieldDelimiter",
    "QuoteCharacter",
    "AllowQuotedRecordDelimiter",
)
JSON_INPUT = ("Type",)
CSV_OUTPUT = (
    "QuoteFields",
    "QuoteEscapeCharacter",
    "RecordDelimiter",
    "FieldDelimiter",
    "QuoteCharacter",
)
JSON_OUTPUT = ("RecordDelimiter",)

_ROOTS = ("SelectObjectContentRequest", "SelectRequest")
_LONGEST_NUMBER = 19

_Choice = TypeVar("_Choice", bound="StrEnum")


def read_request(body: bytes, *, dialect: Dialect = Dialect.AWS) -> SelectRequest:
    """Read a request's body; what it leaves out takes the dialect's default.

    Raises:
        SelectError: The XML, an element or an option is not as it must be.
    """
    root = parse_elements(body)
    if root.name not in _ROOTS:
        raise malformed(f"the document is <{root.name}>, not <{_ROOTS[0]}>")
    root.only(*REQUEST)
    expression = _required(root, "Expression").text
    kind = _required(root, "ExpressionType").text.strip()
    if kind.upper() != "SQL":
        raise SelectError("InvalidExpressionType", f"ExpressionType is {kind!r}; it must be SQL.")
    source = _required(root, "InputSerialization")
    scan_range = root.child("ScanRange")
    progress = root.child("RequestProgress")
    return SelectRequest(
        expression=expression,
        input=_input(source, dialect),
        output=_output(_required(root, "OutputSerialization"), dialect),
        compression=_compression(source),
        scan_range=None if scan_range is None else _scan_range(scan_range),
        progress=progress is not None and _flag(progress, "Enabled"),
        dialect=dialect,
    )


def _required(parent: Element, name: str) -> Element:
    found = parent.child(name)
    if found is None:
        raise SelectError("MissingRequiredParameter", f"<{parent.name}> must hold <{name}>.")
    return found


def _one_form(parent: Element, *names: str) -> Element:
    parent.only(*names, "CompressionType")
    forms = [child for child in parent.children if child.name in names]
    if len(forms) != 1:
        code = "ObjectSerializationConflict" if forms else "MissingRequiredParameter"
        choice = " or ".join(f"<{name}>" for name in names)
        raise SelectError(code, f"<{parent.name}> must hold exactly one of {choice}.")
    return forms[0]


def _input(source: Element, dialect: Dialect) -> Input:
    form = _one_form(source, "CSV", "JSON", "Parquet")
    if form.name == "JSON":
        return JsonInput(lines=_json_type(form) == "LINES")
    if form.name == "Parquet":
        if _compression(source) is not Compression.NONE:
            raise SelectError(
                "InvalidCompressionFormat",
                "Parquet is compressed inside; its CompressionType must be NONE.",
            )
        return ParquetInput()
    form.only(*CSV_INPUT)
    quote = _bytes(form, "QuoteCharacter", b'"')
    aws = dialect is Dialect.AWS
    return CsvInput(
        header=_choice(form, "FileHeaderInfo", Header.NONE, "InvalidFileHeaderInfo"),
        record_delimiter=_bytes(form, "RecordDelimiter", b"\n", filled=True),
        field_delimiter=_bytes(form, "FieldDelimiter", b",", filled=True),
        quote=quote,
        escape=_bytes(form, "QuoteEscapeCharacter", quote if aws else b"\\"),
        comment=_bytes(form, "Comments", b"#" if aws else b""),
        quoted_record_delimiter=_flag(form, "AllowQuotedRecordDelimiter"),
    )


def _output(target: Element, dialect: Dialect) -> Output:
    form = _one_form(target, "CSV", "JSON")
    if form.name == "JSON":
        form.only(*JSON_OUTPUT)
        return JsonOutput(_bytes(form, "RecordDelimiter", b"\n"))
    form.only(*CSV_OUTPUT)
    fields = form.child("QuoteFields")
    said = "ASNEEDED" if fields is None else fields.text.strip().upper()
    if said not in {"ASNEEDED", "ALWAYS"}:
        raise SelectError(
            "InvalidQuoteFields", f"QuoteFields is {said!r}; it must be ASNEEDED or ALWAYS."
        )
    if fields is not None and said == "ASNEEDED" and dialect.is_ceph:
        raise SelectError(
            "InvalidQuoteFields",
            f"QuoteFields ASNEEDED is not part of dialect {dialect}, which quotes all fields or "
            "none. Send ALWAYS, or leave QuoteFields out.",
        )
    quote = _bytes(form, "QuoteCharacter", b'"')
    return CsvOutput(
        quote_always=said == "ALWAYS",
        quote=quote,
        escape=_bytes(form, "QuoteEscapeCharacter", quote if dialect is Dialect.AWS else b"\\"),
        field_delimiter=_bytes(form, "FieldDelimiter", b","),
        record_delimiter=_bytes(form, "RecordDelimiter", b"\n"),
    )


def _json_type(form: Element) -> str:
    form.only(*JSON_INPUT)
    element = form.child("Type")
    said = "DOCUMENT" if element is None else element.text.strip().upper()
    if said not in {"LINES", "DOCUMENT"}:
        raise SelectError(
            "InvalidJsonType", f"JSON Type is {said!r}; it must be LINES or DOCUMENT."
        )
    return said


def _compression(source: Element) -> Compression:
    return _choice(source, "CompressionType", Compression.NONE, "InvalidCompressionFormat")


def _choice(parent: Element, name: str, default: _Choice, code: str) -> _Choice:
    element = parent.child(name)
    if element is None or not element.text.strip():
        return default
    choices = type(default)
    said = element.text.strip().upper()
    if said not in {choice.value for choice in choices}:
        known = ", ".join(choice.value for choice in choices)
        raise SelectError(code, f"{name} is {said!r}; it must be one of {known}.")
    return choices(said)


def _bytes(parent: Element, name: str, default: bytes, *, filled: bool = False) -> bytes:
    """Return a delimiter exactly as it was sent: blanks and control characters count."""
    element = parent.child(name)
    if element is None:
        return default
    if filled and not element.text:
        raise SelectError("InvalidRequestParameter", f"{name} is empty; it needs a character.")
    return element.text.encode()


def _flag(parent: Element, name: str) -> bool:
    element = parent.child(name)
    if element is None:
        return False
    said = element.text.strip().lower()
    if said not in {"true", "false"}:
        raise malformed(f"<{name}> is {said!r}; it must be true or false")
    return said == "true"


def _scan_range(element: Element) -> ScanRange:
    element.only("Start", "End")
    start, end = _offset(element, "Start"), _offset(element, "End")
    if start is None and end is None:
        raise SelectError("InvalidScanRange", "ScanRange needs a Start, an End, or both.")
    if start is not None and end is not None and start > end:
        raise SelectError("InvalidScanRange", f"ScanRange starts at {start}, after its end {end}.")
    return ScanRange(start, end)


def _offset(parent: Element, name: str) -> int | None:
    element = parent.child(name)
    if element is None:
        return None
    said = element.text.strip()
    if not (said.isascii() and said.isdigit()) or len(said) > _LONGEST_NUMBER:
        raise SelectError(
            "InvalidScanRange", f"{name} is {said[:40]!r}; it must be a whole number from 0."
        )
    return int(said)


# --- The frames of an answer, byte by byte (specification of Select, §1.7).
#
# A frame: total length, length of headers, CRC-32 of these eight bytes, headers, payload, CRC-32
# of everything before; numbers are unsigned, 32 bits, big endian.

_PRELUDE = struct.Struct(">II")
_CHECKSUM = struct.Struct(">I")
_OVERHEAD = _PRELUDE.size + 2 * _CHECKSUM.size
_TEXT = 7
# Some decoders take no value beyond 32 KiB; characters have up to four bytes.
_LONGEST_VALUE = 8000


def _header(name: str, value: str) -> bytes:
    encoded = value[:_LONGEST_VALUE].encode(errors="replace")
    head = struct.pack(">B", len(name)) + name.encode() + struct.pack(">BH", _TEXT, len(encoded))
    return head + encoded


def _frame(headers: bytes, payload: bytes = b"") -> bytes:
    prelude = _PRELUDE.pack(_OVERHEAD + len(headers) + len(payload), len(headers))
    start = prelude + _CHECKSUM.pack(crc32(prelude)) + headers
    return b"".join((start, payload, _CHECKSUM.pack(crc32(payload, crc32(start)))))


def _event(kind: str, content: str | None = None) -> bytes:
    typed = b"" if content is None else _header(":content-type", content)
    return _header(":message-type", "event") + typed + _header(":event-type", kind)


_RECORDS = _event("Records", "application/octet-stream")
_PROGRESS = _event("Progress", "text/xml")
_STATS = _event("Stats", "text/xml")

CONT = _frame(_event("Cont"))
END = _frame(_event("End"))


def records(payload: bytes) -> bytes:
    """Return a frame of output."""
    return _frame(_RECORDS, payload)


def progress(scanned: int, processed: int, returned: int) -> bytes:
    """Return a frame that tells bytes read, bytes after decompression and bytes of output."""
    return _frame(_PROGRESS, _counts("Progress", scanned, processed, returned))


def stats(scanned: int, processed: int, returned: int) -> bytes:
    """Return the frame before the last, with the same counts as `progress`."""
    return _frame(_STATS, _counts("Stats", scanned, processed, returned))


def error(code: str, message: str) -> bytes:
    """Return the frame that ends an answer in the middle; nothing follows it."""
    return _frame(
        _header(":message-type", "error")
        + _header(":error-code", code)
        + _header(":error-message", message)
    )


def _counts(name: str, scanned: int, processed: int, returned: int) -> bytes:
    return (
        f'<?xml version="1.0" encoding="UTF-8"?><{name}><BytesScanned>{scanned}</BytesScanned>'
        f"<BytesProcessed>{processed}</BytesProcessed><BytesReturned>{returned}</BytesReturned>"
        f"</{name}>"
    ).encode()
