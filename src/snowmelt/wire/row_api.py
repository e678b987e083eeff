"""Messages of the row API (specification of streaming v2, §3 and §4)."""

from __future__ import annotations

import msgspec


class RowChannelStatus(msgspec.Struct):
    """What is told of a channel; counts are since it was created."""

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
    """Body of an open; what else is in it makes no difference here."""

    offset_token: str | None = None


class OpenRowChannelResponse(msgspec.Struct):
    """A channel's first continuation token, and how it stands."""

    next_continuation_token: str
    channel_status: RowChannelStatus


class DropRowChannelResponse(msgspec.Struct):
    """A channel that is gone."""

    last_committed_offset_token: str | None = None


class RowChannelStatusRequest(msgspec.Struct):
    """Channels to be told of."""

    channel_names: list[str] = []


class RowChannelStatusResponse(msgspec.Struct):
    """What is told of channels, by the names they were asked for by."""

    channel_statuses: dict[str, RowChannelStatus]


class RowAppendResponse(msgspec.Struct):
    """Rows are committed."""

    next_continuation_token: str
    message: str = "OK"


class RowFileFragment(msgspec.Struct):
    """A file of rows that lies on the stage (§4.2)."""

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
    """Where files of rows are put."""

    expiry_time_ms: int
    location: str
    region: str
    creds: dict[str, str]
    storage_endpoint: str | None = None
    location_type: str = "S3"
    use_s3_regional_url: bool = False
    storage_account: str | None = None


class PipeEncryption(msgspec.Struct):
    """What files of rows are encrypted with: 32 bytes in base64, and their number."""

    pipe_key: str
    pipe_key_id: str
    diversifier: str = ""


class PipeInfo(msgspec.Struct):
    """What a client asks first."""

    rowset_stage_location: RowStageLocation
    durable_stage_location: RowStageLocation
    pipe_encryption_info: PipeEncryption
    parameter_overrides: dict[str, str | int]


class RowApiErrorBody(msgspec.Struct):
    """The body of every failure."""

    code: str
    message: str
