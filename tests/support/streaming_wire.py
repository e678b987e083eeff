"""Streaming v1 without an SDK: raw requests, and blobs as the official client builds them."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import io
import itertools
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from zoneinfo import ZoneInfo

import httpx
import jwt
import msgspec
import pyarrow.parquet as pq
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from snowmelt.blob import encryption
from snowmelt.schema import statistics
from snowmelt.schema.conversion.row_converter import RowConverter
from snowmelt.schema.types import TableSchema
from snowmelt.wire import column_statistics, streaming
from snowmelt.wire.streaming import ColumnMetadata

HEADERS = {
    "User-Agent": "SnowpipeJavaSDK/4.4.4 (Linux 6 amd64) JAVA/17",
    "Content-Type": "application/json; charset=UTF-8",
    "Accept": "application/json",
}


def token(private_pem: str, user: str, *, account: str = "127") -> str:
    """Return a JWT, signed as by the official client."""
    key = serialization.load_pem_private_key(private_pem.encode(), password=None)
    assert isinstance(key, rsa.RSAPrivateKey)
    public = key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    digest = base64.b64encode(hashlib.sha256(public).digest()).decode()
    at = int(time.time())
    subject = f"{account}.{user}"
    claims = {"iss": f"{subject}.SHA256:{digest}", "sub": subject, "iat": at, "exp": at + 3540}
    return jwt.encode(claims, key, algorithm="RS256", headers={"typ": None})


@dataclass
class Opened:
    """Open channel with its owner's state."""

    answer: dict[str, Any]

    @property
    def schema(self) -> TableSchema:
        sent = msgspec.convert(self.answer["table_columns"], list[ColumnMetadata])
        return TableSchema(1, tuple(streaming.column_from_message(each) for each in sent))

    @property
    def data_key(self) -> bytes:
        return base64.b64decode(self.answer["encryption_key"])


