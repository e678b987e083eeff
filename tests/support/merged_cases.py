"""Option `--cases-together`: the cases of a test that share all fixtures become one test.

The overhead of a test is 4 ms with two processes, and thousands of cases take less time than that.
Every failed case is reported by name, and the cases after it still run. Without the option, each
case is a test and can be selected by name.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator

import pytest
from _pytest.python import CallSpec, DirectParamFixtureDef

_TOLD = (Exception, pytest.fail.Exception, pytest.skip.Exception)
_CASES = pytest.StashKey[dict[str, list[CallSpec]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cases-together", action="store_true", help="cases of a test run as one")


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> Iterator[None]:
    """Keep one of the cases, and store all of them in it."""
    yield
    cases = metafunc._calls
    if not metafunc.config.getoption("cases_together") or not _alike(metafunc, cases):
        return
    metafunc.config.stash.setdefault(_CASES, {})[metafunc.definition.nodeid] = cases
    metafunc._calls = [dataclasses.replace(cases[0], _idlist=())]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    cases = pyfuncitem.config.stash.get(_CASES, {}).get(pyfuncitem.nodeid)
    if cases is None:
        return None
    shared = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    for case in cases:
        try:
            pyfuncitem.obj(**shared | case.params)
        except _TOLD as error:
            with pyfuncitem._request.getfixturevalue("subtests").test(case.id):
                raise error
    return True


def _alike(metafunc: pytest.Metafunc, cases: list[CallSpec]) -> bool:
    """Return True if no fixture is set up per case."""
    marked = {mark.name for mark in metafunc.definition.iter_markers()} - {"parametrize"}
    if len(cases) < 2 or marked or any(case.marks for case in cases):
        return False
    function = metafunc.function
    if inspect.iscoroutinefunction(function) or hasattr(function, "is_hypothesis_test"):
        return False
    return all(_shared(metafunc, name, cases[0]) for name in metafunc.fixturenames)


def _shared(metafunc: pytest.Metafunc, name: str, case: CallSpec) -> bool:
    found = metafunc._arg2fixturedefs.get(name, ())
    if name in case.params:
        return all(isinstance(each, DirectParamFixtureDef) for each in found)
    return bool(found) and found[-1].scope != "function"
