"""The reference of S3 Select and of errors: what is written by hand fits the code."""

from __future__ import annotations

import re

from snowmelt.config import Settings
from snowmelt.errors import SnowmeltError
from snowmelt.select import errors
from snowmelt.select.sql import binder, expression_parser, lexer, parser
from support import error_reference_page, select_reference_page
from support.dialect_support import FeatureTopic, list_features
from support.reference_pages import REFERENCE


def test_every_function_has_its_syntax() -> None:
    assert list(select_reference_page.FUNCTIONS) == [
        each.name for each in list_features(FeatureTopic.FUNCTION)
    ]
    arities = expression_parser.FUNCTION_ARITIES
    for name, (least, most) in arities.items():
        if (
            name in select_reference_page.FUNCTIONS
            and "FROM" not in select_reference_page.FUNCTIONS[name][0]
        ):
            syntax = select_reference_page.FUNCTIONS[name][0]
            required, _, optional = syntax.partition("[")
            given = re.findall(r"\w+", required.partition("(")[2])
            assert len(given) == least, syntax
            if "…" not in syntax:
                assert len(given) + len(re.findall(r"\w+", optional)) == most, syntax


def test_the_limits_are_those_of_the_code() -> None:
    text = (REFERENCE / "select.md").read_text("utf-8").partition("## Limits")[2]
    for limit, value in (
        ("statement", f"{lexer.MAX_STATEMENT_BYTES >> 10} KiB"),
        ("nesting of brackets", f"{expression_parser.MAX_NESTING_DEPTH} levels"),
        ("height of an expression", f"{expression_parser.MAX_TREE_HEIGHT} levels"),
        ("selected values", f"{parser._MAX_PROJECTIONS:,}"),
        ("rows that `ceph-2020` drops for their errors", f"{errors.MAX_ROW_ERRORS - 1}; the {errors.MAX_ROW_ERRORS}th ends the query"),
    ):  # fmt: skip
        assert f"| {limit} | {value} | |" in text
    assert vars(binder)["MAX_TREE_HEIGHT"] == expression_parser.MAX_TREE_HEIGHT
    defaults = Settings()
    for value, setting in re.findall(r"\| ([\w ]+) \| `(\w+)` \|", text):
        count, _, unit = value.partition(" ")
        assert getattr(defaults, setting) == int(count) << {"": 0, "MiB": 20}[unit], setting


def test_every_error_of_the_tree_is_on_the_page() -> None:
    error_reference_page.import_all_modules()
    text = (REFERENCE / "errors.md").read_text("utf-8")
    for found in error_reference_page.list_errors(SnowmeltError):
        assert f"`{found.code}`" in text, found


def test_every_remedy_is_that_of_an_error() -> None:
    error_reference_page.table()
    known = {each.code for each in error_reference_page.list_errors(SnowmeltError)}
    assert set(error_reference_page.REMEDIES) <= known
