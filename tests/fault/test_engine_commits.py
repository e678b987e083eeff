"""Commits of engines are applied completely and once, despite kills and concurrent work."""

from __future__ import annotations

import itertools
import random
import threading
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException, ValidationException

from fixtures.engine_writes import insert, recording_commits, rows_of, seen_by_snowmelt
from fixtures.engines import Lake

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

    from fixtures.service import KeyPair


pytestmark = pytest.mark.slow
# In the order in which a commit passes them. Only at the last one has it been made.
POINTS = ("load.begun", "load.written", "load.staged", "load.inside_commit", "load.committed")
CREATE = (
    "CREATE TABLE demo.public.w (id NUMBER(9,0) NOT NULL, name VARCHAR, at TIMESTAMP_NTZ)",
    "GRANT SELECT, INSERT, UPDATE, DELETE ON TABLE demo.public.w TO ROLE reading",
    "GRANT INSERT ON TABLE demo.public.w TO ROLE loading",
)


def open_catalog(lake: Any) -> Any:
    return load_catalog("lake", type="rest", uri=lake.uri, warehouse="DEMO", token=lake.token)


def load(catalog: Catalog, count: int) -> Any:
    """Load the table when all of its rows are published."""
    while True:
        table = catalog.load_table("PUBLIC.W")
        if table.scan().count() == count:
            return table


def test_a_commit_whose_process_dies_at_each_point_is_made_once_when_it_is_repeated(
    own_s3: Any, key_pair: KeyPair
) -> None:
    lake = Lake(own_s3, key_pair, fault=f"{POINTS[0]}=kill")
    lake.service.sql(*CREATE)
    insert(lake, "w", 0, 4)
    lake.migrate()
    insert(lake, "w", 4, 4)
    catalog = open_catalog(lake)
    table = load(catalog, 8)
    insert(lake, "w", 8, 2)
    sent: list[Any] = []
    with recording_commits(catalog, sent), pytest.raises(Exception, match="has ended"):
        table.overwrite(rows_of([2, 6]), overwrite_filter="ID = 2 OR ID = 6")
    url, body = sent[-1]
    headers = {"authorization": f"Bearer {lake.token}"}
    before = [(each, f"s{each}") for each in range(10)]
    after = [(each, f"{'e' if each in (2, 6) else 's'}{each}") for each in range(10)]
    for point in POINTS[1:]:
        assert seen_by_snowmelt(lake, "w") == before
        lake.service.kill()
        lake.process.start(fault=f"{point}=kill")
        died = httpx.post(url, content=body, headers=headers, timeout=120)
        assert "has ended" in died.text, point
    assert seen_by_snowmelt(lake, "w") == after
    lake.service.kill()
    lake.process.start()
    for _ in range(2):
        again = httpx.post(url, content=body, headers=headers, timeout=120)
        assert again.status_code == 200, again.text
    assert seen_by_snowmelt(lake, "w") == after
    lake.migrate()
    assert seen_by_snowmelt(lake, "w") == after
    assert load(open_catalog(lake), 10)


class Stream(threading.Thread):
    """Inserter of ten rows at a time until stopped. `rows` is the number of rows."""

    def __init__(self, lake: Any) -> None:
        super().__init__()
        self.lake, self.rows, self.stopped = lake, 0, threading.Event()
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            with self.lake.client() as client:
                channel = client.open_channel("stream", table="demo.public.w")
                while not self.stopped.wait(0.05):
                    ids = range(self.rows, self.rows + 10)
                    channel.insert_rows(
                        [{"id": each, "name": f"s{each}"} for each in ids],
                        offset_token=str(self.rows),
                    )
                    self.rows += 10
                channel.wait_for_commit(str(self.rows - 10))
        except Exception as error:
            self.error = error


@pytest.mark.parametrize("seed", [1])
def test_random_changes_beside_a_stream_migrations_and_compaction(
    own_s3: Any, key_pair: KeyPair, seed: Any
) -> None:
    settings = {
        "migrate": "1",
        "migrate_interval_s": "0.5",
        "migrate_max_age_s": "1",
        "compact_interval_s": "1",
        "compact_min_files": "2",
        "cleanup_interval_s": "1",
    }
    lake = Lake(own_s3, key_pair, **settings)
    lake.service.sql(*CREATE)
    chance = random.Random(seed)
    catalog = open_catalog(lake)
    insert(lake, "w", 900_000, 1)
    load(catalog, 1)
    stream = Stream(lake)
    stream.start()
    removed, changed = set(), {900_000: "s900000"}
    commits = 0
    try:
        for number in itertools.count():
            table = catalog.load_table("PUBLIC.W")
            first = chance.randrange(max(stream.rows, 10))
            where = f"ID >= {first} AND ID < {first + chance.choice([1, 7, 40])}"
            found = table.scan(where, selected_fields=("ID",)).to_arrow()["ID"].to_pylist()
            seen = sorted(map(int, found))
            kind = chance.choice(["append", "delete", "overwrite"])
            try:
                if kind == "append":
                    new = [500_000 + number * 10 + each for each in range(3)]
                    table.append(rows_of(new))
                    changed |= {each: f"e{each}" for each in new}
                elif seen and kind == "delete":
                    table.delete(where)
                    removed |= set(seen)
                elif seen:
                    table.overwrite(rows_of(seen, "u"), overwrite_filter=where)
                    changed |= {each: f"u{each}" for each in seen}
                else:
                    continue
            except (CommitFailedException, ValidationException):
                # A compaction has replaced files that the change has read.
                continue
            commits += 1
            if commits == 6:
                break
    finally:
        stream.stopped.set()
        stream.join()
    assert stream.error is None
    expected = {each: f"s{each}" for each in range(stream.rows)} | changed
    expected = {key: value for key, value in expected.items() if key not in removed}
    assert dict(seen_by_snowmelt(lake, "w")) == expected
    assert len(seen_by_snowmelt(lake, "w")) == len(expected)
    table = load(catalog, len(expected))
    found = table.scan(selected_fields=("ID", "NAME")).to_arrow().to_pylist()
    assert {int(row["ID"]): row["NAME"] for row in found} == expected