class Conversation:
    """One client, with a token, a prefix and a folder of the stage."""

    def __init__(
        self, url: str, private_pem: str, user: str = "LOADER", *, database: str = "demo"
    ) -> None:
        self.database = database
        # Do not load CA certificates, which takes longer than a test: there is no TLS.
        self.http = httpx.Client(base_url=url, headers=HEADERS, timeout=120, verify=False)
        self.http.headers["Authorization"] = "Bearer " + token(private_pem, user)
        self.http.headers["X-Snowflake-Authorization-Token-Type"] = "KEYPAIR_JWT"
        self._counter = itertools.count()
        self.configured: dict[str, Any] = {}

    def configure(self) -> Conversation:
        self.configured = self.say("client/configure", {"role": None})
        return self

    @property
    def client_prefix(self) -> str:
        return f"{self.configured['prefix']}_{self.configured['deployment_id']}"

    @property
    def stage(self) -> Path:
        return Path(self.configured["stage_location"]["location"])

    def say(self, path: str, body: dict[str, Any], *, slash: str = "/") -> dict[str, Any]:
        answer = self.http.post(f"/v1/streaming/{path}{slash}?requestId=1", json=body)
        assert answer.status_code == 200, answer.text
        return cast("dict[str, Any]", answer.json())

    def request_id(self) -> str:
        return f"{self.client_prefix}_{next(self._counter)}"

    def try_open(self, channel: str = "ch1", *, table: str = "t", **more: object) -> dict[str, Any]:
        names = {"database": self.database, "schema": "public", "table": table, "channel": channel}
        body = {"request_id": self.request_id(), "role": None, "write_mode": "CLOUD_STORAGE"}
        return self.say("channels/open", body | names | more)

    def open(self, channel: str = "ch1", **more: Any) -> Opened:
        answer = self.try_open(channel, **more)
        assert answer["status_code"] == 0, answer
        return Opened(answer)

    def status(self, *opened: Opened, **changes: object) -> dict[str, Any]:
        queries = [
            {
                "database": each.answer["database"],
                "schema": each.answer["schema"],
                "table": each.answer["table"],
                "channel_name": each.answer["channel"],
                "client_sequencer": each.answer["client_sequencer"],
                **changes,
            }
            for each in opened
        ]
        return self.say("channels/status", {"channels": queries, "role": None})

    def drop(self, opened: Opened, **more: object) -> dict[str, Any]:
        names = {name: opened.answer[name] for name in ("database", "schema", "table", "channel")}
        return self.say("channels/drop", {"request_id": self.request_id(), **names, **more})

    def path(self) -> str:
        return encryption.make_blob_path(
            dt.datetime.now(dt.UTC), self.client_prefix, 18, next(self._counter)
        )

    def blob(
        self,
        channels: list[tuple[Opened, int, str | None]],
        rows: list[dict[str, Any]],
        *,
        path: str | None = None,
        java: bool = True,
        put: bool = True,
    ) -> dict[str, Any]:
        """Build, stage and describe a one-chunk blob. Channels are (opened, row sequencer, token)."""
        path = path or self.path()
        first = channels[0][0]
        schema = first.schema
        converted = RowConverter(schema, zone=ZoneInfo("UTC")).convert(rows)
        assert not converted.errors
        file = io.BytesIO()
        options = {"compression": "gzip", "use_dictionary": False} if java else {}
        pq.write_table(
            converted.table,
            file,
            version="1.0" if java else "2.6",
            data_page_version="1.0",
            store_schema=False,
            store_decimal_as_integer=True,
            **options,
        )
        parquet = file.getvalue()
        padded = parquet + bytes(encryption.padded_length(len(parquet)) - len(parquet))
        key = encryption.derive_blob_key(first.data_key, path)
        data = encryption.apply_aes_ctr(padded, key=key, offset=0)
        if put:
            self.put(path, data)
        stats = column_statistics.statistics_to_message(
            schema, statistics.collect_statistics(converted.table, schema)
        )
        return {
            "path": path,
            "md5": hashlib.md5(data).hexdigest(),
            "bdec_version": 3,
            "blob_stats": {"flush_start_ms": 1, "build_duration_ms": 1, "upload_duration_ms": 1},
            "spans_mixed_tables": False,
            "chunks": [
                {
                    **{name: first.answer[name] for name in ("database", "schema", "table")},
                    "chunk_start_offset": 0,
                    "chunk_length": len(parquet),
                    "chunk_length_uncompressed": 1,
                    "channels": [
                        {
                            "channel_name": opened.answer["channel"],
                            "client_sequencer": opened.answer["client_sequencer"],
                            "row_sequencer": row_sequencer,
                            "offset_token": offset_token,
                            "start_offset_token": offset_token,
                            "end_offset_token": offset_token,
                        }
                        for opened, row_sequencer, offset_token in channels
                    ],
                    "chunk_md5": hashlib.md5(data[: len(parquet)]).hexdigest(),
                    "eps": msgspec.to_builtins(stats),
                    "encryption_key_id": first.answer["encryption_key_id"],
                    "first_insert_time_in_ms": 1,
                    "last_insert_time_in_ms": 2,
                }
            ],
        }

    def put(self, path: str, data: bytes) -> None:
        file = self.stage / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)

    def staged(self, blob: dict[str, Any]) -> Path:
        return self.stage / cast("str", blob["path"])

    def registration(self, *blobs: dict[str, Any], **more: object) -> dict[str, Any]:
        return {
            "request_id": self.request_id(),
            "role": None,
            "blobs": list(blobs),
            "client_name": "test",
            "client_key": self.client_prefix,
            "is_iceberg": False,
            **more,
        }

    def register(self, *blobs: dict[str, Any], **more: object) -> dict[str, Any]:
        return self.say("channels/write/blobs", self.registration(*blobs, **more))

    def codes(self, *blobs: dict[str, Any], **more: object) -> list[int]:
        """Register blobs. Return the codes of all channels in one list."""
        answer = self.register(*blobs, **more)
        assert answer["status_code"] == 0, answer
        return [verdict["status_code"] for verdict in verdicts(answer)]


def verdicts(answer: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        channel
        for blob in answer["blobs"]
        for chunk in blob["chunks"]
        for channel in chunk["channels"]
    ]


def rows(first: int, count: int = 3) -> list[dict[str, Any]]:
    return [
        {"id": first + number, "name": f"n{number}", "at": "2026-11-21T00:00:00"}
        for number in range(count)
    ]
