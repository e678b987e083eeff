"""The receiving half without HTTP: a catalog, a stage, a desk and a verifier."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest

from snowmelt import failpoints
from snowmelt.blob.encryption import make_blob_path
from snowmelt.blob.writer import ChunkInput, build_blob
from snowmelt.catalog.db.database import open_and_upgrade_database
from snowmelt.catalog.jobs import leases
from snowmelt.catalog.model.records import ACCOUNTADMIN
from snowmelt.catalog.security import access_control, encryption_keys
from snowmelt.catalog.statements.executor import execute_statement
from snowmelt.catalog.streaming.commit_rules import ChunkOffer
from snowmelt.clock import ManualClock
from snowmelt.ingest.blob_decoder import decode_blobs
from snowmelt.ingest.channel_write_batcher import WriteBatcher
from snowmelt.ingest.channels import ChannelService
from snowmelt.ingest.registration_verifier import (
    CatalogCache,
    ChunkCandidate,
    Registrant,
    RegistrationVerifier,
    VerificationDepth,
    VerificationPolicy,
)
from snowmelt.ingest.stage_locations import FolderStageLocator, StageRequester
from snowmelt.schema import statistics
from snowmelt.schema.conversion.row_converter import RowConverter
from snowmelt.schema.types import TableSchema
from snowmelt.storage.local_store import LocalStore
from snowmelt.wire import column_statistics, streaming
from snowmelt.wire.streaming import (
    BlobMetadata,
    ChunkChannelMessage,
    ChunkMetadata,
    ConfigureClientRequest,
    OpenChannelRequest,
    OpenChannelResponse,
    RegisterBlobsRequest,
)
from support.catalog_files import new_catalog

if TYPE_CHECKING:
    from pathlib import Path

    from snowmelt.catalog.db.database import Database

NOW = dt.datetime(2026, 11, 21, 12, tzinfo=dt.UTC)
USER = "LOADER"
SENDER = Registrant(USER, None)


@dataclass
class World:
    database: Database
    stage: LocalStore
    known: CatalogCache
    desk: ChannelService
    clock: ManualClock
    deployment_id: int
    prefix: str = ""
    counter: itertools.count[int] = field(default_factory=itertools.count)

    def verifier(self, depth: VerificationDepth = VerificationDepth.FULL) -> RegistrationVerifier:
        return RegistrationVerifier(
            self.known,
            self.stage,
            deployment_id=self.deployment_id,
            policy=VerificationPolicy(depth),
            decode_blobs=partial(decode_blobs, self.stage),
        )

    def verify(
        self,
        blob: BlobMetadata,
        sender: Registrant = SENDER,
        depth: VerificationDepth = VerificationDepth.FULL,
    ) -> ChunkCandidate:
        """Return what the verifier makes of a blob of one chunk."""
        [found] = self.verifier(depth).verify_all([(self.request(blob), sender)])
        assert not isinstance(found, Exception)
        (candidate,) = found
        return candidate

    def offer(
        self, blob: BlobMetadata, depth: VerificationDepth = VerificationDepth.FULL
    ) -> ChunkOffer:
        offer = self.verify(blob, depth=depth).offer
        assert offer is not None
        return offer

    def open(self, channel: str = "CH") -> OpenChannelResponse:
        request = OpenChannelRequest(channel=channel, table="t", database="demo", schema="public")
        return self.desk.open_channel(request, USER).result()

    def blob(
        self, opened: OpenChannelResponse, row_sequencer: int, rows: list[Any], *, put: bool = True
    ) -> BlobMetadata:
        schema = TableSchema(
            1, tuple(map(streaming.column_from_message, opened.table_columns or []))
        )
        table = RowConverter(schema, zone=ZoneInfo("UTC")).convert(rows).table
        path = make_blob_path(NOW, f"{self.prefix}_{self.deployment_id}", 1, next(self.counter))
        key = base64.b64decode(opened.encryption_key or "")
        blob = build_blob(path, [ChunkInput(table, schema, key)])
        if put:
            self.stage.put(f"{self.prefix}/{path}", blob.data)
        channel = ChunkChannelMessage(
            opened.channel,
            opened.client_sequencer,
            row_sequencer,
            end_offset_token=str(row_sequencer),
        )
        chunk = blob.chunks[0]
        metadata = ChunkMetadata(
            database=opened.database,
            schema=opened.schema,
            table=opened.table,
            chunk_start_offset=chunk.offset,
            chunk_length=chunk.length,
            channels=[channel],
            chunk_md5=chunk.md5,
            eps=column_statistics.statistics_to_message(
                schema, statistics.collect_statistics(table, schema)
            ),
            encryption_key_id=opened.encryption_key_id,
        )
        return BlobMetadata(
            path=path,
            md5=hashlib.md5(blob.data).hexdigest(),
            chunks=[metadata],
            bdec_version=3,
        )

    def request(self, *blobs: BlobMetadata) -> RegisterBlobsRequest:
        return RegisterBlobsRequest(blobs=list(blobs))


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    clock = ManualClock(NOW)
    database = open_and_upgrade_database(str(new_catalog(tmp_path / "catalog.db")), clock=clock)
    for text in (
        "CREATE DATABASE demo",
        "CREATE SCHEMA IF NOT EXISTS demo.public",
        "CREATE TABLE demo.public.t (id NUMBER(10,0) NOT NULL, x FLOAT, name VARCHAR)",
    ):
        execute_statement(database, text, clock=clock)
    with database.writing() as connection:
        access_control.create_user(connection, USER, default_role=ACCOUNTADMIN, now=NOW)
        access_control.grant_role(connection, ACCOUNTADMIN, USER)
        deployment_id = leases.read_deployment_id(connection)
    keyring = encryption_keys.KeyRing(encryption_keys.load_master_key(tmp_path / "keys"))
    stage = LocalStore(tmp_path / "stage")
    known = CatalogCache(database, keyring)
    writes = WriteBatcher(database, clock)
    desk = ChannelService(database, writes, keyring, known, FolderStageLocator(stage.root), clock)
    world = World(database, stage, known, desk, clock, deployment_id)
    world.prefix = (
        desk.configure_client(ConfigureClientRequest(), StageRequester(USER)).prefix or ""
    )
    yield world
    failpoints.disarm()
    writes.close()
    database.close()
