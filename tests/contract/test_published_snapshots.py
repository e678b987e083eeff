"""Publications and fresh files are stored and listed alike in each database."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

from fixtures.catalog import START, World
from snowmelt.catalog.objects import published_snapshots as catalog
from snowmelt.catalog.objects.published_snapshots import FreshFile, PublishedSnapshot
from snowmelt.catalog.objects.tables import find_table_by_id
from snowmelt.catalog.streaming.chunks import list_chunks, list_quarantined_chunk_records


def test_what_a_round_stores_is_listed(world: World) -> None:
    table = world.table()
    table_id = table.table_id
    second = dt.timedelta(seconds=1)
    first = PublishedSnapshot(0, table_id, False, None, 1, 1, 5, "m0", ("m0",), "{}", START)
    newer = replace(first, up_to_seq=2, metadata_path="m1", files=("m1", "list"))
    with world.database.writing() as connection:
        catalog.record_demand(connection, table_id, native_only=False, now=START)
        catalog.set_stalled_reason(connection, table_id, "corrupt", native_only=False)
        for number, publication in enumerate((first, newer)):
            catalog.add_publication(connection, publication)
            file = FreshFile(0, number, number + 1, 0, f"f{number}", 10, b"entry")
            catalog.add_fresh_file(connection, table_id, file, now=START)
        [last] = catalog.list_publications(connection, table_id, native_only=False, limit=1)
        assert replace(last, publication_id=0) == newer
        assert catalog.hold_publication(connection, last, START)
        held = [
            catalog.list_held_publications(connection, table_id, since=since, limit=9)
            for since in (START, START + second)
        ]
        assert held == [[last], []]
        files = catalog.list_fresh_files(connection, table_id)
        assert [(file.from_seq, file.path, file.entry) for file in files] == [
            (0, "f0", b"entry"),
            (1, "f1", b"entry"),
        ]
        reason = catalog.find_stalled_reason(connection, table_id, native_only=False)
        assert reason == "corrupt"
        assert find_table_by_id(connection, table_id) == table
        assert list_chunks(connection, table_id, 0, 2**40) == []
        assert list_quarantined_chunk_records(connection, table_id) == []
