"""HTML elements. Text is escaped unless it is an `Html`, which only this module creates from text.

Control and bidirectional characters are shown as code points, so that two names cannot look alike.
"""

from __future__ import annotations

import html
import unicodedata
from collections.abc import Iterable
from typing import TypeAlias

_VOID_ELEMENTS = frozenset({"br", "hr", "img", "input", "link", "meta"})
_MAX_CELL_CHARACTERS = 200
_VISIBLE_CONTROLS = frozenset("\n\t")


class Html(str):
    """Escaped markup. Any other string is escaped when it is added to markup."""

    __slots__ = ()


Child: TypeAlias = "str | int | float | Iterable[Child] | None"
EMPTY = Html("")


def tag(element: str, *children: Child, **attributes: str | int | bool | None) -> Html:
    """Return an element.

    A trailing underscore of an attribute name (`class_`, `for_`) is removed. Other underscores
    become hyphens. An attribute with the value None or False is omitted; True sets it without a
    value.
    """
    parts = [element]
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        written = name.rstrip("_").replace("_", "-")
        parts.append(written if value is True else f'{written}="{escape(str(value))}"')
    head = f"<{' '.join(parts)}>"
    if element in _VOID_ELEMENTS:
        return Html(head)
    return Html(f"{head}{join(*children)}</{element}>")


def join(*children: Child) -> Html:
    """Return children as markup. Escapes texts and omits None."""
    written = []
    for child in children:
        if child is None:
            continue
        if isinstance(child, Html):
            written.append(child)
        elif isinstance(child, str | int | float):
            written.append(escape(str(child)))
        else:
            written.append(join(*child))
    return Html("".join(written))


def escape(text: str) -> Html:
    """Escape a text, and replace invisible characters by their code points."""
    if not text.isprintable():
        text = "".join(map(_make_visible, text))
    return Html(html.escape(text))


def cut(text: str, limit: int = _MAX_CELL_CHARACTERS) -> str:
    """Cut a text to at most `limit` characters. A shortened text ends with an ellipsis."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _make_visible(character: str) -> str:
    if character in _VISIBLE_CONTROLS or unicodedata.category(character) not in {"Cc", "Cf", "Cs"}:
        return character
    return f"⟨U+{ord(character):04X}⟩"
