"""Parts of pages that are made of the code; `python tests/made_pages.py` makes all of them anew."""

from __future__ import annotations

from pathlib import Path

import copy_functions_table
import sdk_values_table
import settings_table

_DOCS = Path(__file__).parents[1] / "docs"
_BEGIN, _END = "<!-- made by tests/made_pages.py -->\n", "<!-- end -->\n"

PARTS = {
    "copy-functions.md": copy_functions_table.table,
    "settings.md": settings_table.table,
    "sdk-values.md": sdk_values_table.table,
}


def renewed(page: str) -> str:
    """Return a page as it should be."""
    before, begin, rest = shown(page).partition(_BEGIN)
    _, end, behind = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"{page} does not say where its made part begins and ends.")
    return before + begin + PARTS[page]() + end + behind


def shown(page: str) -> str:
    """Return a page as it is."""
    return (_DOCS / page).read_text(encoding="utf-8")


if __name__ == "__main__":
    for name in PARTS:
        (_DOCS / name).write_text(renewed(name), encoding="utf-8")
