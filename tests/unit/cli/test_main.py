"""Dispatch, help, and errors in one sentence."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from snowmelt.cli.main import find_extra, list_extras

if TYPE_CHECKING:
    from unit.cli.conftest import Finished


COMMANDS = (
    "serve",
    "sql",
    "migrate",
    "maintain",
    "channels",
    "user",
    "doctor",
    "demo",
    "init",
    "settings",
    "status",
    "upgrade",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself_with_examples(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from snowmelt.cli.main import main

    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert f"  snowmelt {command}" in shown
    assert "--data-dir" in shown
    assert import_module(f"snowmelt.cli.commands.{command}").SUMMARY[1:20] in shown


@pytest.mark.slow
def test_help_names_every_command(snowmelt_process: Callable[..., Finished]) -> None:
    shown = snowmelt_process("--help")
    assert shown.returncode == 0
    for command in COMMANDS:
        assert f"\n    {command} " in shown.stdout


def test_no_command_is_a_usage_error(snowmelt_process: Callable[..., Finished]) -> None:
    ended = snowmelt_process()
    assert ended.returncode == 2
    assert "usage: snowmelt" in ended.stderr


@pytest.mark.slow
def test_an_error_is_one_sentence_and_exit_code_1(
    snowmelt_process: Callable[..., Finished],
) -> None:
    assert snowmelt_process("sql", "CREATE DATABASE other").returncode == 0
    ended = snowmelt_process("sql", "DROP TABLE demo.public.t")
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert ended.stderr == (
        "snowmelt: Database DEMO does not exist, or this role may not use it.\n"
    )


@pytest.mark.slow
def test_debug_shows_where_an_error_came_from(snowmelt_process: Callable[..., Finished]) -> None:
    assert snowmelt_process("sql", "CREATE DATABASE other").returncode == 0
    ended = snowmelt_process("--debug", "sql", "DROP TABLE demo.public.t")
    assert ended.returncode == 1
    assert "Traceback" in ended.stderr
    assert "DatabaseNotFound" in ended.stderr


@pytest.mark.slow
def test_what_would_be_passed_over_is_said(
    snowmelt: Callable[..., Finished], snowmelt_process: Callable[..., Finished]
) -> None:
    ended = snowmelt("serve", "--backend", "logs=/var/log", "--s3-port", "0")
    assert (ended.returncode, "--s3-port 0 disables" in ended.stderr) == (1, True)
    ended = snowmelt_process("serve", leese_s="5", stage_url="nowhere://x", s3_port="0")
    assert ended.returncode == 1
    assert "Unknown setting SNOWMELT_LEESE_S in the environment" in ended.stderr


def test_a_file_that_is_not_there_is_named(snowmelt: Callable[..., Finished]) -> None:
    ended = snowmelt("sql", "-f", "missing.sql")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == "snowmelt: missing.sql: No such file or directory.\n"


def test_a_folder_that_cannot_be_made_is_named(
    snowmelt: Callable[..., Finished], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    ended = snowmelt("--data-dir", "file/data", "sql", "CREATE DATABASE a")
    assert ended.returncode == 1
    assert "file/data: Not a directory." in ended.stderr


@pytest.mark.slow
def test_global_options_stand_before_or_after_the_command(
    snowmelt: Callable[..., Finished], tmp_path: Path
) -> None:
    assert snowmelt("--data-dir", "one", "sql", "CREATE DATABASE a").returncode == 0
    assert snowmelt("sql", "CREATE DATABASE b", "--data-dir", "one").returncode == 0
    shown = snowmelt("sql", "SHOW DATABASES", "--format", "csv", data_dir=str(tmp_path / "one"))
    assert [line.split(",")[1] for line in shown.stdout.splitlines()] == ["name", "A", "B"]
    elsewhere = snowmelt("sql", "--catalog", f"sqlite:///{tmp_path}/other.db", "CREATE DATABASE c")
    assert elsewhere.returncode == 0
    assert (tmp_path / "other.db").exists()


@pytest.mark.slow
def test_a_reader_that_leaves_early_is_no_error(
    snowmelt: Callable[..., Finished], tmp_path: Path
) -> None:
    assert snowmelt("sql", "CREATE DATABASE demo").returncode == 0
    script = "SHOW ROLES;" * 300
    with subprocess.Popen(
        [sys.executable, "-m", "snowmelt", "sql"],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        process.stdin.write(script.encode())
        process.stdin.close()
        assert process.stderr.read() == b""
        assert process.wait(200) == 0


@pytest.mark.slow
def test_ctrl_c_is_quiet(snowmelt: Callable[..., Finished], tmp_path: Path) -> None:
    assert snowmelt("sql", "CREATE DATABASE demo").returncode == 0
    environment = os.environ | {"SNOWMELT_MIGRATE_INTERVAL_S": "60"}
    with subprocess.Popen(
        [sys.executable, "-m", "snowmelt", "migrate", "--loop", "--engine", "local"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"Checking for chunks to migrate every 60 s\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=200) == (b"", b"")
        # CPython ends by the signal itself when it came while text was executed, as dataclasses do
        # when they are imported, though we caught it. A shell gives 130 for either.
        assert process.returncode in (130, -signal.SIGINT)


@pytest.mark.slow
def test_version_starts_without_database_or_spark(
    snowmelt_process: Callable[..., Finished],
) -> None:
    assert snowmelt_process("--version").stdout.startswith("snowmelt 0.")
    code = (
        "import atexit, sys, snowmelt.cli.main as m\n"
        "atexit.register(lambda: print(*sys.modules)); m.main(['--version'])"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert loaded.returncode == 0
    heavy = {"sqlalchemy", "sqlglot", "pyspark", "pyiceberg", "starlette", "pyarrow"}
    assert not heavy & set(loaded.stdout.split())


def test_the_version_has_a_short_option(snowmelt: Callable[..., Finished]) -> None:
    assert snowmelt("-V").stdout == snowmelt("--version").stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["srve"], "unknown command 'srve'. Did you mean serve?"),
        (["user", "ad", "x"], "unknown action 'ad'. Did you mean add?"),
        (["sql", "--formt=json", "x"], "unknown argument '--formt=json'. Did you mean --format?"),
        (["sql", "--format", "jsn", "x"], "unknown value 'jsn'. Did you mean json?"),
        (
            ["user", "add", "x", "--key-uot", "y"],
            "unknown argument '--key-uot'. Did you mean --key-out?",
        ),
        (["sql", "--format", "xml", "x"], "unknown value 'xml'. Valid: table, json, csv."),
    ],
)
def test_a_misspelt_word_gets_a_suggestion(
    arguments: list[str], said: str, snowmelt: Callable[..., Finished]
) -> None:
    ended = snowmelt(*arguments)
    assert ended.returncode == 2
    assert said in ended.stderr


_MODULES = {
    "confluent-kafka": "confluent_kafka",
    "opentelemetry-sdk": "opentelemetry",
    "prometheus-client": "prometheus_client",
}
# What a plain `pip install snowmelt` does not bring.
_OPTIONAL = sorted(
    _MODULES.get(each, each) for each in set().union(*list_extras().values()) - {"snowmelt"}
)


def _plain(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command where no optional package is installed."""
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({_OPTIONAL!r}))\n"
        f"from snowmelt.cli.main import main; sys.exit(main({list(arguments)!r}))"
    )
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=200
    )


