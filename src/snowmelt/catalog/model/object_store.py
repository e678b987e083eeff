"""Tables of the S3 endpoint: buckets, objects, multipart uploads and dropped files."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, ForeignKey, Index, Integer, LargeBinary, Table, Text

from snowmelt.catalog.model.base import AutoincrementId, UtcTimestamp, metadata, unique_live_index

# A bucket with a backend is a place elsewhere, whose own listing is the truth.
buckets = Table(
    "buckets",
    metadata,
    Column("bucket_id", AutoincrementId, primary_key=True),
    Column("name", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("backend", Text),
    Column("select_dialect", Text),
    Column("created_at", UtcTimestamp, nullable=False),
    Column("dropped_at", UtcTimestamp),
    unique_live_index("uq_buckets_live", "name"),
    sqlite_autoincrement=True,
)

# Keys are bytes: every database then compares them as S3 lists them.
objects = Table(
    "objects",
    metadata,
    Column("bucket_id", ForeignKey("buckets.bucket_id"), primary_key=True),
    Column("key", LargeBinary, primary_key=True),
    Column("size", BigInteger, nullable=False),
    Column("etag", Text, nullable=False),
    Column("modified_at", UtcTimestamp, nullable=False),
    Column("headers", Text, nullable=False),
    Column("checksum", Text),
    Column("file", Text, nullable=False, unique=True),
)

uploads = Table(
    "uploads",
    metadata,
    Column("upload_id", Text, primary_key=True),
    Column("bucket_id", ForeignKey("buckets.bucket_id"), nullable=False),
    Column("key", LargeBinary, nullable=False),
    Column("user", Text, nullable=False),
    Column("initiated_at", UtcTimestamp, nullable=False),
    Column("headers", Text, nullable=False),
    Column("checksum", Text),
    Index("ix_uploads_bucket_id_key", "bucket_id", "key", "upload_id"),
)

upload_parts = Table(
    "upload_parts",
    metadata,
    Column("upload_id", ForeignKey("uploads.upload_id"), primary_key=True),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("size", BigInteger, nullable=False),
    Column("etag", Text, nullable=False),
    Column("modified_at", UtcTimestamp, nullable=False),
    Column("checksum", Text),
    Column("file", Text, nullable=False, unique=True),
)

# Files that no object needs any more; a row goes when its file is gone.
dropped_files = Table(
    "dropped_files",
    metadata,
    Column("file", Text, primary_key=True),
    Column("dropped_at", UtcTimestamp, nullable=False),
)
