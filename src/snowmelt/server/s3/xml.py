"""Render and parse S3 XML documents."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias
from xml.etree import ElementTree as ET

from snowmelt.buckets.errors import S3Error

if TYPE_CHECKING:
    import datetime as dt

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_XML_DECLARATION = '<?xml version="1.0" encoding="UTF-8"?>\n'

# Element: a name, and a string, number, boolean or child elements. None omits the element.
XmlContent: TypeAlias = "str | int | bool | Sequence[XmlElement] | None"
XmlElement: TypeAlias = "tuple[str, XmlContent]"


_CONTROL_BYTES = bytes(code for code in range(32) if code not in b"\t\n\r")
_FORBIDDEN_BYTES_PATTERN = re.compile(b"[" + re.escape(_CONTROL_BYTES) + b"]|\xef\xbf[\xbe\xbf]")
_FORBIDDEN_CODES = (*_CONTROL_BYTES, 0xFFFE, 0xFFFF)
# Placeholders are other Unicode noncharacters, which no text contains.
_PLACEHOLDERS_BY_CODE = {code: chr(0xFDD0 + at) for at, code in enumerate(_FORBIDDEN_CODES)}
_CODES_BY_PLACEHOLDER = {
    ord(placeholder): code for code, placeholder in _PLACEHOLDERS_BY_CODE.items()
}
_ESCAPES = {code: f"&#x{code:x};" for code in range(32)} | str.maketrans(
    {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;"}
)


def render_document(
    root_name: str, content: XmlContent, *, namespace: str | None = NAMESPACE
) -> bytes:
    """Render an XML document in UTF-8."""
    inside = _render_content(content)
    start = root_name if namespace is None else f'{root_name} xmlns="{namespace}"'
    return f"{_XML_DECLARATION}<{start}>{inside}</{root_name}>".encode("utf-8", "surrogateescape")


def format_timestamp(timestamp: dt.datetime) -> str:
    """Format a timestamp for listings, to the millisecond."""
    return timestamp.strftime("%Y-%m-%dT%H:%M:%S.") + f"{timestamp.microsecond // 1000:03d}Z"


def parse_document(body: bytes, root_name: str) -> ET.Element:
    """Parse a request's document. Return its root with element names without namespace.

    Raises:
        S3Error: If the body is not XML, has another root element, or declares entities.
    """
    # Reject document types: no S3 request has one, and entities could expand without limit.
    if b"<!" in body.replace(b"<!--", b""):
        raise S3Error("MalformedXML", "A document type is not allowed here.")
    foreign = _FORBIDDEN_BYTES_PATTERN.search(body) is not None
    try:
        # XML forbids these characters, but clients send keys that contain them.
        readable = body.decode().translate(_PLACEHOLDERS_BY_CODE) if foreign else body
        root = ET.fromstring(readable)  # noqa: S314 - without document types there are no entities
    except (ET.ParseError, ValueError, LookupError):
        raise S3Error("MalformedXML") from None
    for element in root.iter():
        if isinstance(element.tag, str):
            element.tag = element.tag.rpartition("}")[2]
        if foreign and element.text:
            element.text = element.text.translate(_CODES_BY_PLACEHOLDER)
    if root.tag != root_name:
        raise S3Error("MalformedXML", f"A {root_name} is expected here.")
    return root


def _render_content(content: XmlContent) -> str:
    if content is None:
        return ""
    if isinstance(content, bool):
        return "true" if content else "false"
    if isinstance(content, int):
        return str(content)
    if isinstance(content, str):
        return content.translate(_ESCAPES)
    return "".join(
        f"<{name}>{_render_content(inside)}</{name}>"
        for name, inside in content
        if inside is not None
    )
