"""Messages of streaming v1 (specification §2): requests, responses and status codes.

Unknown fields are ignored. The module also has the messages of schema evolution (a Snowmelt
extension) and the status codes (§2.7). It converts columns to and from `table_columns`.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated, TypeVar

import msgspec

from snowmelt.errors import RequestMalformed
from snowmelt.schema.types import Column, column_from_fields, column_to_fields

Sequencer = Annotated[int, msgspec.Meta(ge=0)]
_Message = TypeVar("_Message")


def decode_message(body: bytes, message_type: type[_Message]) -> _Message:
    """Decode a message.

    Raises:
        RequestMalformed: If the body is not JSON, or a field has the wrong type.
    """
    try:
        return msgspec.json.decode(body, type=message_type)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise RequestMalformed(reason=str(error)) from None


class ConfigureClientRequest(msgspec.Struct):
    """`POST /v1/streaming/client/configure/`.

    `client_prefix` is a Snowmelt extension: a client that has a prefix sends it to renew its stage
    credentials.
    """

    role: str | None = None
    file_name: str | None = None
    client_prefix: str | None = None


class StageLocation(msgspec.Struct):
    """Upload location of a client's blobs.

    For LOCAL_FS, `location` is the absolute path of a folder. For S3, it is `bucket/prefix/`;
    `endPoint` has the address, and `creds` has AWS_KEY_ID, AWS_SECRET_KEY and AWS_TOKEN.
    """

    locationType: str  # noqa: N815 - the wire's name
    location: str
    path: str = ""
    creds: dict[str, str] = {}
    region: str | None = None
    endPoint: str | None = None  # noqa: N815
    storageAccount: str | None = None  # noqa: N815
    presignedUrl: str | None = None  # noqa: N815
    isClientSideEncrypted: bool = True  # noqa: N815
    useS3RegionalUrl: bool = False  # noqa: N815
    volumeHash: str | None = None  # noqa: N815
    useVirtualUrl: bool = False  # noqa: N815

    def __repr__(self) -> str:
        """Return a text without the credentials, because messages are logged."""
        return f"StageLocation({self.locationType}, {self.location!r})"


class ConfigureClientResponse(msgspec.Struct):
    """Response to a configure request. The client prefix is `prefix_deployment_id`.

    `stage_expires_in_s` is a Snowmelt extension: the remaining lifetime of the credentials in seconds.
    It is null if the stage needs no credentials.
    """

    status_code: int
    message: str
    prefix: str | None = None
    deployment_id: int | None = None
    stage_location: StageLocation | None = None
    stage_expires_in_s: float | None = None


class OpenChannelRequest(msgspec.Struct):
    """`POST /v1/streaming/channels/open/`. Names are as the user wrote them."""

    request_id: str | None = None
    role: str | None = None
    channel: str | None = None
    table: str | None = None
    database: str | None = None
    schema: str | None = None
    write_mode: str | None = None
    is_iceberg: bool = False
    offset_token: str | None = None
    fills_defaults: bool = False
    reports_rejections: bool = False


class ColumnMetadata(msgspec.Struct):
    """One column in `table_columns` (specification §2.2, §4). `default` is an extension of Snowmelt."""

    name: str
    type: str
    logical_type: str
    physical_type: str
    ordinal: int
    nullable: bool = True
    precision: int | None = None
    scale: int | None = None
    byte_length: int | None = None
    length: int | None = None
    collation: str | None = None
    default: str | None = None
    source_iceberg_data_type: str | None = None


class OpenChannelResponse(msgspec.Struct):
    """An opened channel. Its names identify the channel in all later requests.

    Snowmelt extensions:
    * `previous_owner`: the client prefix of the channel's previous owner, null if there was none.
    * `last_path` and `last_chunk_offset`: the last committed chunk.
    * `error_table`: the full name of the table for rejected rows.
    * `takes_rowless`: true if the service accepts chunks without rows.
    * `schema_version`: the version of the table's columns.
    """

    status_code: int
    message: str
    database: str | None = None
    schema: str | None = None
    table: str | None = None
    channel: str | None = None
    client_sequencer: int | None = None
    row_sequencer: int | None = None
    offset_token: str | None = None
    table_columns: list[ColumnMetadata] | None = None
    encryption_key: str | None = None
    encryption_key_id: int | None = None
    iceberg_location: str | None = None
    previous_owner: str | None = None
    last_path: str | None = None
    last_chunk_offset: int | None = None
    schema_version: int | None = None
    error_table: str | None = None
    takes_rowless: bool = False


class ChannelStatusQuery(msgspec.Struct, omit_defaults=True):
    """One channel of a status request.

    `with_columns` and `encryption_key_id` are Snowmelt extensions. `encryption_key_id` is the key
    with which the channel was opened. It identifies the table even if the table was renamed.
    `rejected_rows` and `with_replication` are extensions, too. `rejected_rows` is the number of
    rows that the client has rejected since it opened the channel. `last_error` is the reason for
    the last rejection. `with_replication` requests `replicated_row_sequencer`.
    """

    database: str | None = None
    schema: str | None = None
    table: str | None = None
    channel_name: str | None = None
    client_sequencer: int | None = None
    with_columns: bool = False
    encryption_key_id: int | None = None
    rejected_rows: Sequencer | None = None
    last_error: str | None = None
    with_replication: bool = False


class ChannelStatusRequest(msgspec.Struct):
    """`POST /v1/streaming/channels/status/`."""

    channels: list[ChannelStatusQuery] = []
    role: str | None = None
    request_id: str | None = None


class ChannelStatusMessage(msgspec.Struct):
    """Status of the channel at the same position in the request.

    The following fields are only present if the request has `with_columns`. They describe the
    current table: names, `table_columns`, `schema_version`, and in `error_table` the full name of
    the table for its rejected rows.

    `replicated_row_sequencer` is only present if the request has `with_replication` and a failover group
    protects offset tokens. It is the last row sequencer of this client sequencer that all followers have, or 0.
    """

    status_code: int
    persisted_offset_token: str | None = None
    persisted_client_sequencer: int | None = None
    persisted_row_sequencer: int | None = None
    message: str | None = None
    table_columns: list[ColumnMetadata] | msgspec.UnsetType = msgspec.UNSET
    schema_version: int | msgspec.UnsetType = msgspec.UNSET
    database: str | msgspec.UnsetType = msgspec.UNSET
    schema: str | msgspec.UnsetType = msgspec.UNSET
    table: str | msgspec.UnsetType = msgspec.UNSET
    error_table: str | msgspec.UnsetType | None = msgspec.UNSET
    replicated_row_sequencer: int | msgspec.UnsetType = msgspec.UNSET


class ChannelStatusResponse(msgspec.Struct):
    """Statuses in the order of the request."""

    status_code: int
    message: str
    channels: list[ChannelStatusMessage] = []


class DropChannelRequest(msgspec.Struct):
    """`POST /v1/streaming/channels/drop/`.

    With a client sequencer, the channel is dropped only if its sequencer is equal.

    `encryption_key_id` is a Snowmelt extension, as in a status request.
    """

    request_id: str | None = None
    role: str | None = None
    channel: str | None = None
    table: str | None = None
    database: str | None = None
    schema: str | None = None
    client_sequencer: int | None = None
    is_iceberg: bool = False
    encryption_key_id: int | None = None


class DropChannelResponse(msgspec.Struct):
    """The dropped channel. Names are normalized."""

    status_code: int
    message: str
    database: str | None = None
    schema: str | None = None
    table: str | None = None
    channel: str | None = None


class ColumnStatisticsMessage(msgspec.Struct):
    """Statistics of one column in a chunk (specification §6).

    `minStrValue` and `maxStrValue` are lower-case hex of at most 32 bytes (or `Z`). Integers have up to
    128 bits. Reals may be the strings NaN, Infinity and -Infinity.
    """

    columnId: int | None = None  # noqa: N815
    minStrValue: str | None = None  # noqa: N815
    maxStrValue: str | None = None  # noqa: N815
    collation: str | None = None
    minStrNonCollated: str | None = None  # noqa: N815
    maxStrNonCollated: str | None = None  # noqa: N815
    minIntValue: int = 0  # noqa: N815
    maxIntValue: int = 0  # noqa: N815
    minRealValue: float | str = 0.0  # noqa: N815
    maxRealValue: float | str = 0.0  # noqa: N815
    distinctValues: int = -1  # noqa: N815
    nullCount: int = 0  # noqa: N815
    maxLength: int = 0  # noqa: N815


class ChunkStatisticsMessage(msgspec.Struct):
    """`eps` of a chunk. `columns` has every table column by display name."""

    rows: int
    columns: dict[str, ColumnStatisticsMessage] = {}


class ChunkChannelMessage(msgspec.Struct):
    """One channel of a chunk. Channels are in the order of their rows in the chunk."""

    channel_name: str | None = None
    client_sequencer: int | None = None
    row_sequencer: int | None = None
    offset_token: str | None = None
    start_offset_token: str | None = None
    end_offset_token: str | None = None


class ChunkMetadata(msgspec.Struct):
    """One chunk of a blob: its location, its channels and its contents.

    `parts`, `rowless` and `schema_version` are Snowmelt extensions. If the rows of one row sequencer of a channel are
    in several chunks, `parts` is the number of these chunks in the request. They are committed
    together or not at all. A `rowless` chunk has no rows, and only advances the offset tokens of
    its channels. `schema_version` is the version of the columns whose defaults the client has filled.
    Without it, the client fills none.
    """

    database: str | None = None
    schema: str | None = None
    table: str | None = None
    chunk_start_offset: int | None = None
    chunk_length: int | None = None
    chunk_length_uncompressed: int | None = None
    channels: list[ChunkChannelMessage] | None = None
    chunk_md5: str | None = None
    eps: ChunkStatisticsMessage | None = None
    encryption_key_id: int | None = None
    first_insert_time_in_ms: int | None = None
    last_insert_time_in_ms: int | None = None
    parts: int = 1
    rowless: bool = False
    schema_version: int | None = None


class BlobStats(msgspec.Struct):
    """Durations that the client measured."""

    flush_start_ms: int | None = None
    build_duration_ms: int | None = None
    upload_duration_ms: int | None = None


class BlobMetadata(msgspec.Struct):
    """One blob of a registration."""

    path: str | None = None
    md5: str | None = None
    chunks: list[ChunkMetadata] | None = None
    bdec_version: int | None = None
    blob_stats: BlobStats | None = None
    spans_mixed_tables: bool = False


class RegisterBlobsRequest(msgspec.Struct):
    """`POST /v1/streaming/channels/write/blobs/`.

    `with_replication` is a Snowmelt extension that requests `awaits_replication`.
    """

    request_id: str | None = None
    role: str | None = None
    blobs: list[BlobMetadata] | None = None
    client_name: str | None = None
    client_key: str | None = None
    is_iceberg: bool = False
    with_replication: bool = False


class ChannelRegistrationResult(msgspec.Struct):
    """Result of registering one channel's rows in a chunk."""

    status_code: int
    channel: str | None
    client_sequencer: int | None
    message: str | None = None


