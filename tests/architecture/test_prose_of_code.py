"""Docstrings, comments and messages of the package are plain English, in one form."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from support.plain_english import find_denied

SRC = Path(__file__).parents[2] / "src" / "snowmelt"
MODULES = sorted(path.relative_to(SRC).as_posix() for path in SRC.rglob("*.py"))
# How a function's summary must not begin: it names what the function does.
WEAK_SUMMARY = re.compile(r"(?:Tell|Say|Whether|What|How|Where|Whatever|Let pass|Go past)\b")
PROPERTIES = {"property", "functools.cached_property", "cached_property"}
RAISES = re.compile(r"^Raises:\n((?:    .*\n?|\n)+)", re.MULTILINE)


@cache
def read(module: str) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the strings and comments of a module, and its functions with their docstrings.

    Omits functions without a docstring, and properties.
    """
    source = (SRC / module).read_text("utf-8")
    # A `#` within a string begins no comment, but the string is checked in any case.
    texts = re.findall(r"#.*", source)
    functions = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.append(node.value)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            decorators = {ast.unparse(each) for each in node.decorator_list}
            text = ast.get_docstring(node)
            if text and not decorators & PROPERTIES:
                functions.append((node.name, text))
    return texts, functions


@pytest.mark.parametrize("module", MODULES)
def test_a_module_has_no_phrase_that_another_replaced(module: str) -> None:
    assert not find_denied("\n".join(read(module)[0]))


@pytest.mark.parametrize("module", MODULES)
def test_the_summary_of_a_function_says_what_it_does(module: str) -> None:
    assert [name for name, text in read(module)[1] if WEAK_SUMMARY.match(text)] == []


@pytest.mark.parametrize("module", MODULES)
def test_an_entry_of_raises_is_a_condition(module: str) -> None:
    entries = [
        (name, entry)
        for name, text in read(module)[1]
        for block in RAISES.findall(text)
        for entry in re.findall(r"^    \S.*?: (.*)", block, re.MULTILINE)
    ]
    assert [each for each in entries if not re.match(r"If\b|`\w+`, if\b|As for `", each[1])] == []
