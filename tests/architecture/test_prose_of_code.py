"""Docstrings, comments and messages of the package are plain English, in one form."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

from support.plain_english import find_denied

SRC = Path(__file__).parents[2] / "src" / "snowmelt"
MODULES = sorted(path.relative_to(SRC).as_posix() for path in SRC.rglob("*.py"))
# How a function's summary must not begin: it names what the function does.
WEAK_SUMMARY = re.compile(r"(?:Tell|Say|Whether|What|How|Where|Whatever|Let pass|Go past)\b")
RAISES = re.compile(r"^Raises:\n((?:    .*\n?|\n)+)", re.MULTILINE)


def texts(source: str) -> list[str]:
    """Return the strings and comments of a module."""
    strings = [
        node.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return strings + [token.string for token in tokens if token.type == tokenize.COMMENT]


@pytest.mark.parametrize("module", MODULES)
def test_a_module_has_no_phrase_that_another_replaced(module: str) -> None:
    source = (SRC / module).read_text("utf-8")
    assert not find_denied("\n".join(texts(source)))


def functions(module: str) -> list[tuple[str, str]]:
    """Return the name and docstring of each documented function, except properties."""
    tree = ast.parse((SRC / module).read_text("utf-8"))
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        decorators = {ast.unparse(each) for each in node.decorator_list}
        text = ast.get_docstring(node)
        if text and not decorators & {"property", "functools.cached_property", "cached_property"}:
            found.append((node.name, text))
    return found


@pytest.mark.parametrize("module", MODULES)
def test_the_summary_of_a_function_says_what_it_does(module: str) -> None:
    assert [name for name, text in functions(module) if WEAK_SUMMARY.match(text)] == []


@pytest.mark.parametrize("module", MODULES)
def test_an_entry_of_raises_is_a_condition(module: str) -> None:
    entries = [
        (name, entry)
        for name, text in functions(module)
        for block in RAISES.findall(text)
        for entry in re.findall(r"^    \S.*?: (.*)", block, re.MULTILINE)
    ]
    assert [each for each in entries if not re.match(r"If\b|`\w+`, if\b|As for `", each[1])] == []
