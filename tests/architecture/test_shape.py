"""Modules and folders keep their size, folders are mapped, and unit tests lie where the source does."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "snowmelt"
SOURCES = sorted(PACKAGE.rglob("*.py"))
FOLDERS = sorted({path.parent for path in SOURCES})
UNIT_TESTS = sorted((ROOT / "tests" / "unit").rglob("test_*.py"))

MAX_LINES = 800
MAX_FILES = 25
MAX_FIRST_LINE = 100


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_a_module_is_of_one_size_and_says_what_it_holds(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= MAX_LINES
    first_line = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    assert first_line.endswith(".")
    assert len(first_line) <= MAX_FIRST_LINE


@pytest.mark.parametrize("folder", FOLDERS, ids=name_of)
def test_a_folder_can_be_looked_over_and_its_docstring_is_its_map(folder: Path) -> None:
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__", "__main__"}
    assert len(modules) + 1 <= MAX_FILES
    folders = {path.parent.name for path in folder.glob("*/__init__.py")}
    mapped = set(re.findall(r"`(\w+)/?`", ast.get_docstring(ast.parse(_init(folder))) or ""))
    assert modules | folders <= mapped


def test_each_folder_is_a_package() -> None:
    assert [folder for folder in FOLDERS if not (folder / "__init__.py").exists()] == []


@pytest.mark.parametrize("path", UNIT_TESTS, ids=lambda path: path.stem)
def test_a_unit_test_lies_where_its_module_does(path: Path) -> None:
    """`test_<module>.py`, or `test_<module>_<topic>.py` where one file would be too long."""
    folder = PACKAGE / path.parent.relative_to(ROOT / "tests" / "unit")
    modules = {each.stem for each in folder.glob("*.py")}
    wanted = path.stem.removeprefix("test_")
    names = {
        wanted[:end] for end in range(1, len(wanted) + 1) if wanted[end : end + 1] in ("_", "")
    }
    assert names & modules or path.stem in _WITHOUT_MODULE, f"{folder} has no module of that name"


# What is shown of several modules together.
_WITHOUT_MODULE = {
    "test_avro_and_parquet",
    "test_former_places",
    "test_light_imports",
    "test_model",
    "test_output_paths",
    "test_vertica_sdk",
}


def test_only_kinds_of_tests_lie_beside_the_configuration() -> None:
    kinds = {"architecture", "clusters", "contract", "docs", "engines", "fault", "flow", "interop"}
    kinds |= {"model", "unit"}
    others = {"conftest.py", "data", "fixtures", "support"}
    found = {path.name for path in (ROOT / "tests").iterdir() if not path.name.startswith("__")}
    assert found == kinds | others


def _init(folder: Path) -> str:
    return (folder / "__init__.py").read_text()
