"""`snowmelt completion`: a script that shells accept, with every command."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from unit.cli.conftest import Finished


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_the_script_names_commands_and_options(
    snowmelt: Callable[..., Finished], shell: str
) -> None:
    ended = snowmelt("completion", shell)
    assert ended.returncode == 0, ended.stderr
    for word in ("serve", "channels", "--data-dir", "--private-key"):
        assert word.removeprefix("--") in ended.stdout


def test_bash_completes_with_it(snowmelt: Callable[..., Finished], tmp_path: Path) -> None:
    script = tmp_path / "completion.bash"
    script.write_text(snowmelt("completion", "bash").stdout)
    ask = (
        f"source {script}; COMP_WORDS=(snowmelt chan); COMP_CWORD=1; "
        "COMP_LINE='snowmelt chan'; COMP_POINT=13; _shtab_snowmelt; echo ${COMPREPLY[@]}"
    )
    done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["channels"], done.stderr
