"""Who asks: signatures against the access keys of the catalog's users."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from snowmelt.buckets.errors import S3Error
from snowmelt.catalog.security import access_keys as stage_credentials
from snowmelt.catalog.security.access_control import find_user
from snowmelt.catalog.security.access_keys import find_access_key
from snowmelt.errors import NotFound
from snowmelt.server.auth import RECHECK_S
from snowmelt.server.middleware import check_host
from snowmelt.server.s3 import signatures as signing
from snowmelt.server.s3 import signatures as signing_v2

if TYPE_CHECKING:
    from snowmelt.catalog.db.database import Database
    from snowmelt.catalog.security.access_keys import AccessKey, StageCredentials
    from snowmelt.catalog.security.encryption_keys import KeyRing
    from snowmelt.clock import Clock
    from snowmelt.server.s3.request import Request
    from snowmelt.server.s3.signatures import Credentials

_MOST_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class Identity:
    """The user of a request; `credentials` and `key` sign what follows in its body.

    `confined_to` are the stage's credentials that it was signed with, None for a user's own. The
    others are None and empty where nothing in the body is signed: for addresses presigned in
    version 2, and for requests without a signature, which only the development mode takes.
    """

    user: str
    credentials: Credentials | None = None
    is_signed: bool = True
    key: bytes = b""
    confined_to: StageCredentials | None = None


class Door:
    """Lets in requests whose signature holds.

    Secrets are remembered for some seconds: a key that is withdrawn counts that much longer.
    With `anonymous_user` a request without a signature is that user's, if it asks for this
    machine by a name that no web page could have taken.
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
        self._anonymous = anonymous_user
        self._known: dict[str, tuple[AccessKey | None, float]] = {}
        # Until when a user is taken to be still there.
        self._users: dict[str, float] = {}
        self._lock = threading.Lock()

    def identify(self, request: Request) -> Identity:
        """Return who asks; may read the catalog.

        Raises:
            S3Refusal: No signature, one of another kind, or one that does not hold.
        """
        version_2 = signing_v2.access_key_id_of(request)
        if version_2 is not None:
            known = self._require(version_2)
            signing_v2.check(request, known.secret, self._clock.now())
            return Identity(known.user)
        credentials = signing.credentials_of(request)
        if credentials is None:
            if self._anonymous is None:
                raise S3Error("AccessDenied", "Requests must be signed.")
            check_host(request.headers.get("host", "").encode("latin-1"))
            return Identity(self._anonymous, is_signed=False)
        token = request.headers.get("x-amz-security-token")
        if token is not None or "X-Amz-Security-Token" in request.query:
            return self._confined(request, credentials, token)
        known = self._require(credentials.access_key_id)
        signing.check_region(credentials, self._region)
        signing.check_time(credentials, self._clock.now())
        key = signing.signing_key(known.secret, credentials.date, credentials.region)
        signing.check_signature(request, credentials, key)
        return Identity(known.user, credentials, key=key)

    def _confined(self, request: Request, credentials: Credentials, token: str | None) -> Identity:
        """Let in what is signed with credentials of the stage."""
        if token is None:
            raise S3Error("AccessDenied", "Addresses cannot be presigned with these credentials.")
        known = stage_credentials.parse_stage_token(self._keyring, token)
        if known is None or known.access_key_id != credentials.access_key_id:
            raise S3Error("InvalidToken")
        signing.check_region(credentials, self._region)
        signing.check_time(credentials, self._clock.now())
        key = signing.signing_key(known.secret, credentials.date, credentials.region)
        signing.check_signature(request, credentials, key)
        if self._clock.now() >= known.expires_at:
            raise S3Error("ExpiredToken")
        self._require_user(known.user)
        return Identity(known.user, credentials, key=key, confined_to=known)

    def _require_user(self, user: str) -> None:
        now = self._clock.monotonic()
        if now < self._users.get(user, now):
            return
        try:
            with self._database.reading() as connection:
                find_user(connection, user)
        except NotFound:
            self._users.pop(user, None)
            raise S3Error("InvalidToken", "The user of this token is gone.") from None
        with self._lock:
            if len(self._users) >= _MOST_REMEMBERED:
                self._users.clear()
            self._users[user] = now + RECHECK_S

    def _require(self, access_key_id: str) -> AccessKey:
        known = self._access_key(access_key_id)
        if known is None:
            raise S3Error("InvalidAccessKeyId", AWSAccessKeyId=access_key_id[:200])
        return known

    def _access_key(self, access_key_id: str) -> AccessKey | None:
        now = self._clock.monotonic()
        known = self._known.get(access_key_id)
        if known is not None and now < known[1]:
            return known[0]
        with self._database.reading() as connection:
            found = find_access_key(connection, self._keyring, access_key_id)
        with self._lock:
            if len(self._known) >= _MOST_REMEMBERED:
                self._known.clear()
            if found is not None:
                self._known[access_key_id] = (found, now + RECHECK_S)
            else:
                self._known.pop(access_key_id, None)
        return found
