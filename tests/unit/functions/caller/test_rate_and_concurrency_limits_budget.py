"""A task and a query spend no more than their settings allow."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from snowmelt.clock import ManualClock
from snowmelt.functions.caller.plan import CallerOptions
from snowmelt.functions.caller.rate_and_concurrency_limits import CallBudget
from snowmelt.functions.definition import FailureAction
from snowmelt.functions.errors import BudgetExceeded
from support import call_plans, function_calls
from support.call_plans import place, plan
from support.raw_service import RawService, reply

_SPENDER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from support.call_plans import place, plan
from snowmelt.clock import SystemClock
from snowmelt.functions.caller.rate_and_concurrency_limits import CallBudget
from snowmelt.functions.caller.plan import CallerOptions
from snowmelt.functions.errors import BudgetExceeded
options = CallerOptions(max_calls_per_query=1000)
budget = CallBudget(plan(options), place(), SystemClock(), folder=Path(sys.argv[2]))
spent = 0
try:
    while True:
        budget.spend(rows=10)
        spent += 1
except BudgetExceeded:
    print(spent)
"""


@pytest.fixture
def clock():
    return ManualClock(dt.datetime(2026, 1, 1, tzinfo=dt.UTC))


def budget(clock, folder, query_id="query", **limits):
    options = CallerOptions(**limits)
    return CallBudget(plan(options), place(query_id=query_id), clock, folder=folder)


def test_a_task_spends_up_to_its_limit_and_the_error_names_the_setting(clock, tmp_path):
    task = budget(clock, tmp_path, max_rows_per_task=100)
    task.spend(rows=60)
    task.spend(rows=40)
    with pytest.raises(BudgetExceeded, match="max_rows_per_task = 100"):
        task.spend(rows=1)
    assert [*tmp_path.iterdir()] == []


def test_what_is_refused_is_not_spent(clock, tmp_path):
    task = budget(clock, tmp_path, max_rows_per_task=100)
    with pytest.raises(BudgetExceeded):
        task.spend(rows=101)
    task.spend(rows=100)


def test_a_retry_is_a_call_without_rows(clock, tmp_path):
    task = budget(clock, tmp_path, max_rows_per_task=10, max_calls_per_task=3)
    task.spend(rows=10)
    task.spend()
    task.spend()
    with pytest.raises(BudgetExceeded, match="max_calls_per_task = 3"):
        task.spend()


def test_tasks_of_a_query_share_its_budget_and_other_queries_have_theirs(clock, tmp_path):
    first, second = (budget(clock, tmp_path, max_rows_per_query=100) for _ in range(2))
    other = budget(clock, tmp_path, "another", max_rows_per_query=100)
    first.spend(rows=70)
    with pytest.raises(BudgetExceeded, match="max_rows_per_query = 100"):
        second.spend(rows=31)
    second.spend(rows=30)
    other.spend(rows=100)
    for each in (first, second, other):
        each.close()


def test_machines_share_a_query_s_budget_out_and_the_error_names_the_whole(clock, tmp_path):
    part = budget(clock, tmp_path, max_calls_per_query=10, executors=3)
    for _ in range(3):
        part.spend()
    reason = r"max_calls_per_query = 10 \(the share of each of 3 machines is 3\) does not"
    with pytest.raises(BudgetExceeded, match=reason):
        part.spend()
    part.close()


@pytest.mark.parametrize("whose", ["task", "query"])
@pytest.mark.parametrize("what", ["rows", "calls"])
def test_a_budget_of_nothing_lets_nothing_be_sent(clock, tmp_path, whose, what):
    none = budget(clock, tmp_path, **{f"max_{what}_per_{whose}": 0})
    with pytest.raises(BudgetExceeded, match=f"max_{what}_per_{whose} = 0 does not"):
        none.spend(rows=1)
    none.close()


@pytest.mark.parametrize("status", [503, 429, 202], ids=str)
@pytest.mark.parametrize("setting", ["max_calls_per_query", "max_calls_per_task"])
def test_every_request_that_a_service_sees_is_a_call(status, setting):
    with RawService(reply(status)) as service:
        plan = function_calls.plan(
            f"{service.url}/f",
            options={setting: 2},
            on_batch_failure=FailureAction.RETURN_NULL,
        )
        with pytest.raises(BudgetExceeded, match=f"echo: the budget {setting} = 2 does not"):
            function_calls.ask(plan, function_calls.rows(["a"]), place=call_plans.place(query_id=uuid.uuid4().hex),
                       clock=function_calls.clock())  # fmt: skip
        assert len(service.requests) == 2


def test_files_of_queries_long_over_are_removed(clock, tmp_path):
    budget(clock, tmp_path, "old", max_calls_per_query=10).close()
    (old,) = tmp_path.iterdir()
    written = clock.now().timestamp()
    os.utime(old, (written, written))
    clock.advance(8 * 24 * 3600)
    budget(clock, tmp_path, "new", max_calls_per_query=10).close()
    assert old not in [*tmp_path.iterdir()]


@pytest.mark.slow
def test_processes_together_spend_exactly_the_budget(tmp_path):
    tests = str(Path(call_plans.__file__).parents[1])
    command = [sys.executable, "-c", _SPENDER, tests, str(tmp_path)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(3)]
    spent = [int(process.communicate(timeout=200)[0]) for process in processes]
    assert sum(spent) == 1000
