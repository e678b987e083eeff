"""Authenticate S3 requests by signatures with access keys of the catalog's users."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from snowmelt.buckets.errors import S3Error
from snowmelt.catalog.db.database import Database
from snowmelt.catalog.security import encryption_keys
from snowmelt.catalog.security.access_control import find_user
from snowmelt.catalog.security.encryption_keys import (
    AccessKey,
    KeyRing,
    StageCredentials,
    TableCredentials,
    find_access_key,
)
from snowmelt.clock import Clock
from snowmelt.errors import NotFound
from snowmelt.server.auth import RECHECK_INTERVAL_S
from snowmelt.server.middleware import check_host
from snowmelt.server.s3 import signatures
from snowmelt.server.s3.request import S3Request
from snowmelt.server.s3.signatures import SignatureCredentials
from snowmelt.sigv4 import derive_signing_key

_MAX_CACHED_ENTRIES = 10_000


@dataclass(frozen=True, slots=True)
class S3Identity:
    """User of a request. `credentials` and `signing_key` verify the chunks of its body.

    They are None and empty if the body is not signed: for URLs presigned with version 2, and for
    unsigned requests, which only the development mode accepts. `stage_upload_credentials` or
    `table_credentials` are the temporary credentials that signed the request. Both are None if an
    access key signed it.
    """

    user: str
    credentials: SignatureCredentials | None = None
    is_signed: bool = True
    signing_key: bytes = b""
    stage_upload_credentials: StageCredentials | None = None
    table_credentials: TableCredentials | None = None


class S3Authenticator:
    """Authenticates requests by their signature.

    Secrets are cached for `RECHECK_INTERVAL_S` seconds, so a revoked key stays valid for that time.
    With `anonymous_user`, an unsigned request has that user if its Host header is a loopback name and no
    web page sent it.
    """

    def __init__(
        self,
        database: Database,
        keyring: KeyRing,
        clock: Clock,
        *,
        region: str = "",
        anonymous_user: str | None = None,
    ) -> None:
        self._database = database
        self._keyring = keyring
        self._clock = clock
        self._region = region
        self._anonymous_user = anonymous_user
        self._cached_keys: dict[str, tuple[AccessKey | None, float]] = {}
        # Users by name, with the time until which their existence is not checked again.
        self._users_valid_until: dict[str, float] = {}
        self._lock = threading.Lock()

    def authenticate(self, request: S3Request) -> S3Identity:
        """Return the identity of a request. May read the catalog.

        Raises:
            S3Error: If the signature is missing, of an unsupported kind, or invalid.
        """
        version_2 = signatures.parse_v2_access_key_id(request)
        if version_2 is not None:
            known = self._require_access_key(version_2)
            signatures.verify_v2_signature(request, known.secret, self._clock.now())
            return S3Identity(known.user)
        credentials = signatures.parse_credentials(request)
        if credentials is None:
            if self._anonymous_user is None:
                raise S3Error("AccessDenied", "Requests must be signed.")
            if "origin" in request.headers:
                # Pages of any origin can send requests to this machine.
                raise S3Error("AccessDenied", "Requests of web pages must be signed.")
            check_host(request.headers.get("host", "").encode("latin-1"))
            return S3Identity(self._anonymous_user, is_signed=False)
        token = request.headers.get("x-amz-security-token")
        if token is not None or "X-Amz-Security-Token" in request.query:
            return self._authenticate_temporary(request, credentials, token)
        known = self._require_access_key(credentials.access_key_id)
        signatures.check_region(credentials, self._region)
        signatures.check_signing_time(credentials, self._clock.now())
        key = derive_signing_key(known.secret, credentials.credential_scope)
        signatures.verify_signature(request, credentials, key)
        return S3Identity(known.user, credentials, signing_key=key)

    def _authenticate_temporary(
        self, request: S3Request, credentials: SignatureCredentials, token: str | None
    ) -> S3Identity:
        """Authenticate a request that is signed with temporary credentials of the stage or of a table."""
        if token is None:
            raise S3Error("AccessDenied", "URLs cannot be presigned with these credentials.")
        stage = encryption_keys.parse_stage_token(self._keyring, token)
        table = None if stage else encryption_keys.parse_table_token(self._keyring, token)
        known = stage or table
        if known is None or known.access_key_id != credentials.access_key_id:
            raise S3Error("InvalidToken")
        signatures.check_region(credentials, self._region)
        signatures.check_signing_time(credentials, self._clock.now())
        key = derive_signing_key(known.secret, credentials.credential_scope)
        signatures.verify_signature(request, credentials, key)
        if self._clock.now() >= known.expires_at:
            raise S3Error("ExpiredToken")
        self._require_existing_user(known.user)
        return S3Identity(
            known.user,
            credentials,
            signing_key=key,
            stage_upload_credentials=stage,
            table_credentials=table,
        )

    def _require_existing_user(self, user: str) -> None:
        now = self._clock.monotonic()
        if now < self._users_valid_until.get(user, now):
            return
        try:
            with self._database.reading() as connection:
                find_user(connection, user)
        except NotFound:
            self._users_valid_until.pop(user, None)
            raise S3Error("InvalidToken", "The user of this token was dropped.") from None
        with self._lock:
            if len(self._users_valid_until) >= _MAX_CACHED_ENTRIES:
                self._users_valid_until.clear()
            self._users_valid_until[user] = now + RECHECK_INTERVAL_S

    def _require_access_key(self, access_key_id: str) -> AccessKey:
        known = self._find_access_key(access_key_id)
        if known is None:
            raise S3Error("InvalidAccessKeyId", AWSAccessKeyId=access_key_id[:200])
        return known

    def _find_access_key(self, access_key_id: str) -> AccessKey | None:
        now = self._clock.monotonic()
        known = self._cached_keys.get(access_key_id)
        if known is not None and now < known[1]:
            return known[0]
        with self._database.reading() as connection:
            found = find_access_key(connection, self._keyring, access_key_id)
        with self._lock:
            if len(self._cached_keys) >= _MAX_CACHED_ENTRIES:
                self._cached_keys.clear()
            if found is not None:
                self._cached_keys[access_key_id] = (found, now + RECHECK_INTERVAL_S)
            else:
                self._cached_keys.pop(access_key_id, None)
        return found
