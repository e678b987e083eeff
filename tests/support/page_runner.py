"""Runs the commands and code of a documentation page in order, as a reader would.

Blocks of the languages `console`, `python` and `sql` run in one temporary folder: `console` in one shell,
`python` in one interpreter, `sql` statement by statement through `lake.sql` of that interpreter.
The expected output is below a command, or in a `text` block below a block. `…` matches any text,
and alone on a line any lines. Invisible comments in the page control the run:

    <!-- not run: REASON -->       the next block is not run
    <!-- fails -->                 the next block's last command must fail
    <!-- setup console             commands or code that the page takes for granted
    $ …
    -->
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support import forked_command, forked_processes
from support.ports import free_port

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

# Ports of the service, the S3 endpoint, and a service of functions.
PORTS = ("8080", "9000", "8700")
_PORT = re.compile(rf"(?:(?<=127\.0\.0\.1:)|(?<=--port ))(?:{'|'.join(PORTS)})\b")
_PARTS = re.compile(
    r"^<!-- not run: (?P<reason>.+?) -->\n|^<!-- (?P<fails>fails) -->\n"
    r"|^<!-- setup (?P<setup>\w+)\n(?P<hidden>.*?)^-->\n"
    r"|^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^ *```\n",
    re.DOTALL | re.MULTILINE,
)
_END = "--- end of output, status "
_INTERPRETER = f"""
import sys, traceback
names = {{"__name__": "__main__"}}
for size in iter(sys.stdin.readline, ""):
    status = 0
    try:
        exec(compile(sys.stdin.read(int(size)), "page", "exec"), names)
    except BaseException:
        traceback.print_exc()
        status = 1
    print(f"\\n{_END}{{status}}", flush=True)
"""
_SQL = """
from snowmelt.cli.main import main as _command
if {statement!r}.split()[0].upper() in ("SELECT", "INSERT", "WITH", "COPY"):
    if "lake" not in globals():
        from snowmelt.spark import Snowmelt
        lake = Snowmelt.local("./snowmelt-data")
    lake.sql({statement!r}).show(truncate=False)
elif _command(["sql", {statement!r}]):
    raise SystemExit("the statement failed")
