"""Damage to a data folder, made only through its SQLite, Avro and Parquet files.

Each function damages a site, and returns findings (with the names that they must contain) of which
a check must report at least one. The code is independent of the check.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq


@dataclass(frozen=True)
class Expected:
    """Alternative findings, of which a check must report one.

    Its subject or detail must contain `named`.
    """

    findings: frozenset[str]
    named: str = ""


def expect(*findings: str, named: object = "") -> Expected:
    """Return the expectation that a check reports one of these findings."""
    return Expected(frozenset(findings), str(named))


@dataclass
class Site:
    """Data folder with the table NUMBERS, which is damaged once."""

    folder: Path
    random: random.Random
    undone: list[Callable[[], None]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.database = sqlite3.connect(self.folder / "catalog.db", isolation_level=None)
        self.database.row_factory = sqlite3.Row
        self.database.execute("PRAGMA foreign_keys = OFF")
        found = self.row("SELECT * FROM tables WHERE name = 'NUMBERS' AND dropped_at IS NULL")
        self.table_id, self.watermark = found["table_id"], found["migrated_seq"]
        self.last_seq, self.pointer = found["last_seq"], found["pointer"]

    def row(self, query: str, *values: object) -> Any:
        """Return a random row of a query."""
        rows = self.database.execute(query, values).fetchall()
        assert rows, query
        return self.random.choice(rows)

    def run(self, statement: str, *values: object) -> None:
        """Run a statement. It must change a row."""
        assert self.database.execute(statement, values).rowcount > 0, statement

    def waiting(self) -> Any:
        """Return a random chunk above the watermark."""
        query = "SELECT * FROM chunks WHERE table_id = ? AND seq > ?"
        return self.row(query, self.table_id, self.watermark)

    def current_file(self, condition: str = "1 = 1") -> Any:
        """Return the record of a random current native file."""
        return self.row(
            f"SELECT * FROM native_files WHERE table_id = ? AND removed_at IS NULL AND {condition}",
            self.table_id,
        )

    def last_commit(self) -> tuple[str, Any]:
        """Return a channel, and the catalog row of its last chunk."""
        channel = self.row(
            "SELECT * FROM channels WHERE table_id = ? AND offset_token IS NOT NULL", self.table_id
        )
        return channel["name"], channel

    def local(self, address: str) -> Path:
        """Return the local path of an address in metadata."""
        return Path(address.removeprefix("file://"))

    def warehouse_file(self, path: str) -> Path:
        return self.folder / "warehouse" / path

    def blob(self, chunk: Any) -> Path:
        return self.folder / "stage" / str(chunk["prefix"]) / str(chunk["path"])

    def metadata(self) -> dict[str, Any]:
        """Return the current metadata file of the table."""
        found: dict[str, Any] = json.loads(self.local(self.pointer).read_text())
        return found

    def manifests(self) -> Iterator[tuple[Path, Any, dict[str, str], list[Any]]]:
        """Yield path, schema, properties and entries of the data manifests of the current snapshot."""
        metadata = self.metadata()
        current = metadata["current-snapshot-id"]
        [snapshot] = [s for s in metadata["snapshots"] if s["snapshot-id"] == current]
        with self.local(snapshot["manifest-list"]).open("rb") as stream:
            manifests = [self.local(each["manifest_path"]) for each in fastavro.reader(stream)]  # type: ignore[index, call-overload]
        for path in manifests:
            with path.open("rb") as stream:
                reader = fastavro.reader(stream)
                kept = {
                    key: value
                    for key, value in reader.metadata.items()
                    if not key.startswith("avro.")
                }
                yield path, reader.writer_schema, kept, list(reader)

    def edit_entry(self, edit: Callable[[list[Any], int], None]) -> str:
        """Edit a random live entry of a manifest, and return the address of its file."""
        found = [
            (path, schema, kept, entries, at)
            for path, schema, kept, entries in self.manifests()
            for at, entry in enumerate(entries)
            if entry["status"] != 2
        ]
        path, schema, kept, entries, at = self.random.choice(found)
        address: str = entries[at]["data_file"]["file_path"]
        edit(entries, at)
        with path.open("wb") as stream:
            fastavro.writer(stream, schema, entries, metadata=kept, codec="deflate")
        return address

    def rewrite(self, edit: Callable[[pa.Table], pa.Table]) -> str:
        """Write changed rows to a native file.

        Change its size and checksum in catalog and manifests.
        """
        record = self.current_file("fingerprint IS NOT NULL")
        path = self.warehouse_file(record["path"])
        table = pq.read_table(path)
        pq.write_table(edit(table), path, store_schema=False, write_page_checksum=True)
        data = path.read_bytes()
        self.run(
            "UPDATE native_files SET size = ?, sha256 = ? WHERE path = ?",
            *(len(data), hashlib.sha256(data).hexdigest(), record["path"]),
        )
        for manifest, schema, kept, entries in self.manifests():
            for entry in entries:
                if entry["data_file"]["file_path"].endswith(record["path"]):
                    entry["data_file"]["file_size_in_bytes"] = len(data)
                    # Remove the bounds, which would reveal the change.
                    for name in ("lower_bounds", "upper_bounds", "null_value_counts"):
                        entry["data_file"][name] = []
            with manifest.open("wb") as stream:
                fastavro.writer(stream, schema, entries, metadata=kept, codec="deflate")
        return str(record["path"])


KINDS: dict[str, Callable[[Site], Expected]] = {}


def kind(make: Callable[[Site], Expected]) -> Callable[[Site], Expected]:
    """Register a kind of damage."""
    KINDS[make.__name__] = make
    return make


# --- Catalog rows of chunks


@kind
def chunk_row_deleted(site: Site) -> Expected:
    seq = site.waiting()["seq"]
    site.run("DELETE FROM chunks WHERE table_id = ? AND seq = ?", site.table_id, seq)
    return expect("chunk-missing", named=seq)


@kind
def chunk_row_doubled(site: Site) -> Expected:
    chunk = dict(site.waiting())
    chunk |= {"seq": site.last_seq + 1, "offset": chunk["offset"] + 1}
    names = ", ".join(f'"{name}"' for name in chunk)
    marks = ", ".join("?" * len(chunk))
    site.run(f"INSERT INTO chunks ({names}) VALUES ({marks})", *chunk.values())
    site.run("UPDATE tables SET last_seq = last_seq + 1 WHERE table_id = ?", site.table_id)
    return expect("channel-repeated", named=site.last_seq + 1)


@kind
def chunk_row_beyond_the_sequence(site: Site) -> Expected:
    chunk = site.waiting()
    site.run(
        "UPDATE chunks SET seq = ? WHERE table_id = ? AND seq = ?",
        *(site.last_seq + 5, site.table_id, chunk["seq"]),
    )
    return expect("sequence-invalid", "chunk-missing", named="")


@kind
def chunk_moved_to_another_table(site: Site) -> Expected:
    chunk = site.waiting()
    other = site.row("SELECT * FROM tables WHERE table_id <> ?", site.table_id)
    site.run(
        "UPDATE chunks SET table_id = ?, seq = 999 WHERE table_id = ? AND seq = ?",
        *(other["table_id"], site.table_id, chunk["seq"]),
    )
    return expect("chunk-missing", named=chunk["seq"])


@kind
def chunk_md5_edited(site: Site) -> Expected:
    chunk = site.waiting()
    site.run(
        "UPDATE chunks SET md5 = ? WHERE table_id = ? AND seq = ?",
        *("0" * 32, site.table_id, chunk["seq"]),
    )
    return expect("chunk-corrupt", named=chunk["seq"])


@kind
def chunk_rows_edited(site: Site) -> Expected:
    chunk = site.waiting()
    site.run(
        "UPDATE chunks SET rows = rows + 1 WHERE table_id = ? AND seq = ?",
        *(site.table_id, chunk["seq"]),
    )
    return expect("chunk-corrupt", named=chunk["seq"])


@kind
def statistics_edited(site: Site) -> Expected:
    first, second = site.database.execute(
        "SELECT seq, statistics FROM chunks WHERE table_id = ? AND seq > ? ORDER BY random() LIMIT 2",
        (site.table_id, site.watermark),
    ).fetchall()
    site.run(
        "UPDATE chunks SET statistics = ? WHERE table_id = ? AND seq = ?",
        *(second["statistics"], site.table_id, first["seq"]),
    )
    return expect("statistics-differ", named=first["seq"])


@kind
def chunk_quarantined(site: Site) -> Expected:
    chunk = site.waiting()
    site.run(
        "UPDATE chunks SET quarantine_reason = 'edited' WHERE table_id = ? AND seq = ?",
        *(site.table_id, chunk["seq"]),
    )
    return expect("chunk-quarantined", named=chunk["seq"])


# --- Sequences


@kind
def last_sequence_raised(site: Site) -> Expected:
    site.run("UPDATE tables SET last_seq = last_seq + 1 WHERE table_id = ?", site.table_id)
    return expect("chunk-missing", named=site.last_seq + 1)


@kind
def last_sequence_lowered(site: Site) -> Expected:
    site.run("UPDATE tables SET last_seq = last_seq - 1 WHERE table_id = ?", site.table_id)
    return expect("sequence-invalid", named=site.last_seq)


@kind
def watermark_raised(site: Site) -> Expected:
    site.run("UPDATE tables SET migrated_seq = migrated_seq + 1 WHERE table_id = ?", site.table_id)
    return expect("ledger-missing", named=site.watermark + 1)


@kind
def watermark_lowered(site: Site) -> Expected:
    site.run("UPDATE tables SET migrated_seq = migrated_seq - 1 WHERE table_id = ?", site.table_id)
    return expect("ledger-beyond-watermark", named=site.watermark)


# --- Channels


@kind
def token_edited(site: Site) -> Expected:
    name, channel = site.last_commit()
    site.run(
        "UPDATE channels SET offset_token = 'edited' WHERE channel_id = ?", channel["channel_id"]
    )
    return expect("channel-token", named=name)


@kind
def token_put_back(site: Site) -> Expected:
    name, channel = site.last_commit()
    token = str(int(channel["offset_token"]) - 1)
    site.run(
        "UPDATE channels SET offset_token = ? WHERE channel_id = ?", token, channel["channel_id"]
    )
    return expect("channel-token", named=name)


@kind
def tokens_exchanged(site: Site) -> Expected:
    first, second = site.database.execute(
        "SELECT channel_id, name, offset_token FROM channels WHERE table_id = ?"
        " AND offset_token IS NOT NULL ORDER BY random() LIMIT 2",
        (site.table_id,),
    ).fetchall()
    for one, other in ((first, second), (second, first)):
        site.run(
            "UPDATE channels SET offset_token = ? WHERE channel_id = ?",
            *(other["offset_token"], one["channel_id"]),
        )
    return expect("channel-token", named=first["name"])


@kind
def row_sequencer_raised(site: Site) -> Expected:
    name, channel = site.last_commit()
    site.run(
        "UPDATE channels SET row_sequencer = row_sequencer + 1 WHERE channel_id = ?",
        channel["channel_id"],
    )
    return expect("channel-position", named=name)


@kind
def row_sequencer_lowered(site: Site) -> Expected:
    name, channel = site.last_commit()
    site.run(
        "UPDATE channels SET row_sequencer = row_sequencer - 1 WHERE channel_id = ?",
        channel["channel_id"],
    )
    return expect("channel-position", named=name)


@kind
def client_sequencer_lowered(site: Site) -> Expected:
    name, channel = site.last_commit()
    site.run(
        "UPDATE channels SET client_sequencer = -1 WHERE channel_id = ?", channel["channel_id"]
    )
    return expect("channel-fence", named=name)


@kind
def last_chunk_edited(site: Site) -> Expected:
    channel = site.row(
        "SELECT * FROM channels WHERE table_id = ? AND last_path LIKE '%.bdec'", site.table_id
    )
    name = channel["name"]
    site.run(
        "UPDATE channels SET last_chunk_offset = last_chunk_offset + 1 WHERE channel_id = ?",
        channel["channel_id"],
    )
    return expect("channel-last-chunk", named=name)


@kind
def rowless_commit_deleted(site: Site) -> Expected:
    commit = site.row("SELECT * FROM rowless_commits WHERE table_id = ?", site.table_id)
    site.run(
        "DELETE FROM rowless_commits WHERE channel = ? AND row_sequencer = ?",
        *(commit["channel"], commit["row_sequencer"]),
    )
    return expect("channel-gap", "channel-position", named=commit["channel"])


@kind
def row_counts_edited(site: Site) -> Expected:
    channel = site.row("SELECT * FROM channels WHERE table_id = ?", site.table_id)
    site.run(
        "INSERT INTO row_channels (channel_id, rows_parsed, rows_inserted, rows_error)"
        " VALUES (?, 10, 7, 2)",
        channel["channel_id"],
    )
    return expect("channel-rows", named=channel["name"])


@kind
def tombstone_lowered(site: Site) -> Expected:
    stone = site.row("SELECT * FROM channel_tombstones WHERE table_name = 'NUMBERS'")
    site.run(
        "UPDATE channel_tombstones SET client_sequencer = -1 WHERE channel = ?", stone["channel"]
    )
    return expect("tombstone-low", named=stone["channel"])


# --- Ledger and lineage


@kind
def ledger_row_deleted(site: Site) -> Expected:
    chunk = site.row("SELECT * FROM chunk_ledger WHERE table_id = ?", site.table_id)
    site.run("DELETE FROM chunk_ledger WHERE table_id = ? AND seq = ?", site.table_id, chunk["seq"])
    return expect("ledger-missing", named=chunk["seq"])


@kind
def ledger_rows_edited(site: Site) -> Expected:
    chunk = site.row("SELECT * FROM chunk_ledger WHERE table_id = ?", site.table_id)
    site.run(
        "UPDATE chunk_ledger SET rows = rows - 1 WHERE table_id = ? AND seq = ?",
        *(site.table_id, chunk["seq"]),
    )
    return expect("file-rows-differ")


@kind
def ledger_fingerprint_edited(site: Site) -> Expected:
    record = site.current_file("fingerprint IS NOT NULL")
    seq = json.loads(record["sources"])[0][0]
    row = site.row("SELECT * FROM chunk_ledger WHERE table_id = ? AND seq = ?", site.table_id, seq)
    print_ = bytearray(row["fingerprint"])
    print_[12] ^= 1
    site.run(
        "UPDATE chunk_ledger SET fingerprint = ? WHERE table_id = ? AND seq = ?",
        *(bytes(print_), site.table_id, seq),
    )
    return expect("file-values-differ", "ledger-differs")


@kind
def ledger_sequencer_edited(site: Site) -> Expected:
    # A check cannot verify the only commit of a dropped channel.
    chunk = site.row(
        "SELECT * FROM chunk_ledger WHERE table_id = ? AND channels NOT LIKE '%GONE%'",
        site.table_id,
    )
    channels = json.loads(chunk["channels"])
    channels[0][2] += 1
    site.run(
        "UPDATE chunk_ledger SET channels = ? WHERE table_id = ? AND seq = ?",
        *(json.dumps(channels), site.table_id, chunk["seq"]),
    )
    return expect("channel-gap", "channel-repeated", "channel-position", named=channels[0][0])


@kind
def lineage_row_deleted(site: Site) -> Expected:
    path = site.current_file()["path"]
    site.run("DELETE FROM native_files WHERE path = ?", path)
    return expect("file-unknown", named=path)


@kind
def lineage_rows_edited(site: Site) -> Expected:
    path = site.current_file()["path"]
    site.run("UPDATE native_files SET rows = rows + 1 WHERE path = ?", path)
    return expect("file-entry-differs", "file-rows-differ", named=path)


@kind
def lineage_file_resurrected(site: Site) -> Expected:
    record = site.row(
        "SELECT * FROM native_files WHERE table_id = ? AND removed_at IS NOT NULL", site.table_id
    )
    site.run(
        "UPDATE native_files SET removed_at = NULL, removed_by = NULL WHERE path = ?",
        record["path"],
    )
    return expect("file-dropped", "chunk-in-two-files", named=record["path"])


@kind
def lineage_sources_edited(site: Site) -> Expected:
    record = site.current_file("sources LIKE '[[1,%'")
    sources = json.loads(record["sources"])
    sources[0][1] -= 1
    site.run(
        "UPDATE native_files SET sources = ? WHERE path = ?", json.dumps(sources), record["path"]
    )
    return expect("chunk-in-no-file", named=sources[0][1] + 1)


# --- Histories


@kind
def migration_deleted(site: Site) -> Expected:
    run = site.row(
        "SELECT * FROM migrations WHERE table_id = ? AND state = 'committed'", site.table_id
    )
    site.run("DELETE FROM migrations WHERE run_id = ?", run["run_id"])
    return expect("migration-gap")


@kind
def migration_rows_edited(site: Site) -> Expected:
    run = site.row(
        "SELECT * FROM migrations WHERE table_id = ? AND state = 'committed'", site.table_id
    )
    site.run("UPDATE migrations SET rows = rows + 1 WHERE run_id = ?", run["run_id"])
    return expect("run-rows-differ", named=run["run_id"])


@kind
def load_rows_edited(site: Site) -> Expected:
    load = site.row("SELECT * FROM loads WHERE table_id = ?", site.table_id)
    site.run("UPDATE loads SET rows = rows + 1 WHERE load_id = ?", load["load_id"])
    return expect("run-rows-differ", "load-differs", named=load["load_id"])


@kind
def loaded_file_edited(site: Site) -> Expected:
    load = site.row("SELECT * FROM loaded_files WHERE table_id = ?", site.table_id)
    site.run("UPDATE loaded_files SET rows = rows - 1 WHERE load_id = ?", load["load_id"])
    return expect("load-differs", named=load["load_id"])


@kind
def key_replaced(site: Site) -> Expected:
    key = site.row("SELECT * FROM table_keys WHERE table_id = ?", site.table_id)
    wrapped = bytearray(key["wrapped_key"])
    wrapped[-1] ^= 1
    site.run(
        "UPDATE table_keys SET wrapped_key = ? WHERE table_id = ?", bytes(wrapped), site.table_id
    )
    return expect("key-unreadable")


# --- Metadata of the native table


@kind
def pointer_put_back(site: Site) -> Expected:
    older = site.metadata()["metadata-log"][-1]["metadata-file"]
    site.run("UPDATE tables SET pointer = ? WHERE table_id = ?", older, site.table_id)
    return expect("native-table-invalid", "file-dropped", "file-unknown")


@kind
def metadata_edited(site: Site) -> Expected:
    path = site.local(site.pointer)
    metadata = site.metadata()
    current = metadata["current-snapshot-id"]
    for holder in (
        metadata["properties"],
        *(s["summary"] for s in metadata["snapshots"] if s["snapshot-id"] == current),
    ):
        holder["snowmelt.total-rows"] = str(int(holder["snowmelt.total-rows"]) + 1)
    path.write_text(json.dumps(metadata))
    return expect("total-rows-differ", "native-table-invalid")


@kind
def metadata_deleted(site: Site) -> Expected:
    site.local(site.pointer).unlink()
    return expect("native-table-invalid")


@kind
def manifest_deleted(site: Site) -> Expected:
    path, *_ = site.random.choice(list(site.manifests()))
    path.unlink()
    return expect("native-table-invalid")


@kind
def manifest_entry_removed(site: Site) -> Expected:
    address = site.edit_entry(lambda entries, at: entries.pop(at))
    return expect("file-dropped", named=address.rpartition("/")[2])


@kind
def manifest_entry_doubled(site: Site) -> Expected:
    address = site.edit_entry(lambda entries, at: entries.append(entries[at]))
    return expect("file-doubled", named=address.rpartition("/")[2])


@kind
def manifest_rows_edited(site: Site) -> Expected:
    def edit(entries: list[Any], at: int) -> None:
        entries[at]["data_file"]["record_count"] += 1

    address = site.edit_entry(edit)
    return expect("file-entry-differs", named=address.rpartition("/")[2])


@kind
def manifest_bounds_edited(site: Site) -> Expected:
    def edit(entries: list[Any], at: int) -> None:
        bounds = entries[at]["data_file"]["upper_bounds"]
        bounds[0]["value"] = entries[at]["data_file"]["lower_bounds"][0]["value"]

    address = site.edit_entry(edit)
    return expect("bounds-differ", named=address.rpartition("/")[2])


@kind
def manifest_nulls_edited(site: Site) -> Expected:
    def edit(entries: list[Any], at: int) -> None:
        entries[at]["data_file"]["null_value_counts"][0]["value"] += 1

    address = site.edit_entry(edit)
    return expect("bounds-differ", named=address.rpartition("/")[2])


# --- Native files


@kind
def file_byte_flipped(site: Site) -> Expected:
    name = site.current_file()["path"]
    path = site.warehouse_file(name)
    data = bytearray(path.read_bytes())
    data[site.random.randrange(4, len(data) - 8)] ^= 1 << site.random.randrange(8)
    path.write_bytes(data)
    return expect("file-changed", named=name)


@kind
def file_cut(site: Site) -> Expected:
    name = site.current_file()["path"]
    path = site.warehouse_file(name)
    os.truncate(path, site.random.randrange(path.stat().st_size))
    return expect("file-size-differs", named=name)


@kind
def file_deleted(site: Site) -> Expected:
    name = site.current_file()["path"]
    site.warehouse_file(name).unlink()
    return expect("file-missing", named=name)


@kind
def file_replaced_by_another(site: Site) -> Expected:
    name = site.current_file()["path"]
    other = site.current_file(f"path <> '{name}'")["path"]
    site.warehouse_file(name).write_bytes(site.warehouse_file(other).read_bytes())
    return expect("file-size-differs", "file-changed", named=name)


def _replace(table: pa.Table, column: int, values: list[Any]) -> pa.Table:
    found = table.schema.field(column)
    return table.set_column(column, found, pa.array(values, found.type))


@kind
def row_lost(site: Site) -> Expected:
    at = site.random.randrange(5)
    name = site.rewrite(lambda table: pa.concat_tables([table.slice(0, at), table.slice(at + 1)]))
    return expect("file-values-differ", named=name)


@kind
def row_doubled(site: Site) -> Expected:
    at = site.random.randrange(5)
    name = site.rewrite(
        lambda table: pa.concat_tables(
            [table.slice(0, at + 1), table.slice(at, 1), table.slice(at + 2)]
        )
    )
    return expect("file-values-differ", named=name)


@kind
def value_changed(site: Site) -> Expected:
    def edit(table: pa.Table) -> pa.Table:
        values = table.column(0).to_pylist()
        values[site.random.randrange(len(values))] += 1
        return _replace(table, 0, values)

    return expect("file-values-differ", named=site.rewrite(edit))


@kind
def values_of_two_rows_exchanged(site: Site) -> Expected:
    def edit(table: pa.Table) -> pa.Table:
        values = table.column(0).to_pylist()
        values[0], values[1] = values[1], values[0]
        return _replace(table, 0, values)

    return expect("file-values-differ", named=site.rewrite(edit))


@kind
def value_made_null(site: Site) -> Expected:
    def edit(table: pa.Table) -> pa.Table:
        values = table.column(1).to_pylist()
        at = next(at for at, value in enumerate(values) if value is not None)
        values[at] = None
        return _replace(table, 1, values)

    return expect("file-values-differ", named=site.rewrite(edit))


@kind
def null_made_empty(site: Site) -> Expected:
    def edit(table: pa.Table) -> pa.Table:
        values = table.column(1).to_pylist()
        values[values.index(None)] = ""
        return _replace(table, 1, values)

    return expect("file-values-differ", named=site.rewrite(edit))


# --- Blobs


@kind
def blob_byte_flipped(site: Site) -> Expected:
    chunk = site.waiting()
    path = site.blob(chunk)
    data = bytearray(path.read_bytes())
    data[chunk["offset"] + site.random.randrange(chunk["length"])] ^= 1
    path.write_bytes(data)
    return expect("chunk-corrupt", named=chunk["seq"])


@kind
def blob_cut(site: Site) -> Expected:
    chunk = site.waiting()
    os.truncate(site.blob(chunk), site.random.randrange(chunk["offset"] + chunk["length"]))
    return expect("blob-short", named=chunk["seq"])


@kind
def blob_deleted(site: Site) -> Expected:
    chunk = site.waiting()
    site.blob(chunk).unlink()
    return expect("blob-missing", named=chunk["seq"])


@kind
def blob_replaced_by_another(site: Site) -> Expected:
    first, second = site.database.execute(
        "SELECT * FROM chunks WHERE table_id = ? AND seq > ? ORDER BY random() LIMIT 2",
        (site.table_id, site.watermark),
    ).fetchall()
    site.blob(first).write_bytes(site.blob(second).read_bytes())
    return expect("chunk-corrupt", "blob-short", named=first["seq"])


# --- Orphaned files


def _age(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"left behind")
    old = time.time() - 10 * 86_400
    os.utime(path, (old, old))


@kind
def orphan_file(site: Site) -> Expected:
    folder = site.warehouse_file(site.current_file()["path"]).parent
    _age(folder / "left-behind.parquet")
    return expect("orphan-file", named="left-behind.parquet")


@kind
def orphan_blob(site: Site) -> Expected:
    chunk = site.waiting()
    name = chunk["path"].rpartition("_")
    _age(site.folder / "stage" / chunk["prefix"] / f"{name[0]}_99999.bdec")
    return expect("orphan-blob", named="_99999.bdec")
