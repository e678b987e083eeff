"""`snowmelt settings`: each setting with its value, its default and where the value comes from."""

from __future__ import annotations

import argparse
import dataclasses
import re
from collections.abc import Iterator

from snowmelt.cli.command_context import load_settings
from snowmelt.cli.output import add_format_option, print_rows
from snowmelt.config import Settings, read_environment_variable, variable_for_setting

NAME = "settings"
SUMMARY = "show every setting: its value here, its default, and where the value is from"
EXAMPLES = """examples:
  snowmelt settings
  snowmelt settings --changed
  SNOWMELT_MIGRATE_MAX_AGE_S=300 snowmelt settings migrate
  snowmelt settings --data-dir /var/lib/snowmelt --format json

A word shows the settings with it in their name. A setting is given in the environment, as SNOWMELT_
and its name in capitals; what a folder or URL is where none is given, follows from the data folder.
Passwords in URLs are not shown.
"""
_COLUMNS = ("setting", "value", "default", "from", "meaning")
_OPTION_BY_SETTING = {"data_dir": "--data-dir", "catalog_url": "--catalog"}
_URL_PASSWORD = re.compile(r"(?<=://)([^/@:]*):[^/@]+(?=@)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("word", metavar="WORD", nargs="?", default="", help="part of a name")
    parser.add_argument("--changed", action="store_true", help="only what is not the default")
    add_format_option(parser)


def run(options: argparse.Namespace) -> int:
    """Print a row for each setting."""
    values = {"data_dir": options.data_dir, "catalog_url": options.catalog}
    rows = _list_setting_rows(
        load_settings(options),
        given_options=(
            {name: _OPTION_BY_SETTING[name] for name, value in values.items() if value is not None}
        ),
    )
    word = options.word.lower().removeprefix("snowmelt_")
    chosen = [
        row for row in rows if word in row[0] and (row[3] != "default" or not options.changed)
    ]
    print_rows(_COLUMNS, chosen, options.format)
    return 0


def _list_setting_rows(
    settings: Settings, *, given_options: dict[str, str]
) -> Iterator[tuple[str, ...]]:
    usual = Settings.from_environment({}, data_dir=settings.data_dir)
    for each in dataclasses.fields(settings):
        name, variable = each.name, variable_for_setting(each.name)
        origin = given_options.get(name) or (
            "default" if read_environment_variable(variable) is None else variable
        )
        default = each.default if name == "data_dir" else getattr(usual, name)
        value = _URL_PASSWORD.sub(r"\1:***", _format_value(getattr(settings, name)))
        yield name, value, _format_value(default), origin, each.metadata["about"]


def _format_value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