"""


@dataclass(frozen=True)
class Block:
    """A block of a page. `expected` is None if the page shows no output."""

    language: str
    code: str
    line: int
    fails: bool = False
    expected: str | None = None


def blocks(page: str) -> list[Block]:
    """Return the blocks of a page that run. A `text` block is the output of the block before it."""
    text = (DOCS / page).read_text("utf-8")
    found: list[Block] = []
    left_out = fails = False
    end = -1
    for match in _PARTS.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        if match["reason"]:
            left_out = True
        elif match["fails"]:
            fails = True
        elif match["setup"]:
            found.append(Block(match["setup"], match["hidden"], line))
        elif match["language"] == "text" and found and end >= 0:
            if not text[end : match.start()].strip():
                last = found.pop()
                found.append(Block(last.language, last.code, last.line, last.fails, match["code"]))
        else:
            end = -1
            if match["language"] in ("console", "python", "sql") and not left_out:
                indent = match["indent"]
                code = re.sub(rf"^{indent}", "", match["code"], flags=re.MULTILINE)
                found.append(Block(match["language"], code, line, fails))
                end = match.end()
            left_out = fails = False
    return found


class PageRun:
    """Run of a page in `folder`. Ends every process that the page started."""

    def __init__(self, page: str, folder: Path) -> None:
        """Replace the ports in the page (`PORTS`) with free ports."""
        self.page = page
        self._folder = folder
        self._ports = {written: str(free_port()) for written in PORTS}
        bin_folder = Path(sys.executable).parent
        # Most commands take longer to import what they need than to do what they are for.
        self._commands = tempfile.TemporaryDirectory(prefix="snowmelt-commands-")
        self._server = forked_processes.get_server_socket()
        forked_command.install(Path(self._commands.name), self._server)
        self._environment = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith("SNOWMELT_")
            },
            "PATH": f"{self._commands.name}:{bin_folder}:{os.environ['PATH']}",
            "HOME": str(folder),
            "SNOWMELT_PORT": self._ports["8080"],
            "SNOWMELT_S3_PORT": self._ports["9000"],
            "SPARK_LOCAL_IP": "127.0.0.1",
            "COLUMNS": "100",
            "PYTHONUNBUFFERED": "1",
            "NUMBA_CACHE_DIR": os.environ.get(
                "NUMBA_CACHE_DIR", str(ROOT / ".venv" / "numba-cache")
            ),
        }
        self._shell = subprocess.Popen(
            ["bash", "--noprofile", "--norc"], **self._options(), pass_fds=[self._server.fileno()]
        )
        self._python: subprocess.Popen[str] | None = None

    def _options(self) -> dict[str, Any]:
        return {
            "cwd": self._folder,
            "env": self._environment,
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
            "text": True,
            "start_new_session": True,
        }

    def __enter__(self) -> PageRun:
        """Return this run."""
        return self

    def __exit__(self, *_: object) -> None:
        """End all processes of the page."""
        for process in filter(None, (self._python, self._shell)):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()
        self._commands.cleanup()

    def run(self) -> None:
        """Run every block. Raises AssertionError if one fails or prints something else."""
        for block in blocks(self.page):
            code = self._with_ports(block.code)
            expected = None if block.expected is None else self._with_ports(block.expected)
            where = f"{self.page}, line {block.line}"
            if block.language == "console":
                self._console(where, code, block.fails)
            elif block.language == "python":
                self._check(where, code, *self._exec(code), block.fails, expected)
            else:
                statements = [each.strip() for each in re.split(r";\s*(?:\n|$)", code)]
                output = ""
                for statement in filter(None, statements):
                    status, printed = self._exec(_SQL.format(statement=statement))
                    self._check(where, statement, status, printed, block.fails, None)
                    output += printed
                self._check(where, code, 0, output, fails=False, expected=expected)

    def _with_ports(self, text: str) -> str:
        return _PORT.sub(lambda match: self._ports[match[0]], text)

    def _console(self, where: str, code: str, fails: bool) -> None:
        commands = re.split(r"^\$ ", code, flags=re.MULTILINE)
        assert not commands[0].strip(), f"{where}: a command begins with '$ '"
        for number, each in enumerate(commands[1:], 2):
            command, expected = _command_and_output(each)
            background = re.search(r"&\s*(#.*)?$", command)
            if background:
                command = f"{command[: background.start()]} >background.log 2>&1 &"
            status, printed = self._talk(self._shell, f"{command}\nprintf '\\n{_END}%s\\n' $?\n")
            self._check(
                where, command, status, printed, fails and number == len(commands), expected or None
            )

    def _exec(self, code: str) -> tuple[int, str]:
        # Variables that the page exported in its shell also apply to its Python programs.
        command = f"{sys.executable} -SE -c 'import json, os; print(json.dumps(dict(os.environ)))'"
        _, printed = self._talk(self._shell, f"{command}; printf '\\n{_END}0\\n'\n")
        self._environment = json.loads(printed)
        if self._python is None:
            interpreter = [sys.executable, "-c", _INTERPRETER]
            self._python = forked_processes.Popen(interpreter, **self._options())
        self._talk(self._python, _sized(f"import os\nos.environ.update({self._environment!r})"))
        return self._talk(self._python, _sized(code))

    @staticmethod
    def _talk(process: subprocess.Popen[str], text: str) -> tuple[int, str]:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(text)
        process.stdin.flush()
        printed = ""
        for line in process.stdout:
            if line.startswith(_END):
                return int(line.removeprefix(_END)), printed
            printed += line
        raise AssertionError(f"the process ended after it had printed:\n{printed}")

    @staticmethod
    def _check(
        where: str, code: str, status: int, printed: str, fails: bool, expected: str | None
    ) -> None:
        assert (status != 0) == fails, (
            f"{where}: status {status} of\n{code}\nwhich printed:\n{printed}"
        )
        if expected is not None:
            assert fits(expected, printed), (
                f"{where}:\n{code}\nprinted:\n{printed}\nnot:\n{expected}"
            )


def _sized(code: str) -> str:
    return f"{len(code)}\n{code}"


def _command_and_output(text: str) -> tuple[str, str]:
    """Split a command, which may continue over lines and here-documents, from its output."""
    lines = text.split("\n")
    end = 1
    while end < len(lines) and _unfinished("\n".join(lines[:end])):
        end += 1
    return "\n".join(lines[:end]), "\n".join(lines[end:])


def _unfinished(command: str) -> bool:
    here = re.search(r"<<\s*'?(\w+)'?", command)
    if here:
        return here[1] not in command.split("\n")[1:]
    if command.endswith("\\"):
        return True
    checked = subprocess.run(
        ["bash", "-n", "-c", command], capture_output=True, text=True, check=False
    )
    return checked.returncode != 0


def fits(expected: str, printed: str) -> bool:
    """Return True if the output matches. Ignores blank lines and blanks at line ends."""
    shown = (line.rstrip() for line in expected.split("\n") if line.strip())
    pattern = "".join(
        r"(?:.*\n)*?" if line == "…" else re.escape(line).replace("…", ".*") + r"\n"
        for line in shown
    )
    given = "\n".join(line.rstrip() for line in printed.split("\n") if line.strip())
    return re.search(rf"^{pattern}", f"{given}\n", re.MULTILINE) is not None
