"""`--cases-together`: the cases of a test that share all of its fixtures are one test of the run.

What a test costs beside its own work is four milliseconds in two processes, and thousands of cases
take less each. Every case that fails is told by its name, and those behind it are run as well.
Without the option each case is a test, to be asked for by its name.
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
    """Leave one of the cases, and note all of them."""
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
    """Tell whether nothing is set up for one case that another must not see."""
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
