"""The code on pages of the documentation, to be run as it is written there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: str, language: str, instead: Mapping[str, str]) -> list[str]:
    """Return a page's blocks in a language; `instead` says where the page's places are in a test."""
    text = (_DOCS / page).read_text("utf-8")
    for written, here in instead.items():
        assert written in text, f"{page} says {written} no more"
        text = text.replace(written, here)
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
