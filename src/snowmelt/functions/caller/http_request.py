"""HTTP requests of batches: URL, headers, compression and authentication.

Authentication headers are created for each attempt. A reference to a secret is `env:NAME`, or
`file:PATH` within one folder. It is resolved in the process that makes the call. Errors never
contain the value of a secret.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

from snowmelt import config
from snowmelt.clock import SystemClock
from snowmelt.functions.caller.http_client import (
    HttpOrigin,
    HttpTarget,
    encode_headers,
    encode_request_head,
)
from snowmelt.functions.caller.plan import CallPlan
from snowmelt.functions.definition import ApiIntegration, AuthenticationMethod, RequestCompression
from snowmelt.functions.errors import ResponseInvalid, SecretMissing
from snowmelt.functions.urls import parse_url, resolve_allowed_url
from snowmelt.functions.wire import compression
from snowmelt.functions.wire import headers as names
from snowmelt.sigv4 import AwsCredentials, SignableRequest, normalize_path, sign_headers

_MIN_COMPRESSED_BYTES = 1024
_AWS_GATEWAY_PATTERN = re.compile(r"[^.]+\.execute-api\.[^.]+\.amazonaws\.com(\.cn)?")


@dataclass(frozen=True, slots=True)
class TranslatedRequest:
    """A batch after translation. If `body` is None, the POST has no body.

    `url_suffix` is the text that a request translator appends to the function's URL, for POST and
    GET.
    """

    batch_id: str
    body: bytes | None
    url_suffix: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AddressedRequest:
    """A batch with its target."""

    request: TranslatedRequest
    url: str
    target: HttpTarget


_MAX_SECRET_BYTES = 64 * 1024


_SETTING_PREFIX = "SNOWMELT_"


class SecretReader:
    """Resolver of secret references. Errors never contain the value."""

    def __init__(self, folder: str | Path | None = None) -> None:
        """Create a resolver.

        Args:
            folder: Folder that must contain the files, after symbolic links are resolved. None: no
                files.
        """
        self._folder = None if folder is None else Path(folder)

    def resolve(self, reference: str) -> str:
        """Resolve a secret reference and strip whitespace.

        Raises:
            SecretMissing: If the secret does not exist or cannot be part of a header. The message
                names the reference.
        """
        kind, _, name = reference.partition(":")
        match kind:
            case "env":
                # A user who may create an integration chooses the variable and the host that receives it.
                if name.upper().startswith(_SETTING_PREFIX):
                    reason = (
                        "settings of Snowmelt may contain its own passwords. Rename the variable"
                    )
                    raise SecretMissing(reference=reference, reason=reason)
                found = config.read_environment_variable(name)
                if found is None:
                    raise SecretMissing(reference=reference, reason="the variable is not set")
            case "file":
                found = self._read_file(reference, self._resolve_path(reference, name))
            case _:
                # Omit the reference from the message: it may be the secret itself.
                reason = "a reference begins with env: or file:"
                raise SecretMissing(reference="of this integration", reason=reason)
        found = found.strip()
        if not found:
            raise SecretMissing(reference=reference, reason="it is empty")
        if not found.isprintable():
            raise SecretMissing(
                reference=reference, reason="it has several lines or control characters"
            )
        return found

    def _resolve_path(self, reference: str, name: str) -> Path:
        """Return the file of a reference, with symbolic links resolved.

        The folder must be checked, because a user who may create an integration chooses both the
        path and the host that receives the file's content.
        """
        if self._folder is None:
            reason = "no folder is set for files of secrets. Set SNOWMELT_SECRETS_DIR"
            raise SecretMissing(reference=reference, reason=reason)
        try:
            folder = self._folder.resolve()
            path = (folder / name).resolve()
        except (OSError, RuntimeError, ValueError):
            raise SecretMissing(reference=reference, reason="the path is invalid") from None
        if not path.is_relative_to(folder) or path == folder:
            reason = f"it is outside the folder of secrets, {folder} (SNOWMELT_SECRETS_DIR)"
            raise SecretMissing(reference=reference, reason=reason)
        return path

    def _read_file(self, reference: str, path: Path) -> str:
        try:
            if path.stat().st_size > _MAX_SECRET_BYTES:
                raise SecretMissing(reference=reference, reason="the file is too large")
            return path.read_text()
        except OSError as error:
            raise SecretMissing(reference=reference, reason=error.strerror) from None
        except ValueError:
            raise SecretMissing(reference=reference, reason="the file is not UTF-8 text") from None


_CLOCK = SystemClock()
_AZURE_KEY_HEADER = "ocp-apim-subscription-key"
_API_KEY_HEADER = "x-api-key"
_AWS_HOST_PATTERN = re.compile(
    r"[^.]+\.(?:execute-api\.(?P<gateway>[a-z0-9-]+)\.(?:amazonaws\.com|api\.aws)(?:\.cn)?"
    r"|lambda-url\.(?P<function>[a-z0-9-]+)\.on\.aws)"
)


_REDACTION_MASK = "***"
# Minimum length to redact: shorter strings occur in most texts by chance.
_MIN_REDACTED_CHARS = 4
_PUBLIC_HEADERS = frozenset({"x-amz-date", "x-amz-content-sha256", "host"})
_CREDENTIAL_PATTERN = re.compile(
    r"""((?:authorization|api[-_]?key|subscription[-_]?key|password|passwd|secret|credential
    |(?:access|auth|refresh|security|session|id)?[-_]?token)["']?\s*[:=]\s*["']?
    (?:(?:basic|bearer)\s+)?)[^\s"',;&}]+""",
    re.IGNORECASE | re.VERBOSE,
)


class RequestAuthenticator:
    """Authenticator for the requests of one integration."""

    def __init__(self, integration: ApiIntegration, secrets: SecretReader | None = None) -> None:
        self._integration = integration
        self._secret_reader = secrets or SecretReader()
        self._sent_secrets: frozenset[str] = frozenset()
        self._api_key_header = (
            _AZURE_KEY_HEADER if "azure" in integration.provider.lower() else _API_KEY_HEADER
        )
        self.is_needed = (
            integration.api_key is not None
            or integration.authentication is not AuthenticationMethod.NONE
        )

    async def make_headers(self, method: str, url: str, body: bytes) -> Mapping[str, str]:
        """Return the authentication headers of a request.

        Raises:
            SecretMissing: If a secret cannot be read, or botocore is needed for AWS credentials and is
                not installed.
        """
        integration = self._integration
        made: dict[str, str] = {}
        match integration.authentication:
            case AuthenticationMethod.NONE:
                pass
            case AuthenticationMethod.BASIC:
                pair = f"{integration.user or ''}:{self._read_secret()}"
                made["authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
            case AuthenticationMethod.BEARER:
                made["authorization"] = f"Bearer {self._read_secret()}"
            case AuthenticationMethod.SIGV4:
                made |= await self._make_sigv4_headers(method, url, body)
        if integration.api_key is not None:
            made[self._api_key_header] = self._secret_reader.resolve(integration.api_key)
        values = {value for name, value in made.items() if name not in _PUBLIC_HEADERS}
        if integration.secret is not None:
            values.add(self._read_secret())
        # Also redact the parts of a header: the token after its scheme, the parts of a signature.
        parts = {part for value in values for part in re.split(r"[\s,]+|\w+=", value)}
        self._sent_secrets = frozenset(
            each for each in values | parts if len(each) >= _MIN_REDACTED_CHARS
        )
        return made

    def redact_secrets(self, text: str) -> str:
        """Replace credentials in a text.

        Services repeat headers in their errors. Replaces credentials that were sent, and any text
        that follows the name of a credential.
        """
        for each in sorted(self._sent_secrets, key=len, reverse=True):
            text = text.replace(each, _REDACTION_MASK)
        return _CREDENTIAL_PATTERN.sub(rf"\1{_REDACTION_MASK}", text)

    def _read_secret(self) -> str:
        if self._integration.secret is None:
            reason = "the integration names none"
            raise SecretMissing(reference="of this integration", reason=reason)
        return self._secret_reader.resolve(self._integration.secret)

    async def _make_sigv4_headers(self, method: str, url: str, body: bytes) -> dict[str, str]:
        service, region = parse_aws_service_and_region(url, self._integration.region)
        address = parse_url(url)
        query = address.query.split("&") if address.query else ()
        request = SignableRequest(
            method,
            normalize_path(address.path),
            [(name, value) for name, _, value in (each.partition("=") for each in query)],
            {"host": address.authority},
            hashlib.sha256(body).hexdigest(),
        )
        if self._integration.user is not None:
            credentials = AwsCredentials(self._integration.user, self._read_secret())
        else:  # The search for credentials may send network requests.
            credentials = await asyncio.to_thread(_get_default_credentials)
        made = sign_headers(
            request, credentials, region=region, service=service, signed_at=_CLOCK.now()
        )
        del made["host"]  # The HTTP client sets this header.
        return made


def parse_aws_service_and_region(url: str, region: str | None) -> tuple[str, str]:
    """Return the AWS service and region for a signature.

    Args:
        url: URL of the request. A host that is not an AWS name is treated as an API gateway.
        region: Region of the integration. None: the region in the host name.

    Raises:
        SecretMissing: If neither the integration nor the host has a region.
    """
    host = re.sub(r"^https?://([^/:?]+).*", r"\1", url.lower())
    known = _AWS_HOST_PATTERN.fullmatch(host)
    service = "lambda" if known is not None and known["function"] else "execute-api"
    found = region or (known and (known["gateway"] or known["function"]))
    if not found:
        reason = "the signature requires a region, and the host name has none"
        raise SecretMissing(reference="of this integration", reason=reason)
    return service, found


_credentials_lock = threading.Lock()


@cache
def _find_default_credentials() -> Any:
    try:
        session = import_module("botocore.session")
    except ImportError:
        reason = "signing requests for AWS needs botocore; pip install 'snowmelt[aws]'"
        raise SecretMissing(reference="of this integration", reason=reason) from None
    return session.Session().get_credentials()


def _get_default_credentials() -> AwsCredentials:
    """Return boto3's credentials. Searches once per process. botocore renews the credentials."""
    with _credentials_lock:
        found = _find_default_credentials()
    if found is None:
        reason = "neither the integration nor this machine has AWS credentials"
        raise SecretMissing(reference="of this integration", reason=reason)
    now = found.get_frozen_credentials()
    return AwsCredentials(now.access_key, now.secret_key, now.token or "")


class RequestFactory:
    """Encoder of the requests of one function."""

    def __init__(self, plan: CallPlan, accepted_encodings: Mapping[HttpOrigin, str]) -> None:
        """Create a factory. Secrets are read when a request needs them.

        Args:
            plan: Plan of the calls.
            accepted_encodings: Last Accept-Encoding header of each origin's responses. The HTTP
                client updates it.
        """
        self._plan = plan
        self._accepted_encodings = accepted_encodings
        self._authenticator = RequestAuthenticator(
            plan.integration, SecretReader(plan.options.secrets_dir)
        )
        self._default_target: tuple[str, HttpTarget] | None = None
        self._shared_lines: tuple[str, bytes] | None = None

    def resolve_target(self, request: TranslatedRequest) -> AddressedRequest:
        """Return a batch with its target.

        Raises:
            UrlRefused: If the integration does not allow calls to the URL.
            ResponseInvalid: If the integration is disabled.
        """
        if request.url_suffix or self._default_target is None:
            integration = self._plan.integration
            if not integration.enabled:
                raise ResponseInvalid(reason=f"API integration {integration.name} is not enabled")
            # Check the URL with its suffix, so that a translator cannot bypass the allowed
            # prefixes.
            address = resolve_allowed_url(self._plan.function.url + request.url_suffix, integration)
            place = (str(address), HttpTarget.from_url(address, integration.ca_file))
            if request.url_suffix:
                return AddressedRequest(request, *place)
            self._default_target = place
        return AddressedRequest(request, *self._default_target)

    async def encode_request(
        self, addressed_request: AddressedRequest, method: str, query_id: str
    ) -> tuple[bytes, bytes]:
        """Return head and body of a request. A GET has the same headers and no body.

        Raises:
            SecretMissing: If a credential is missing.
            DeclarationInvalid: If a header is invalid.
        """
        batch, target = addressed_request.request, addressed_request.target
        own = {names.BATCH_ID: batch.batch_id, **batch.headers}
        encoding = self._choose_encoding(target.origin)
        if encoding is not None:
            own["accept-encoding"] = encoding
        body = b""
        length = None
        if method == "POST":
            automatic = self._plan.function.compression is RequestCompression.AUTO
            least = _MIN_COMPRESSED_BYTES if automatic else 1
            body = batch.body or b""
            if encoding is not None and len(body) >= least:
                own["content-encoding"] = encoding
                body = compression.compress(body, encoding)
            length = len(body)
        if self._authenticator.is_needed:
            own |= await self._authenticator.make_headers(method, addressed_request.url, body)
        lines = self._get_shared_header_lines(query_id) + encode_headers(own)
        return encode_request_head(method, target, lines, length), body

    def redact_secrets(self, text: str) -> str:
        """Replace credentials in a text of the service."""
        return self._authenticator.redact_secrets(text)

    def _choose_encoding(self, origin: HttpOrigin) -> str | None:
        match self._plan.function.compression:
            case RequestCompression.NONE:
                return None
            case RequestCompression.AUTO:
                if _AWS_GATEWAY_PATTERN.fullmatch(origin.host):
                    return "gzip"
                return (
                    compression.negotiate_encoding(self._accepted_encodings.get(origin))
                    if self._accepted_encodings
                    else None
                )
            case said:
                return said.value.lower()

    def _get_shared_header_lines(self, query_id: str) -> bytes:
        """Return the headers that all batches of a query share, encoded once."""
        if self._shared_lines is not None and self._shared_lines[0] == query_id:
            return self._shared_lines[1]
        plan = self._plan
        headers = {
            "user-agent": f"snowmelt/{metadata.version('snowmelt')}",
            "accept": "*/*",
            "content-type": "application/json",
            names.ROW_ERRORS: "1",
        } | names.make_request_headers(
            plan.function.signature,
            query_id,
            "",
            style=plan.options.style,
            custom=dict(plan.function.headers),
            context=plan.context,
        )
        del headers[names.BATCH_ID]
        if plan.traceparent is not None:
            headers["traceparent"] = plan.traceparent
        lines = encode_headers(headers)
        self._shared_lines = (query_id, lines)
        return lines
