"""Groups of tests that run in the same process when several processes share the run.

`--dist=loadgroup` of pytest-xdist 3.8 has no effect with pytest 9.2: it renames items, and pytest
ignores the new names. The scheduler therefore reads the groups from a file.
"""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any, cast

import pytest

try:
    from xdist.scheduler.loadscope import LoadScopeScheduling
except ImportError:  # Not installed: runs of single files need one process.
    LoadScopeScheduling = object

# Fixtures that start once per run, the most expensive first: tests that use one stay in one
# process. So do tests of the compiled engine, because the first one compiles it for the others.
_SHARED = ("spark", "select", "apache_kafka", "kafka", "seaweed", "s3", "shared_service")
_COMPILED = ("tests/unit/select/", "tests/unit/cli/commands/test_select.py")
# Long groups first and short ones last, so that all processes end at about the same time.
_FOLDERS = ("tests/fault", "tests/model", "tests/architecture", "tests/flow", "tests/contract")
_FILE = "groups_file"


class Groups(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Scheduler that assigns whole groups in the order of collection."""

    def __init__(self, config: pytest.Config, log: Any, path: Path) -> None:
        super().__init__(config, log)
        self._path = path
        self._groups: dict[str, str] = {}

    def _split_scope(self, nodeid: str) -> str:
        if not self._groups:
            self._groups = json.loads(self._path.read_text())
        return self._groups[nodeid]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups | None:
    if config.getvalue("dist") == "loadgroup":
        return Groups(config, log, _path(config))
    return None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput[_FILE] = str(_path(node.config))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the items by group and write the groups for the scheduler. No effect with one process."""
    given = getattr(config, "workerinput", {}).get(_FILE)
    if given is None:
        return
    group_of = {item.nodeid: _group(item) for item in items}
    items.sort(key=lambda item: _place(group_of[item.nodeid]))
    # Every worker writes the same file.
    own = Path(f"{given}.{os.getpid()}")
    own.write_text(json.dumps(group_of))
    own.replace(given)


def _path(config: Any) -> Path:
    if not hasattr(config, _FILE):
        folder = tempfile.TemporaryDirectory(prefix="snowmelt-groups-")
        config.add_cleanup(folder.cleanup)
        setattr(config, _FILE, Path(folder.name, "groups.json"))
    return cast("Path", getattr(config, _FILE))


def _group(item: pytest.Item) -> str:
    if item.nodeid.startswith(_COMPILED):
        return "select"
    used = set(getattr(item, "fixturenames", ()))
    return next((name for name in _SHARED if name in used), item.nodeid.partition("::")[0])


def _place(group: str) -> tuple[int, str]:
    if group in _SHARED:
        return _SHARED.index(group), group
    place = [number for number, folder in enumerate(_FOLDERS) if group.startswith(folder)]
    return len(_SHARED) + (place[0] if place else len(_FOLDERS)), group
