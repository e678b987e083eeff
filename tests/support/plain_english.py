"""Denied phrases in the prose of this project, each with a replacement."""

from __future__ import annotations

import re

DENIED = {
    r"whoever": "the client, the user, the service",
    r"(?:some|every|no|any)body": "a user, every client, no process",
    r"(?:is|are|was|were) told": "receives, is informed, the error says",
    r"(?:any more|by now)": "nothing: pages are in the present tense",
    r"at times": "how often, or when",
    r"likewise": "the same, or repeat the text",
    r"anew": "again",
    r"lets? go of": "expires, releases, deletes",
    r"go(?:es)? home": "exits",
    r"said? so to": "reports",
    r"what is what": "the term",
}
_ANY_DENIED = re.compile(rf"\b(?:{'|'.join(DENIED)})\b", re.IGNORECASE)


def find_denied(text: str) -> dict[str, str]:
    """Return the denied phrases in a text, each with its replacement."""
    return {
        match[0]: next(
            instead
            for pattern, instead in DENIED.items()
            if re.fullmatch(pattern, match[0], re.IGNORECASE)
        )
        for match in _ANY_DENIED.finditer(text)
    }
