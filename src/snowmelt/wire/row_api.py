"""Messages of the row API (specification of streaming v2, §3 and §4)."""

from __future__ import annotations

import msgspec


class RowChannelStatus(msgspec.Struct):
    """Channel status. Counters are cumulative since creation."""

    database_name: str
    schema_name: str
    pipe_name: str
    channel_name: str
    channel_status_code: str = "SUCCESS"
    last_committed_offset_token: str | None = None
    created_on_ms: int = 0
    rows_inserted: int = 0
    rows_parsed: int = 0
    rows_error_count: int = 0
    last_error_offset_upper_bound: str | None = None
    last_error_message: str | None = None
    last_error_timestamp_ms: int | None = None
    snowflake_avg_processing_latency_ms: int | None = None


class OpenRowChannelRequest(msgspec.Struct):
    """Body of Open Channel. Other fields are ignored."""

    offset_token: str | None = None


class OpenRowChannelResponse(msgspec.Struct):
    """First continuation token of a channel, and its status."""

    next_continuation_token: str
    channel_status: RowChannelStatus


class DropRowChannelResponse(msgspec.Struct):
    """Result of dropping a channel."""

    last_committed_offset_token: str | None = None


class RowChannelStatusRequest(msgspec.Struct):
    """Names of channels."""

    channel_names: list[str] = []


class RowChannelStatusResponse(msgspec.Struct):
    """Statuses by the requested channel names."""

    channel_statuses: dict[str, RowChannelStatus]


class RowAppendResponse(msgspec.Struct):
    """Result of an append whose rows are committed."""

    next_continuation_token: str
    message: str = "OK"


class RowFileFragment(msgspec.Struct):
    """A row file on the stage (§4.2)."""

    file_path: str
    iv_base64: str
    file_length_bytes: int
    fragment_row_count: int | None = None
    fragment_length_bytes: int | None = None
    fragment_start_byte_offset: int = 0
    fragment_start_offset_token: str | None = None
    fragment_end_offset_token: str | None = None
    master_key_id: str | None = None
    file_etag: str | None = None


class RowStageLocation(msgspec.Struct):
    """Upload location of row files."""

    expiry_time_ms: int
    location: str
    region: str
    creds: dict[str, str]
    storage_endpoint: str | None = None
    location_type: str = "S3"
    use_s3_regional_url: bool = False
    storage_account: str | None = None


class PipeEncryption(msgspec.Struct):
    """Encryption key of row files, 32 bytes in base64, and its ID."""

    pipe_key: str
    pipe_key_id: str
    diversifier: str = ""


class PipeInfo(msgspec.Struct):
    """Result of the first request of a client."""

    rowset_stage_location: RowStageLocation
    durable_stage_location: RowStageLocation
    pipe_encryption_info: PipeEncryption
    parameter_overrides: dict[str, str | int]


class RowApiErrorBody(msgspec.Struct):
    """Body of an error response."""

    code: str
    message: str
