"""Every error of Snowmelt: one tree; the docstring of a leaf is its default message.

SnowmeltError
├── UserError        the caller can fix it: name, value, statement, privilege
├── ConflictError    somebody else was faster, or owns it now
├── RemoteError      another system failed or does not answer
├── UnknownOutcome   it may or may not have happened: look before doing it again
└── InternalError    our own fault

Each class has a stable `code`, the HTTP `status` that answers with it, `retryable`, and
`response_code`, the number that streaming v1 uses for it (specification of v1, §2.7).
Fields given by name fill the braces of the docstring and stay readable as `error.fields`.
"""

from __future__ import annotations

from snowmelt.errors.buckets import (
    BucketNameInvalid,
    ObjectChanged,
    UploadNotFound,
)
from snowmelt.errors.catalog import (
    CatalogBusy,
    CatalogUnavailable,
    TransactionConflict,
)
from snowmelt.errors.channels import (
    BufferFull,
    ChannelClosed,
    ChannelFenced,
    ChannelInvalid,
    ChannelNotFound,
    ClientClosed,
    CommitTimeout,
    RequestRefused,
    SourceWentBackwards,
    TokenNotInserted,
    TooManyChannels,
)
from snowmelt.errors.loads import (
    BrokersSilent,
    LoadCancelled,
    LoadFailed,
    LoadOvertaken,
    LoadRefused,
    OutputRefused,
    PhaseFailed,
    UserCodeFailed,
)
from snowmelt.errors.names import (
    AlreadyExists,
    AuthenticationFailed,
    ColumnNotFound,
    DatabaseNotFound,
    EvolutionRefused,
    InvalidPublicKey,
    NotEmpty,
    NotFound,
    NotRestorable,
    PrivilegeMissing,
    RoleNotGranted,
    SchemaNotFound,
    TableNotFound,
)
from snowmelt.errors.rows import (
    BodyTooLarge,
    BodyUnreadable,
    ChannelGone,
    ContinuationNotNext,
    ContinuationStale,
    PipeNotFound,
    RowsBusy,
    TooManyRequests,
)
from snowmelt.errors.service import (
    DataFolderBusy,
    NameMissing,
    RegistrationRefused,
    RequestMalformed,
    ServiceBusy,
)
from snowmelt.errors.stages import (
    BlobCorrupt,
    BlobInvalid,
    ObjectMissing,
    PathRefused,
    ServiceUnavailable,
    StageUnavailable,
    SyncFailed,
)
from snowmelt.errors.surroundings import (
    ConfigurationError,
    JavaMissing,
    MissingExtra,
)
from snowmelt.errors.tables import (
    CommitLost,
    LeaseLost,
    PlanExpired,
    TableInconsistent,
)
from snowmelt.errors.tree import (
    ConflictError,
    InternalError,
    RemoteError,
    SnowmeltError,
    UnknownOutcome,
    UserError,
)
from snowmelt.errors.values import (
    InvalidRow,
    InvalidValue,
    RowTooLarge,
    StatementError,
    TooComplex,
    Unsupported,
)

__all__ = [
    "AlreadyExists",
    "AuthenticationFailed",
    "BlobCorrupt",
    "BlobInvalid",
    "BodyTooLarge",
    "BodyUnreadable",
    "BrokersSilent",
    "BucketNameInvalid",
    "BufferFull",
    "CatalogBusy",
    "CatalogUnavailable",
    "ChannelClosed",
    "ChannelFenced",
    "ChannelGone",
    "ChannelInvalid",
    "ChannelNotFound",
    "ClientClosed",
    "ColumnNotFound",
    "CommitLost",
    "CommitTimeout",
    "ConfigurationError",
    "ConflictError",
    "ContinuationNotNext",
    "ContinuationStale",
    "DataFolderBusy",
    "DatabaseNotFound",
    "EvolutionRefused",
    "InternalError",
    "InvalidPublicKey",
    "InvalidRow",
    "InvalidValue",
    "JavaMissing",
    "LeaseLost",
    "LoadCancelled",
    "LoadFailed",
    "LoadOvertaken",
    "LoadRefused",
    "MissingExtra",
    "NameMissing",
    "NotEmpty",
    "NotFound",
    "NotRestorable",
    "ObjectChanged",
    "ObjectMissing",
    "OutputRefused",
    "PathRefused",
    "PhaseFailed",
    "PipeNotFound",
    "PlanExpired",
    "PrivilegeMissing",
    "RegistrationRefused",
    "RemoteError",
    "RequestMalformed",
    "RequestRefused",
    "RoleNotGranted",
    "RowTooLarge",
    "RowsBusy",
    "SchemaNotFound",
    "ServiceBusy",
    "ServiceUnavailable",
    "SnowmeltError",
    "SourceWentBackwards",
    "StageUnavailable",
    "StatementError",
    "SyncFailed",
    "TableInconsistent",
    "TableNotFound",
    "TokenNotInserted",
    "TooComplex",
    "TooManyChannels",
    "TooManyRequests",
    "TransactionConflict",
    "UnknownOutcome",
    "Unsupported",
    "UploadNotFound",
    "UserCodeFailed",
    "UserError",
]
