"""The thread of calls: a fork has its own, and no process waits for it at its end."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import textwrap
from multiprocessing import get_context
from pathlib import Path

import pytest

from snowmelt.functions.proxy.http1 import HttpMessage, encode_message
from snowmelt.functions.proxy.relay import LoopbackHttpServer
from support import function_calls


@pytest.fixture(autouse=True)
def own_files(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


@pytest.fixture(scope="module")
def service():
    """Echo, a moment later where the path says so."""

    async def answer(request, writer):
        rows = json.loads(request.body)["data"]
        await asyncio.sleep(0.01 if "late" in request.target else 0)
        body = json.dumps({"data": [row[:2] for row in rows]}).encode()
        writer.write(encode_message(HttpMessage("HTTP/1.1 200 OK", {}, body)))
        return True

    with LoopbackHttpServer(answer) as server:
        yield server.url


def _in_child(url, results):
    results.put(function_calls.ask(function_calls.plan(url), function_calls.rows(["b"])))


def test_a_forked_process_has_a_thread_of_its_own(service):
    assert function_calls.ask(function_calls.plan(f"{service}/"), function_calls.rows(["a"])) == [
        "a"
    ]
    context = get_context("fork")
    results = context.SimpleQueue()
    child = context.Process(target=_in_child, args=(f"{service}/", results))
    child.start()
    child.join(200)
    assert child.exitcode == 0
    assert results.get() == ["b"]
    assert function_calls.ask(function_calls.plan(f"{service}/"), function_calls.rows(["c"])) == [
        "c"
    ]


@pytest.mark.slow
def test_a_process_ends_though_calls_are_under_way(service):
    script = f"""
        import sys
        sys.path.insert(0, {str(Path(function_calls.__file__).parents[1])!r})
        from support import call_plans, function_calls
        from snowmelt.functions.caller import pipeline
        from support.call_logs import InMemoryCallLog
        with_open_calls = pipeline.call_function(
            function_calls.plan("{service}/late", max_batch_rows=1, max_in_flight=8),
            call_plans.place(), iter(function_calls.rows(["a"] * 50)), InMemoryCallLog())
        print(next(with_open_calls).to_pylist()[0])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "a\n", "")
