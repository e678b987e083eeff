"""A pool replaces processes that have ended, and errors of a process are raised again."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import msgspec
import pytest

from snowmelt.buckets.errors import S3Error
from snowmelt.config import Settings
from snowmelt.errors import RequestMalformed, ServiceBusy, SnowmeltError, StatementFailed, UserError
from snowmelt.replication.protocol import ExportRequest, ReadBlobsRequest, ReadBlobsResponse
from snowmelt.select.errors import SelectError
from snowmelt.server.request_process import RequestProcessPool, make_failure
from snowmelt.storage.local_store import LocalStore
from snowmelt.wire.sites import READ_BLOBS_PATH

MODULE = "snowmelt.server.replication.export_process"


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (StatementFailed(reason="it was canceled"), StatementFailed),
        (SelectError("InvalidColumn", "unknown column nme"), UserError),
        (S3Error("NoSuchKey", "there is no such object"), UserError),
    ],
)
def test_an_error_keeps_its_kind_and_text(error: SnowmeltError, kind: type[SnowmeltError]) -> None:
    with pytest.raises(kind) as raised:
        make_failure(error, "a task").get_body()
    assert type(raised.value) is kind
    assert str(raised.value) == str(error)
    assert raised.value.status == error.status


def find_processes() -> list[int]:
    """Return the processes of the pool."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        # Other processes may end meanwhile.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and MODULE.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


def test_a_pool_replaces_a_process_that_was_killed(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    LocalStore(tmp_path / "stage").put("a", b"rows")
    request = ReadBlobsRequest(group="G", paths=["a", "b"])
    pool = RequestProcessPool(settings, MODULE, 1, "test")

    def send(body: bytes) -> bytes:
        return pool.request(msgspec.msgpack.encode(ExportRequest(READ_BLOBS_PATH, body)), 120)

    with contextlib.closing(pool):
        for _ in range(2):
            answer = send(msgspec.json.encode(request))
            found = msgspec.msgpack.decode(answer, type=ReadBlobsResponse)
            assert found.contents == [b"rows", None]
            with pytest.raises(RequestMalformed, match="group"):
                send(b"{}")
            [process_id] = find_processes()
            os.kill(process_id, signal.SIGKILL)
            os.waitid(os.P_PID, process_id, os.WEXITED | os.WNOWAIT)
    with pytest.raises(ServiceBusy, match="stopping"):
        send(b"{}")