@pytest.mark.slow
def test_a_plain_installation_explains_itself_and_names_what_is_missing(tmp_path: Path) -> None:
    for command in ((), *((each,) for each in COMMANDS)):
        shown = _plain(*command, "--help")
        assert (shown.returncode, shown.stderr) == (0, ""), command
    assert _plain("--version").returncode == 0
    for arguments, package, extra in (
        (("sql", "SHOW TABLES"), "sqlalchemy", "server"),
        (("demo", "--folder", str(tmp_path / "demo")), "rich", "demo"),
    ):
        ended = _plain(*arguments)
        assert ended.returncode == 1
        assert ended.stderr == (
            f"snowmelt: `snowmelt {arguments[0]}` needs the package {package}."
            f" Run: pip install 'snowmelt[{extra}]'.\n"
        )


@pytest.mark.parametrize("module", [*_OPTIONAL, "botocore", "llvmlite"])
def test_a_missing_module_names_an_extra_that_brings_it(module: str) -> None:
    distribution = {"botocore": "boto3", "llvmlite": "numba"}.get(module, module)
    distribution = {there: name for name, there in _MODULES.items()}.get(distribution, distribution)
    for command in COMMANDS:
        assert distribution in list_extras()[find_extra(module, command)], command


@pytest.mark.parametrize(
    ("module", "command", "extra"),
    [
        ("llvmlite", "select", "select"),
        ("botocore", "select", "select"),
        ("sqlalchemy", "copy", "load"),
        ("pyspark", "sql", "spark"),
        ("psycopg", "serve", "postgres"),
        ("quickjs", "sql", "functions"),
    ],
)
def test_the_extra_is_the_commands_own_if_it_brings_the_module(
    module: str, command: str, extra: str
) -> None:
    assert find_extra(module, command) == extra