class ChunkRegistrationResult(msgspec.Struct):
    """Results of one chunk. Channels are matched by name."""

    database: str | None
    schema: str | None
    table: str | None
    channels: list[ChannelRegistrationResult]


class BlobRegistrationResult(msgspec.Struct):
    """Results of one blob."""

    chunks: list[ChunkRegistrationResult]


class TableEncryptionKey(msgspec.Struct):
    """A newer key of a table. The client must use it for later chunks."""

    database: str
    schema: str
    table: str
    encryption_key: str
    encryption_key_id: int


class RegisterBlobsResponse(msgspec.Struct):
    """Result of a registration.

    `encryption_keys` must be a list, because null clears the official client's keys.
    `awaits_replication` is only present if the request has `with_replication`. If true, a failover group
    protects offset tokens, and the rows are durable only when `replicated_row_sequencer` of a channel
    status has reached their row sequencer.
    """

    status_code: int
    message: str
    blobs: list[BlobRegistrationResult] = []
    encryption_keys: list[TableEncryptionKey] = []
    awaits_replication: bool | msgspec.UnsetType = msgspec.UNSET


# --- Schema evolution (Snowmelt only): a client adds columns of its rows that are missing in the
# table.


class NewColumn(msgspec.Struct):
    """A nullable column in DDL notation, such as `gate` and `VARCHAR`."""

    name: str
    type: str


