"""Wire format of SelectObjectContent: XML requests in, event stream frames out.

XML requests (specification §1.6): clients put raw control bytes such as CR LF and 0x01 into the
text of delimiter elements. An XML parser converts CR LF to LF and rejects 0x01. Before parsing,
each control byte is therefore replaced by a private-use character that the document does not
contain. After parsing, the byte is restored.

Event stream frames (specification §1.7): total length, header length, CRC-32 of these eight bytes,
headers, payload, CRC-32 of all preceding bytes. Numbers are unsigned, 32 bits, big endian.
"""

from __future__ import annotations

import itertools
import re
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar
from xml.parsers import expat

from isal.isal_zlib import crc32

from snowmelt.select.dialect import Dialect
from snowmelt.select.errors import SelectError
from snowmelt.select.request import (
    CsvInput,
    CsvOutput,
    HeaderMode,
    InputFormat,
    JsonInput,
    JsonOutput,
    ObjectCompression,
    OutputFormat,
    ParquetInput,
    ScanRange,
    SelectRequest,
)

_MAX_DEPTH = 16
# A tag (CDATA is text), a raw control byte, or a character reference to a control character.
_TAG_OR_CONTROL_PATTERN = re.compile(
    rb"<(?!!\[CDATA\[)[^>]*>|[\x00-\x1f]|&#(?:0*([0-9]{1,2})|[xX]0*(1?[0-9a-fA-F]));"
)
_ELEMENT_START_PATTERN = re.compile(rb"<[^?!]")
_CONTROL_COUNT = 0x20
_PRIVATE_USE_BASES = range(0xE000, 0xF8E0, _CONTROL_COUNT)


@dataclass(slots=True)
class XmlElement:
    """XML element: local name, text with control characters restored, and child elements."""

    name: str
    text: str = ""
    children: list[XmlElement] = field(default_factory=list)

    def find_child(self, name: str) -> XmlElement | None:
        """Return the only child with this name, or None.

        Raises:
            SelectError: If there are several such children.
        """
        found = [child for child in self.children if child.name == name]
        if len(found) > 1:
            raise malformed_xml_error(
                f"<{self.name}> contains <{name}> {len(found)} times; expected at most once"
            )
        return found[0] if found else None

    def reject_other_children(self, *names: str) -> None:
        """Reject a child whose name is not listed, so that misspelled options are reported.

        Raises:
            SelectError: If there is an unknown child, or text in an element that may have children.
        """
        for child in self.children:
            if child.name not in names:
                known = ", ".join(names)
                raise malformed_xml_error(
                    f"<{self.name}> has an unknown element <{child.name}>; valid elements: {known}"
                )
        if names and self.text.strip():
            raise malformed_xml_error(f"<{self.name}> has text, but expects only elements")


def malformed_xml_error(reason: str) -> SelectError:
    """Return the error for a document that is not a valid request."""
    return SelectError("MalformedXML", f"Invalid XML in the request: {reason}.")


def parse_xml(body: bytes) -> XmlElement:
    """Parse a document.

    Raises:
        SelectError: If the document is empty, not XML, nested too deeply, or declares a document type.
    """
    if not body.strip():
        raise SelectError("EmptyRequestBody", "The request has no body; it must be XML.")
    base = _find_unused_private_range(body)
    parser = expat.ParserCreate(encoding="utf-8", namespace_separator=" ")
    builder = _XmlTreeBuilder(base)
    parser.StartElementHandler = builder.start_element
    parser.EndElementHandler = builder.end_element
    parser.CharacterDataHandler = builder.append_text
    parser.StartDoctypeDeclHandler = builder.reject_doctype
    parser.buffer_text = True
    try:
        parser.Parse(_escape_control_bytes(body, base), True)
    except expat.ExpatError as error:
        place = f"line {error.lineno}, column {error.offset + 1}"
        raise malformed_xml_error(f"{expat.ErrorString(error.code)} at {place}") from error
    return builder.root


class _XmlTreeBuilder:
    def __init__(self, control_base: int) -> None:
        self._open: list[XmlElement] = [XmlElement("")]
        self._control_by_code_point = {
            control_base + control: control for control in range(_CONTROL_COUNT)
        }

    @property
    def root(self) -> XmlElement:
        return self._open[0].children[0]

    def start_element(self, name: str, attributes: dict[str, str]) -> None:
        del attributes
        if len(self._open) > _MAX_DEPTH:
            raise malformed_xml_error(f"elements are nested more than {_MAX_DEPTH} levels deep")
        element = XmlElement(name.rpartition(" ")[2])
        self._open[-1].children.append(element)
        self._open.append(element)

    def end_element(self, name: str) -> None:
        del name
        self._open.pop()

    def append_text(self, text: str) -> None:
        self._open[-1].text += text.translate(self._control_by_code_point)

    def reject_doctype(self, *declaration: object) -> None:
        del declaration
        raise malformed_xml_error("it has a document type declaration, which is not allowed")


