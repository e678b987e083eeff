"""A worker knows how much of what it says is not read yet, and when nobody reads any more."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import socket
{pair}
from snowmelt.spark.functions.worker import find_output_reader
said = [find_output_reader().is_open(), find_output_reader().unread_bytes()]
ours.send(b"values" * 1000)
said += [find_output_reader().is_open(), find_output_reader().unread_bytes() >= 6000]
while len(theirs.recv(6000, socket.MSG_DONTWAIT | socket.MSG_PEEK)):
    theirs.recv(6000)
    if not find_output_reader().unread_bytes():
        break
said += [find_output_reader().unread_bytes()]
theirs.close()
said += [find_output_reader().is_open()]
print(said)
"""
LOCAL = "ours, theirs = socket.socketpair()"
# As Spark's JVM listens: for both versions of IP.
TCP = """
listening = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
ours = socket.create_connection(("127.0.0.1", listening.getsockname()[1]))
theirs, _ = listening.accept()
listening.close()
"""


@pytest.mark.parametrize("pair", [LOCAL, TCP])
def test_what_the_other_end_has_read_is_known(pair: str) -> None:
    # In a process of its own, as workers are: others' sockets would count as well.
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(pair=pair)],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("[True, 0, True, True, 0, False]\n", "")
