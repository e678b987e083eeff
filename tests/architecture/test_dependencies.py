"""Each package in `pyproject.toml` has a line, with its reason, in the decision on dependencies."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
DECISION = ROOT / "docs" / "explanation" / "decisions" / "0003-dependencies.md"


def required() -> set[str]:
    """The names of all packages that any extra or group requires."""
    document = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    project = document["project"]
    lists = [
        project["dependencies"],
        *project["optional-dependencies"].values(),
        *document["dependency-groups"].values(),
    ]
    texts = [each for texts in lists for each in texts if isinstance(each, str)]
    return {re.split(r"[\[<>=;, ]", text)[0] for text in texts} - {"snowmelt"}


def explained() -> list[str]:
    rows = re.findall(r"^\| (`.*?) \| .*? \| .+? \|$", DECISION.read_text("utf-8"), re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


def test_each_dependency_has_one_reason() -> None:
    names = explained()
    assert sorted(names) == sorted(required())