def _find_unused_private_range(body: bytes) -> int:
    text = body.decode("utf-8", errors="replace")
    taken = {
        (ord(one) - _PRIVATE_USE_BASES.start) // _CONTROL_COUNT
        for one in set(text)
        if ord(one) >= 0xE000
    }
    for place, base in enumerate(_PRIVATE_USE_BASES):
        if place not in taken:
            return base
    raise malformed_xml_error("it uses every private-use character")


def _escape_control_bytes(body: bytes, control_base: int) -> bytes:
    def replace(match: re.Match[bytes]) -> bytes:
        found = match.group()
        if found[:1] == b"<":
            return found
        decimal, hexadecimal = match.groups()
        if decimal is not None:
            control = int(decimal)
        else:
            control = int(hexadecimal, 16) if hexadecimal else found[0]
        return chr(control_base + control).encode() if control < _CONTROL_COUNT else found

    # Keep line ends before the first tag: they are not text, and a replacement would be a syntax
    # error.
    body = body.strip()
    first = _ELEMENT_START_PATTERN.search(body)
    start = first.start() if first else 0
    return body[:start] + _TAG_OR_CONTROL_PATTERN.sub(replace, body[start:])


REQUEST_ELEMENTS = (
    "Expression",
    "ExpressionType",
    "RequestProgress",
    "InputSerialization",
    "OutputSerialization",
    "ScanRange",
)
CSV_INPUT_ELEMENTS = (
    "FileHeaderInfo",
    "Comments",
    "QuoteEscapeCharacter",
    "RecordDelimiter",
    "FieldDelimiter",
    "QuoteCharacter",
    "AllowQuotedRecordDelimiter",
)
JSON_INPUT_ELEMENTS = ("Type",)
CSV_OUTPUT_ELEMENTS = (
    "QuoteFields",
    "QuoteEscapeCharacter",
    "RecordDelimiter",
    "FieldDelimiter",
    "QuoteCharacter",
)
JSON_OUTPUT_ELEMENTS = ("RecordDelimiter",)

_ROOT_ELEMENTS = ("SelectObjectContentRequest", "SelectRequest")
_MAX_OFFSET_DIGITS = 19

_Choice = TypeVar("_Choice", bound="StrEnum")


def parse_select_request(body: bytes, *, dialect: Dialect = Dialect.AWS) -> SelectRequest:
    """Parse the body of a request. Missing options have the dialect's defaults.

    Raises:
        SelectError: If the XML, an element or an option is invalid.
    """
    root = parse_xml(body)
    if root.name not in _ROOT_ELEMENTS:
        raise malformed_xml_error(f"the root element is <{root.name}>, not <{_ROOT_ELEMENTS[0]}>")
    root.reject_other_children(*REQUEST_ELEMENTS)
    expression = _require_child(root, "Expression").text
    kind = _require_child(root, "ExpressionType").text.strip()
    if kind.upper() != "SQL":
        raise SelectError("InvalidExpressionType", f"ExpressionType is {kind!r}; it must be SQL.")
    source = _require_child(root, "InputSerialization")
    scan_range = root.find_child("ScanRange")
    progress = root.find_child("RequestProgress")
    return SelectRequest(
        expression=expression,
        input=_parse_input(source, dialect),
        output=_parse_output(_require_child(root, "OutputSerialization"), dialect),
        compression=_parse_compression(source),
        scan_range=None if scan_range is None else _parse_scan_range(scan_range),
        progress=progress is not None and _parse_flag(progress, "Enabled"),
        dialect=dialect,
    )


def _require_child(parent: XmlElement, name: str) -> XmlElement:
    found = parent.find_child(name)
    if found is None:
        raise SelectError("MissingRequiredParameter", f"<{parent.name}> must hold <{name}>.")
    return found


def _require_one_format(parent: XmlElement, *names: str) -> XmlElement:
    parent.reject_other_children(*names, "CompressionType")
    forms = [child for child in parent.children if child.name in names]
    if len(forms) != 1:
        code = "ObjectSerializationConflict" if forms else "MissingRequiredParameter"
        choice = " or ".join(f"<{name}>" for name in names)
        raise SelectError(code, f"<{parent.name}> must contain exactly one of {choice}.")
    return forms[0]


