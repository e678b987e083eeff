"""Generates the parts of documentation pages that come from the code.

`python tests/support/generated_pages.py` regenerates all of them.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support import (
    cli_page,
    copy_functions_page,
    copy_reference_page,
    error_reference_page,
    findings_page,
    http_api_page,
    sdk_values_page,
    select_reference_page,
    settings_page,
    system_views_page,
    ways_in,
)

_DOCS = Path(__file__).parents[2] / "docs"
_BEGIN, _END = "<!-- made by tests/support/generated_pages.py -->\n", "<!-- end -->\n"

PARTS = {
    "reference/cli.md": cli_page.table,
    "reference/http-api.md": http_api_page.table,
    "reference/copy-functions.md": copy_functions_page.table,
    "reference/settings.md": settings_page.table,
    "reference/value-conversion.md": sdk_values_page.table,
    "reference/values-by-interface.md": ways_in.table,
    "reference/copy.md": copy_reference_page.table,
    "reference/errors.md": error_reference_page.table,
    "reference/findings.md": findings_page.table,
    "reference/select.md": select_reference_page.table,
    "reference/sql/system-views.md": system_views_page.table,
}


def renewed(page: str) -> str:
    """Return the expected text of a page."""
    before, begin, rest = shown(page).partition(_BEGIN)
    _, end, behind = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"{page} does not say where its made part begins and ends.")
    return before + begin + PARTS[page]() + end + behind


def shown(page: str) -> str:
    """Return the current text of a page."""
    return (_DOCS / page).read_text(encoding="utf-8")


if __name__ == "__main__":
    for name in PARTS:
        (_DOCS / name).write_text(renewed(name), encoding="utf-8")
