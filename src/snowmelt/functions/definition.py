"""Definitions of external functions, API integrations and translators, with CREATE statements.

Functions and integrations are sent to the processes that make the calls, so they contain no
secrets. They contain references (`env:NAME`, `file:PATH`), which those processes resolve.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

import msgspec

from snowmelt.functions.errors import DeclarationInvalid
from snowmelt.functions.signature import FunctionSignature
from snowmelt.schema.types import quote_literal

DEFAULT_COMMENT = "user-defined function"


class AuthenticationMethod(StrEnum):
    """Method by which requests of an integration authenticate."""

    NONE = "NONE"
    BASIC = "BASIC"
    BEARER = "BEARER"
    SIGV4 = "SIGV4"


# Clauses that a method requires (True) or allows (False). It rejects all others.
_AUTHENTICATION_FIELDS: dict[AuthenticationMethod, dict[str, bool]] = {
    AuthenticationMethod.NONE: {},
    AuthenticationMethod.BASIC: {"USER": True, "SECRET": True},
    AuthenticationMethod.BEARER: {"SECRET": True},
    AuthenticationMethod.SIGV4: {"USER": False, "SECRET": False},
}


class NullInputAction(StrEnum):
    """Handling of rows with a NULL argument. STRICT: the result is NULL and the row is not sent."""

    CALLED = "CALLED ON NULL INPUT"
    STRICT = "RETURNS NULL ON NULL INPUT"


class Volatility(StrEnum):
    """Volatility of a function.

    IMMUTABLE: equal arguments give equal results, so equal rows of a batch are sent once.
    """

    VOLATILE = "VOLATILE"
    IMMUTABLE = "IMMUTABLE"


class RequestCompression(StrEnum):
    """Compression of requests. AUTO: GZIP for AWS gateways, otherwise NONE."""

    AUTO = "AUTO"
    NONE = "NONE"
    GZIP = "GZIP"
    DEFLATE = "DEFLATE"


class FailureAction(StrEnum):
    """Effect of a failed row or a permanently failed batch: abort the query, or return NULL."""

    ABORT = "ABORT"
    RETURN_NULL = "RETURN_NULL"


class _StoredDefinition:
    """Base class of the definitions that the catalog stores as JSON."""

    __slots__ = ()

    def to_json(self) -> bytes:
        """Return the definition as JSON for the catalog."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, text: bytes | str) -> Self:
        """Parse a definition that `to_json` wrote.

        Raises:
            msgspec.ValidationError: If the text is not such a definition.
        """
        return msgspec.json.decode(text, type=cls)


@dataclass(frozen=True, slots=True)
class ApiIntegration(_StoredDefinition):
    """Allowed targets of calls, and the credentials to authenticate with.

    Prefixes are URLs. `secret` and `api_key` are references to secrets. `user` is the user name for
    BASIC, or the access key ID for SIGV4. SIGV4 without `user` uses boto3's default credential
    search.
    """

    name: str
    provider: str
    allowed_prefixes: tuple[str, ...]
    blocked_prefixes: tuple[str, ...] = ()
    enabled: bool = True
    authentication: AuthenticationMethod = AuthenticationMethod.NONE
    user: str | None = None
    secret: str | None = None
    api_key: str | None = None
    region: str | None = None
    ca_file: str | None = None
    comment: str | None = None
    # Stored and displayed, but not used, so that statements written for cloud providers run
    # unchanged.
    aws_role_arn: str | None = None
    azure_tenant_id: str | None = None
    azure_ad_application_id: str | None = None
    google_audience: str | None = None

    def validate(self) -> None:
        """Verify that the clauses are consistent.

        Raises:
            DeclarationInvalid: If a clause that the authentication method requires is missing, or
                one that it does not allow is present.
        """
        for field, value in (("USER", self.user), ("SECRET", self.secret)):
            need = _AUTHENTICATION_FIELDS[self.authentication].get(field)
            if need is None and value is not None:
                raise DeclarationInvalid(
                    reason=f"AUTHENTICATION = {self.authentication} does not support {field}"
                )
            if need and value is None:
                raise DeclarationInvalid(
                    reason=f"AUTHENTICATION = {self.authentication} requires {field}"
                )
        if (self.user is None) != (self.secret is None) and self.authentication == "SIGV4":
            raise DeclarationInvalid(
                reason="AUTHENTICATION = SIGV4 requires both USER and SECRET, or neither"
            )


class TranslatorLanguage(StrEnum):
    """Language of a translator. PYTHON has no sandbox."""

    JAVASCRIPT = "JAVASCRIPT"
    PYTHON = "PYTHON"