def _parse_input(element: XmlElement, dialect: Dialect) -> InputFormat:
    form = _require_one_format(element, "CSV", "JSON", "Parquet")
    if form.name == "JSON":
        return JsonInput(lines=_parse_json_type(form) == "LINES")
    if form.name == "Parquet":
        if _parse_compression(element) is not ObjectCompression.NONE:
            raise SelectError(
                "InvalidCompressionFormat",
                "Parquet compresses its own pages. Set CompressionType to NONE.",
            )
        return ParquetInput()
    form.reject_other_children(*CSV_INPUT_ELEMENTS)
    quote = _parse_delimiter(form, "QuoteCharacter", b'"')
    aws = dialect is Dialect.AWS
    return CsvInput(
        header=_parse_choice(form, "FileHeaderInfo", HeaderMode.NONE, "InvalidFileHeaderInfo"),
        record_delimiter=_parse_delimiter(form, "RecordDelimiter", b"\n", non_empty=True),
        field_delimiter=_parse_delimiter(form, "FieldDelimiter", b",", non_empty=True),
        quote=quote,
        escape=_parse_delimiter(form, "QuoteEscapeCharacter", quote if aws else b"\\"),
        comment=_parse_delimiter(form, "Comments", b"#" if aws else b""),
        quoted_record_delimiter=_parse_flag(form, "AllowQuotedRecordDelimiter"),
    )


def _parse_output(element: XmlElement, dialect: Dialect) -> OutputFormat:
    form = _require_one_format(element, "CSV", "JSON")
    if form.name == "JSON":
        form.reject_other_children(*JSON_OUTPUT_ELEMENTS)
        return JsonOutput(_parse_delimiter(form, "RecordDelimiter", b"\n"))
    form.reject_other_children(*CSV_OUTPUT_ELEMENTS)
    fields = form.find_child("QuoteFields")
    said = "ASNEEDED" if fields is None else fields.text.strip().upper()
    if said not in {"ASNEEDED", "ALWAYS"}:
        raise SelectError(
            "InvalidQuoteFields", f"QuoteFields is {said!r}; it must be ASNEEDED or ALWAYS."
        )
    if fields is not None and said == "ASNEEDED" and dialect.is_ceph:
        raise SelectError(
            "InvalidQuoteFields",
            f"QuoteFields ASNEEDED is not part of dialect {dialect}, which quotes all fields or "
            "none. Send ALWAYS, or omit QuoteFields.",
        )
    quote = _parse_delimiter(form, "QuoteCharacter", b'"')
    return CsvOutput(
        quote_always=said == "ALWAYS",
        quote=quote,
        escape=_parse_delimiter(
            form, "QuoteEscapeCharacter", quote if dialect is Dialect.AWS else b"\\"
        ),
        field_delimiter=_parse_delimiter(form, "FieldDelimiter", b","),
        record_delimiter=_parse_delimiter(form, "RecordDelimiter", b"\n"),
    )


def _parse_json_type(json_element: XmlElement) -> str:
    json_element.reject_other_children(*JSON_INPUT_ELEMENTS)
    element = json_element.find_child("Type")
    said = "DOCUMENT" if element is None else element.text.strip().upper()
    if said not in {"LINES", "DOCUMENT"}:
        raise SelectError(
            "InvalidJsonType", f"JSON Type is {said!r}; it must be LINES or DOCUMENT."
        )
    return said


def _parse_compression(element: XmlElement) -> ObjectCompression:
    return _parse_choice(
        element, "CompressionType", ObjectCompression.NONE, "InvalidCompressionFormat"
    )


def _parse_choice(parent: XmlElement, name: str, default: _Choice, code: str) -> _Choice:
    element = parent.find_child(name)
    if element is None or not element.text.strip():
        return default
    choices = type(default)
    said = element.text.strip().upper()
    if said not in {choice.value for choice in choices}:
        known = ", ".join(choice.value for choice in choices)
        raise SelectError(code, f"{name} is {said!r}; it must be one of {known}.")
    return choices(said)


def _parse_delimiter(
    parent: XmlElement, name: str, default: bytes, *, non_empty: bool = False
) -> bytes:
    """Return a delimiter exactly as sent, including whitespace and control characters."""
    element = parent.find_child(name)
    if element is None:
        return default
    if non_empty and not element.text:
        raise SelectError("InvalidRequestParameter", f"{name} is empty; it requires a character.")
    return element.text.encode()


def _parse_flag(parent: XmlElement, name: str) -> bool:
    element = parent.find_child(name)
    if element is None:
        return False
    said = element.text.strip().lower()
    if said not in {"true", "false"}:
        raise malformed_xml_error(f"<{name}> is {said!r}; it must be true or false")
    return said == "true"


