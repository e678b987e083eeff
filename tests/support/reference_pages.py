"""Parser of the pages in docs/reference: headings, examples, privileges, errors and columns."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
_BLOCK = re.compile(r"```(\w+)\n(.*?)```", re.DOTALL)
_PRIVILEGES = re.compile(r"\*\*Privileges(?: \((.+?)\))?:\*\* (.+)")
_ERROR = re.compile(r"^\| `(\w+)` \| (.*?) ?<!-- (.+?) --> \|$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class PrivilegeLine:
    """Required privileges. `form` is a part of the statements that the line describes."""

    form: str
    text: str


@dataclass(frozen=True, slots=True)
class Section:
    """One section. `names` has the statements in its heading."""

    page: str
    names: tuple[str, ...]
    text: str

    @property
    def statements(self) -> list[str]:
        """Return the statements of the examples."""
        return [
            each for language, body in _BLOCK.findall(self.text) if language == "sql"
            for each in split_statements(body)
        ]  # fmt: skip

    @property
    def privileges(self) -> list[PrivilegeLine]:
        """Return the section's lines on privileges."""
        return [PrivilegeLine(*found) for found in _PRIVILEGES.findall(self.text)]

    @property
    def errors(self) -> list[tuple[str, str]]:
        """Return the codes of the section's errors, each with statements whose last one fails."""
        return [(code, statements) for code, _, statements in _ERROR.findall(self.text)]

    @property
    def columns(self) -> list[str] | None:
        """Return the columns of the result, or None if the section names none."""
        found = re.search(r"^\*\*Columns:\*\* (.+)\.$", self.text, re.MULTILINE)
        return None if found is None else re.findall(r"`(\w+)`", found[1])

    def example_of(self, form: str) -> str:
        """Return the first example with a statement of the heading and with `form`."""
        words = "|".join(name.replace(" ", ".*?") for name in self.names)
        for each in self.statements:
            if re.match(rf"(?:{words})\b", each, re.DOTALL) and form in each:
                return each
        raise AssertionError(f"{self.page}, {self.names}: no example contains {form!r}")


def split_statements(text: str) -> list[str]:
    """Split a text into statements, which end with a semicolon at the end of a line."""
    parts: list[str] = []
    lines: list[str] = []
    for line in text.strip().splitlines():
        lines.append(line)
        if line.endswith(";") and "\n".join(lines).count("$$") % 2 == 0:
            parts.append("\n".join(lines).strip().removesuffix(";"))
            lines = []
    return [*parts, "\n".join(lines)] if lines else parts


def read_sections(page: str) -> list[Section]:
    """Return the sections of a page, by headings of level two."""
    text = (REFERENCE / page).read_text("utf-8")
    _, *parts = re.split(r"^## (.+)\n", text, flags=re.MULTILINE)
    return [
        Section(page, tuple(heading.split(", ")), body)
        for heading, body in zip(parts[::2], parts[1::2], strict=True)
    ]
