"""What pages printed under a former name is there for one release, and says where it is now."""

from __future__ import annotations

import importlib
import sys

import pytest

import snowmelt.functions
from snowmelt.functions.caller.plan import CallerOptions
from snowmelt.testing import Failpoint, Point
from snowmelt.testing.crash_harness import CrashHarness, CrashResult


@pytest.mark.parametrize(
    ("module", "name", "now"),
    [
        ("snowmelt.testing.crashes", "CrashSite", CrashHarness),
        ("snowmelt.testing.crashes", "Outcome", CrashResult),
    ],
)
def test_a_former_place_warns_and_has_the_same(module, name, now):
    sys.modules.pop(module, None)
    with pytest.warns(DeprecationWarning, match="next release"):
        found = importlib.import_module(module)
    assert getattr(found, name) is now


def test_callers_options_are_exported():
    assert snowmelt.functions.CallerOptions is CallerOptions
    assert Point is Failpoint
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        _ = snowmelt.functions.other