def _parse_scan_range(element: XmlElement) -> ScanRange:
    element.reject_other_children("Start", "End")
    start, end = (
        _parse_scan_range_offset(element, "Start"),
        _parse_scan_range_offset(element, "End"),
    )
    if start is None and end is None:
        raise SelectError("InvalidScanRange", "ScanRange needs a Start, an End, or both.")
    if start is not None and end is not None and start > end:
        raise SelectError("InvalidScanRange", f"ScanRange starts at {start}, after its end {end}.")
    return ScanRange(start, end)


def _parse_scan_range_offset(parent: XmlElement, name: str) -> int | None:
    element = parent.find_child(name)
    if element is None:
        return None
    said = element.text.strip()
    if not (said.isascii() and said.isdigit()) or len(said) > _MAX_OFFSET_DIGITS:
        raise SelectError(
            "InvalidScanRange", f"{name} is {said[:40]!r}; it must be an integer of 0 or more."
        )
    return int(said)


_PRELUDE = struct.Struct(">II")
_CHECKSUM_FIELD = struct.Struct(">I")
_FRAME_OVERHEAD_BYTES = _PRELUDE.size + 2 * _CHECKSUM_FIELD.size
_STRING_HEADER_TYPE = 7
# Some decoders reject header values above 32 KiB. A character has up to four bytes.
_MAX_HEADER_CHARACTERS = 8000


def _encode_header(name: str, value: str) -> bytes:
    encoded = value[:_MAX_HEADER_CHARACTERS].encode(errors="replace")
    head = (
        struct.pack(">B", len(name))
        + name.encode()
        + struct.pack(">BH", _STRING_HEADER_TYPE, len(encoded))
    )
    return head + encoded


def _encode_frame(
    headers: bytes, payload: bytes | memoryview = b""
) -> tuple[bytes, bytes | memoryview, bytes]:
    """Encode a frame in three parts: bytes before the payload, payload, bytes after it."""
    prelude = _PRELUDE.pack(_FRAME_OVERHEAD_BYTES + len(headers) + len(payload), len(headers))
    start = prelude + _CHECKSUM_FIELD.pack(crc32(prelude)) + headers
    return start, payload, _CHECKSUM_FIELD.pack(crc32(payload, crc32(start)))


def _encode_event_headers(event_type: str, content_type: str | None = None) -> bytes:
    typed = b"" if content_type is None else _encode_header(":content-type", content_type)
    return (
        _encode_header(":message-type", "event") + typed + _encode_header(":event-type", event_type)
    )


_RECORDS_HEADERS = _encode_event_headers("Records", "application/octet-stream")
_PROGRESS_HEADERS = _encode_event_headers("Progress", "text/xml")
_STATS_HEADERS = _encode_event_headers("Stats", "text/xml")

CONTINUATION_FRAME = b"".join(_encode_frame(_encode_event_headers("Cont")))
END_FRAME = b"".join(_encode_frame(_encode_event_headers("End")))


def encode_records_events(payloads: Iterable[bytes | memoryview]) -> list[bytes | memoryview]:
    """Return the segments of one frame for each payload, without copying payloads."""
    frames = (_encode_frame(_RECORDS_HEADERS, payload) for payload in payloads)
    return list(itertools.chain.from_iterable(frames))


def encode_progress_event(scanned_bytes: int, processed_bytes: int, returned_bytes: int) -> bytes:
    """Encode a progress frame: bytes read, bytes after decompression, and bytes of output."""
    counts = _encode_byte_counts("Progress", scanned_bytes, processed_bytes, returned_bytes)
    return b"".join(_encode_frame(_PROGRESS_HEADERS, counts))


def encode_stats_event(scanned_bytes: int, processed_bytes: int, returned_bytes: int) -> bytes:
    """Encode the second-to-last frame, with the same counts as `encode_progress_event`."""
    counts = _encode_byte_counts("Stats", scanned_bytes, processed_bytes, returned_bytes)
    return b"".join(_encode_frame(_STATS_HEADERS, counts))


def encode_error_event(code: str, message: str) -> bytes:
    """Encode the frame that ends a response with an error. It is the last frame."""
    headers = (
        _encode_header(":message-type", "error")
        + _encode_header(":error-code", code)
        + _encode_header(":error-message", message)
    )
    return b"".join(_encode_frame(headers))


def _encode_byte_counts(
    name: str, scanned_bytes: int, processed_bytes: int, returned_bytes: int
) -> bytes:
    return (
        f'<?xml version="1.0" encoding="UTF-8"?><{name}><BytesScanned>{scanned_bytes}</BytesScanned>'
        f"<BytesProcessed>{processed_bytes}</BytesProcessed><BytesReturned>{returned_bytes}</BytesReturned>"
        f"</{name}>"
    ).encode()
