"""HTML tables that display results in notebooks.

The markup has no script, and uses the colors of the notebook's theme.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

_MAX_ROWS = 20
_MAX_CHARACTERS = 100


def render_notebook_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], caption: str
) -> str:
    """Return the first rows as a table. Escapes values, and truncates them to 100 characters."""
    head = "".join(f"<th>{html.escape(name)}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{_render_value(value)}</td>" for value in row) + "</tr>"
        for row in rows[:_MAX_ROWS]
    )
    more = f", the first {_MAX_ROWS} are shown" if len(rows) > _MAX_ROWS else ""
    return (
        f"<table><caption>{html.escape(caption)}{more}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def _render_value(value: object) -> str:
    if value is None:
        return "<i>NULL</i>"
    text = str(value)
    return html.escape(text if len(text) <= _MAX_CHARACTERS else f"{text[: _MAX_CHARACTERS - 1]}…")
