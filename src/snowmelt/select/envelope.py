"""A SelectObjectContentRequest in XML, read into a SelectRequest (specification §1.6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from snowmelt.select.dialect import Dialect
from snowmelt.select.elements import Element, malformed, parse_elements
from snowmelt.select.refusals import SelectError
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
