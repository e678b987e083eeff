"""`snowmelt settings`: print each setting with its value, its default, and the value's source."""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import sys
from collections.abc import Iterator

from snowmelt.cli.command_context import load_settings
from snowmelt.cli.output import add_format_option, print_rows
from snowmelt.config import (
    Settings,
    describe_unknown_variables,
    make_config_file_schema,
    read_environment_variable,
    variable_for_setting,
)
from snowmelt.config_file import ConfigFile, load_config_file

NAME = "settings"
SUMMARY = "show every setting: its value, its default, and the source of the value"
EXAMPLES = """examples:
  snowmelt settings
  snowmelt settings --changed
  SNOWMELT_MIGRATE_MAX_AGE_S=300 snowmelt settings migrate
  snowmelt settings --config /etc/snowmelt/snowmelt.toml --format json
  snowmelt settings --json-schema > snowmelt.schema.json

An argument selects the settings whose names contain it. A command-line option overrides the environment
(SNOWMELT_ and the name of the setting in capitals), which overrides the table [settings] of the
configuration file. Passwords in URLs are not shown.
"""
_COLUMNS = ("setting", "value", "default", "from", "meaning")
_OPTION_BY_SETTING = {"data_dir": "--data-dir", "catalog_url": "--catalog"}
_URL_PASSWORD = re.compile(r"(?<=://)([^/@:]*):[^/@]+(?=@)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("word", metavar="WORD", nargs="?", default="", help="part of a name")
    parser.add_argument("--changed", action="store_true", help="only values that are not defaults")
    parser.add_argument(
        "--json-schema",
        action="store_true",
        help="print the JSON schema of the configuration file, for editors",
    )
    add_format_option(parser)


def run(options: argparse.Namespace) -> int:
    """Print a row for each setting."""
    if options.json_schema:
        print(json.dumps(make_config_file_schema(), indent=2))
        return 0
    for warning in describe_unknown_variables():
        print(f"snowmelt: warning: {warning}", file=sys.stderr)
    values = {"data_dir": options.data_dir, "catalog_url": options.catalog}
    rows = _list_setting_rows(
        load_settings(options),
        load_config_file(options.config),
        {name: _OPTION_BY_SETTING[name] for name, value in values.items() if value is not None},
    )
    word = options.word.lower().removeprefix("snowmelt_")
    chosen = [
        row for row in rows if word in row[0] and (row[3] != "default" or not options.changed)
    ]
    print_rows(_COLUMNS, chosen, options.format)
    return 0


def _list_setting_rows(
    settings: Settings, file: ConfigFile | None, given_options: dict[str, str]
) -> Iterator[tuple[str, ...]]:
    defaults = Settings.from_environment({}, data_dir=settings.data_dir)
    for each in dataclasses.fields(settings):
        name, variable = each.name, variable_for_setting(each.name)
        if name in given_options:
            source = given_options[name]
        elif read_environment_variable(variable) is not None:
            source = variable
        elif file is not None and name in file.settings:
            source = file.locate(name)
        else:
            source = "default"
        default = each.default if name == "data_dir" else getattr(defaults, name)
        value = _URL_PASSWORD.sub(r"\1:***", _format_value(getattr(settings, name)))
        yield name, value, _format_value(default), source, each.metadata["about"]


def _format_value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
