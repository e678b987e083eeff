"""Which tests stay together in one process when several processes share the run.

`--dist=loadgroup` of pytest-xdist 3.8 groups nothing under pytest 9.2: it renames items, which
pytest does not heed any more. So the groups come to its scheduler in a file.
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
except ImportError:  # whoever runs one file needs no second process
    LoadScopeScheduling = object

# What is started once for a run, dear things first: the tests that use it stay in one process.
# So do those of the compiled engine, which the first of them compiles for all to come.
_SHARED = ("spark", "select", "apache_kafka", "kafka", "seaweed", "s3", "shared_service")
_COMPILED = ("tests/unit/select/", "tests/unit/cli/commands/test_select.py")
# Whole minutes come first and what is quick last, so that all processes end together.
_FOLDERS = ("tests/fault", "tests/model", "tests/architecture", "tests/flow", "tests/contract")
_FILE = "groups_file"


class Groups(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Hands out whole groups, in the order of the collection."""

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
    """Order the items by group and tell the scheduler; alone, change nothing."""
    given = getattr(config, "workerinput", {}).get(_FILE)
    if given is None:
        return
    group_of = {item.nodeid: _group(item) for item in items}
    items.sort(key=lambda item: _place(group_of[item.nodeid]))
    # Every worker writes the same.
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
