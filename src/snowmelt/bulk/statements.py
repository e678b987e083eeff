"""Which statements are COPY; light, because every statement is asked."""

from __future__ import annotations

import re

_IS_COPY = re.compile(r"(?:\s|--[^\n]*(?:\n|\Z)|/\*.*?\*/)*COPY\b", re.IGNORECASE | re.DOTALL)


def is_copy(text: str) -> bool:
    """Tell whether a statement is a COPY."""
    return _IS_COPY.match(text) is not None
