"""The package builds, and an installation from the wheel alone does what the pages say of it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


def uv(*arguments: Path | str, cwd: Path = ROOT) -> subprocess.CompletedProcess[Any]:
    """Run uv, which `./run` found or installed."""
    program = shutil.which("uv", path=f"{os.environ['PATH']}:{ROOT / '.tools' / 'bin'}")
    assert program is not None
    done = subprocess.run(
        [program, *map(str, arguments)], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("dist")
    uv("build", "--quiet", "--out-dir", folder)
    (wheel,) = folder.glob("*.whl")
    (source,) = folder.glob("*.tar.gz")
    return wheel, source


@pytest.fixture(scope="module")
def installed(archives: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment with the wheel and what it requires."""
    environment = tmp_path_factory.mktemp("installed") / "env"
    uv("venv", "--quiet", environment)
    uv("pip", "install", "--quiet", "--python", environment, archives[0])
    return environment / "bin"


def run(program: Path, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(cwd)}
    return subprocess.run(
        [program, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )


def test_the_archives_hold_the_package_and_nothing_of_the_tests(
    archives: tuple[Path, Path],
) -> None:
    wheel, source = archives
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
    assert "snowmelt/py.typed" in names
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"snowmelt"}
    with tarfile.open(source) as opened:
        tops = {name.split("/")[1] for name in opened.getnames() if "/" in name}
    assert {"src", "README.md", "LICENSE", "pyproject.toml"} <= tops
    assert not tops & {"tests", "benchmarks", "docs"}


def test_two_builds_are_equal(archives: tuple[Path, Path], tmp_path: Path) -> None:
    uv("build", "--quiet", "--out-dir", tmp_path)
    for first in archives:
        assert first.read_bytes() == (tmp_path / first.name).read_bytes(), first.name


def test_a_plain_installation_shows_version_and_help(installed: Path, tmp_path: Path) -> None:
    version = run(installed / "snowmelt", "-V", cwd=tmp_path)
    assert (version.returncode, version.stderr) == (0, "")
    assert version.stdout.startswith("snowmelt 0.")
    shown = run(installed / "snowmelt", "--help", cwd=tmp_path)
    assert (shown.returncode, shown.stderr) == (0, "")
    module = run(installed / "python", "-m", "snowmelt", "serve", "--help", cwd=tmp_path)
    assert "--port" in module.stdout


def test_a_plain_installation_has_the_client_and_the_kit(installed: Path, tmp_path: Path) -> None:
    code = (
        "import snowmelt; snowmelt.Client, snowmelt.stream;"
        "from snowmelt.functions.service import RemoteService; RemoteService('x').asgi()"
    )
    done = run(installed / "python", "-c", code, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("command", "extra"),
    [("serve", "server"), ("copy", "load"), ("select", "select"), ("demo", "demo")],
)
def test_a_command_whose_extra_is_missing_names_it(
    installed: Path, tmp_path: Path, command: str, extra: str
) -> None:
    arguments = {"copy": ["COPY a FROM 'b'"], "select": ["x.csv", "select 1"]}.get(command, [])
    ended = run(installed / "snowmelt", command, *arguments, cwd=tmp_path)
    assert ended.returncode == 1
    assert f"pip install 'snowmelt[{extra}]'" in ended.stderr
