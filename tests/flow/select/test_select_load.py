"""Start, memory and fairness of the endpoint. Times are only printed, because the machine is shared."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from fixtures.s3 import S3Process
from support.select_wire import ask, begin, forget_peak, memory_of, request_body, understood, until

MIB = 1024 * 1024
BLOCK = b"".join(
    b"%d,2026-01-%02dT00:00:00Z,%d.%02d,some text here,%d\n" % (n, n % 28 + 1, n % 97, n % 100, n)
    for n in range(20_000)
)
FILTER = request_body("select _1 from s3object where cast(_3 as float) > 96.98")


def write_object(path: Path, size: int) -> int:
    with path.open("wb") as file:
        while file.tell() < size:
            file.write(BLOCK)
        return file.tell()


@pytest.fixture
def front(own_s3: S3Process, tmp_path: Path) -> tuple[S3Process, Path]:
    """An endpoint for a folder, with loaded kernels."""
    folder = tmp_path / "folder"
    folder.mkdir()
    own_s3.start(s3_backend=f"front={folder}")
    own_s3.add_user("admin", "accountadmin")
    assert until(lambda: "the kernels are compiled" in own_s3.service.log, 280)
    return own_s3, folder


@pytest.mark.slow
def test_the_first_query_after_a_start_finds_everything_ready(own_s3: S3Process) -> None:
    own_s3.start()
    own_s3.add_user("admin", "accountadmin")
    client = own_s3.client()
    client.create_bucket(Bucket="data")
    client.put_object(Bucket="data", Key="object", Body=BLOCK)
    # Compile the kernels that are not cached.
    assert until(lambda: "the kernels are compiled" in own_s3.service.log, 280)
    own_s3.service.stop()
    began = time.perf_counter()
    own_s3.start()
    ready = time.perf_counter() - began
    began = time.perf_counter()
    assert ask(own_s3, "data", "object", FILTER).whole
    first = time.perf_counter() - began
    began = time.perf_counter()
    assert ask(own_s3, "data", "object", FILTER).whole
    second = time.perf_counter() - began
    print(f"answers after {ready:.1f} s; first query {first:.2f} s, second {second:.2f} s")


@pytest.mark.slow
def test_memory_does_not_grow_with_the_object(front: tuple[S3Process, Path]) -> None:
    s3, folder = front
    size = write_object(folder / "object", 500 * MIB)
    ask(s3, "front", "object", request_body("select _1 from s3object limit 1"))
    before = memory_of(s3.pid)
    forget_peak(s3.pid)
    began = time.perf_counter()
    found = ask(s3, "front", "object", FILTER)
    took = time.perf_counter() - began
    assert found.counts["BytesScanned"] == size
    # Send the whole result to a client that is slower than the service.
    connection, answer = begin(s3, "front", "object", request_body("select * from s3object"))
    received, tail = 0, b""
    while piece := answer.read(4 * MIB):
        received += len(piece)
        tail = piece[-56:]
    connection.close()
    assert received > size
    assert b"End" in tail
    grown = memory_of(s3.pid, "VmHWM") - before
    print(f"{size / took / 1e6:.0f} MB/s; grew by {grown / MIB:.0f} MiB from {before / MIB:.0f}")
    assert grown <= 200 * MIB


@pytest.mark.slow
def test_fifty_queries_at_a_time_share_fairly_and_stay_small(front: tuple[S3Process, Path]) -> None:
    s3, folder = front
    write_object(folder / "object", 50 * MIB)
    expected = ask(s3, "front", "object", FILTER).output
    gate = threading.Barrier(50)
    times: list[float] = []
    wrong: list[object] = []

    def run() -> None:
        gate.wait()
        began = time.perf_counter()
        connection, answer = begin(s3, "front", "object", FILTER)
        found = understood(answer.status, answer.read())
        connection.close()
        times.append(time.perf_counter() - began)
        if found.output != expected:
            wrong.append(found.code or len(found.output))

    forget_peak(s3.pid)
    threads = [threading.Thread(target=run) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    peak = memory_of(s3.pid, "VmHWM")
    print(
        f"fastest {min(times):.1f} s, slowest {max(times):.1f} s "
        f"({max(times) / min(times):.2f}x), {peak / MIB:.0f} MiB"
    )
    assert peak <= 1024 * MIB