class EvolveTableRequest(msgspec.Struct):
    """`POST /v1/snowmelt/tables/evolve`. Names are in SQL notation.

    `encryption_key_id` identifies the table of an open channel even if the table was renamed.
    """

    database: str | None = None
    schema: str | None = None
    table: str | None = None
    role: str | None = None
    columns: list[NewColumn] = []
    drop_not_null: list[str] = []
    encryption_key_id: int | None = None


class EvolveTableResponse(msgspec.Struct):
    """The table's current columns, and the names of the columns that this request changed."""

    status_code: int
    message: str
    schema_version: int = 0
    table_columns: list[ColumnMetadata] = []
    added: list[str] = []
    dropped_not_null: list[str] = []


# --- Conversion of a table's columns to and from the `table_columns` of an open response.


def column_to_message(column: Column) -> ColumnMetadata:
    """Convert a column to its message."""
    return ColumnMetadata(**column_to_fields(column))


def column_from_message(message: ColumnMetadata) -> Column:
    """Convert a message to its column.

    Raises:
        Unsupported: If a type, physical type or collation is not supported.
    """
    return column_from_fields(msgspec.structs.asdict(message))


# --- Status codes of streaming v1 (specification §2.7).


class ResponseCode(IntEnum):
    """Values of `status_code` of a response or a channel."""

    SUCCESS = 0
    TABLE_MISSING = 4
    TOO_MANY_CHANNELS = 5
    UNSUPPORTED_COLUMN = 6
    QUEUE_FULL = 7
    DATABASE_MISSING = 8
    SCHEMA_MISSING = 9
    TRY_AGAIN = 10
    BLOBS_MISSING = 11
    CHUNKS_MISSING = 12
    CHANNELS_MISSING = 13
    BLOB_PATH_MISSING = 14
    DATABASE_NAME_MISSING = 15
    SCHEMA_NAME_MISSING = 16
    TABLE_NAME_MISSING = 17
    CHANNEL_NAME_MISSING = 18
    CHANNEL_GONE = 19
    STALE_CLIENT_SEQUENCER = 20
    ROW_SEQUENCER_NOT_NEXT = 21
    SIBLING_REFUSED = 22
    CHANNEL_TWICE = 23
    CLIENT_SEQUENCER_MISSING = 24
    CHANNEL_MISSING = 25
    CHUNK_MD5_MISSING = 28
    EP_MISSING = 29
    CHUNK_LENGTH_INVALID = 30
    EP_ROW_COUNT_INVALID = 31
    EP_COLUMN_INVALID = 32
    EP_INVALID = 33
    BLOB_NAME_WRONG = 34
    REOPEN = 36
    ROLE_MISSING = 37
    BLOB_FORMAT_WRONG = 38
    BLOB_MD5_MISSING = 39
    EP_COLUMN_MISSING = 40
    BLOB_TWICE = 41
    BDEC_VERSION_UNSUPPORTED = 42
    SDK_OUTDATED = 43
    USER_AGENT_UNKNOWN = 44
    USER_AGENT_MALFORMED = 45
    EP_VALUE_INVALID = 48
    ENCRYPTION_KEY_INVALID = 59
