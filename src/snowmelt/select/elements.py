r"""XML as S3 clients really write it: delimiters stand raw in it, whatever XML says of them.

Clients put `\r\n` and `\x01` into a text as they are. A parser of XML folds the first into
`\n` and refuses the second, so both are carried past it in disguise: each control byte of a
text travels as a character that the document does not use (specification of Select, §1.6).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from xml.parsers import expat

from snowmelt.select.refusals import SelectError

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