@dataclass(frozen=True, slots=True)
class Translator:
    """A function from OBJECT to OBJECT that rewrites requests or responses of a service.

    `name` is the full name as SQL writes it. For JAVASCRIPT, `body` is a function body that reads the
    object from the variable `argument` and returns an object. The variable is available as written and
    in upper case. For PYTHON, `body` is the source of a module, and `handler` names its function.
    """

    name: str
    language: TranslatorLanguage
    argument: str
    body: str
    handler: str | None = None


@dataclass(frozen=True, slots=True)
class ExternalFunction(_StoredDefinition):
    """One external function. `signature.name` is its name as written in the statement.

    `integration` is an internal name. Translators are full names as SQL writes them.
    Omitted clauses have the defaults of the published format (spec section 1.1). None: the caller
    chooses.
    """

    signature: FunctionSignature
    url: str
    integration: str
    returns_null: bool = True
    null_input: NullInputAction = NullInputAction.CALLED
    volatility: Volatility = Volatility.VOLATILE
    secure: bool = False
    comment: str = DEFAULT_COMMENT
    headers: tuple[tuple[str, str], ...] = ()
    context_headers: tuple[str, ...] = ()
    max_batch_rows: int | None = None
    max_batch_bytes: int | None = None
    compression: RequestCompression = RequestCompression.AUTO
    request_translator: str | None = None
    response_translator: str | None = None
    max_in_flight: int | None = None
    rate_limit: float | None = None
    row_errors: FailureAction = FailureAction.ABORT
    cache_bytes: int | None = None
    on_batch_failure: FailureAction = FailureAction.ABORT
    max_batch_retries: int | None = None
    batch_timeout_s: float | None = None

    @property
    def version(self) -> str:
        """Short digest of the fields that determine the result of a call. Used as a cache key."""
        return hashlib.sha256(self.to_json()).hexdigest()[:12]


# CREATE EXTERNAL FUNCTION. A statement without Snowmelt-specific clauses also runs in Snowflake.


def format_create_function(
    function: ExternalFunction, name: str, integration: str, *, replace: bool = False
) -> str:
    """Return the CREATE EXTERNAL FUNCTION statement of a definition, without default clauses.

    Args:
        function: The definition. The name and integration in it are ignored.
        name: Name of the function, as SQL writes it.
        integration: Name of the API integration, as SQL writes it.
        replace: Write CREATE OR REPLACE.
    """
    first = ["CREATE", "EXTERNAL FUNCTION"]
    if replace:
        first.insert(1, "OR REPLACE")
    if function.secure:
        first.insert(-1, "SECURE")
    signature = function.signature
    returns = signature.returns.ddl + ("" if function.returns_null else " NOT NULL")
    lines = [
        f"{' '.join(first)} {name}({signature.format_arguments_ddl()})",
        f"RETURNS {returns}",
        *_format_behavior_clauses(function),
        f"API_INTEGRATION = {integration}",
        *_format_call_clauses(function),
        f"AS {quote_literal(function.url)};",
    ]
    return "\n".join(lines)


def _format_behavior_clauses(function: ExternalFunction) -> Iterator[str]:
    if function.null_input is not NullInputAction.CALLED:
        yield function.null_input.value
    if function.volatility is not Volatility.VOLATILE:
        yield function.volatility.value
    if function.comment != DEFAULT_COMMENT:
        yield f"COMMENT = {quote_literal(function.comment)}"


def _format_call_clauses(function: ExternalFunction) -> Iterator[str]:
    if function.headers:
        pairs = (
            f"{quote_literal(name)} = {quote_literal(value)}" for name, value in function.headers
        )
        yield f"HEADERS = ({', '.join(pairs)})"
    if function.context_headers:
        yield f"CONTEXT_HEADERS = ({', '.join(function.context_headers)})"
    plain = {
        "MAX_BATCH_ROWS": function.max_batch_rows,
        "COMPRESSION": _omit_default(function.compression, RequestCompression.AUTO),
        "REQUEST_TRANSLATOR": function.request_translator,
        "RESPONSE_TRANSLATOR": function.response_translator,
        "MAX_IN_FLIGHT": function.max_in_flight,
        "RATE_LIMIT": function.rate_limit,
        "ROW_ERRORS": _omit_default(function.row_errors, FailureAction.ABORT),
        "CACHE": "OFF" if function.cache_bytes == 0 else function.cache_bytes,
        "MAX_BATCH_SIZE": function.max_batch_bytes,
        "ON_BATCH_FAILURE": _omit_default(function.on_batch_failure, FailureAction.ABORT),
        "MAX_BATCH_RETRIES": function.max_batch_retries,
        "BATCH_TIMEOUT_SECS": function.batch_timeout_s,
    }
    for word, value in plain.items():
        if value is not None:
            yield f"{word} = {value}"


def _omit_default(value: str, default: str) -> str | None:
    return None if value == default else value
