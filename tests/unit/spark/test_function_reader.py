"""A worker knows when nobody reads any more what it says."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import socket
ours, theirs = socket.socketpair()
from snowmelt.spark.function_reader import reader
said = [reader()()]
ours.send(b"values")
said.append(reader()())
theirs.close()
said.append(reader()())
print(said)
"""


def test_a_connection_that_is_closed_is_read_by_nobody():
    # In a process of its own, as workers are: others' sockets would count as well.
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=30, check=False
    )
    assert (done.stdout, done.stderr) == ("[True, True, False]\n", "")
