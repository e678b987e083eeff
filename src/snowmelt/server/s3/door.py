"""Who asks: signatures against the access keys of the catalog's users."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from snowmelt.buckets.refusals import S3Refusal
from snowmelt.catalog.access_keys import find_access_key
from snowmelt.server.auth import RECHECK_S
from snowmelt.server.front import check_host
from snowmelt.server.s3 import signing, signing_v2

if TYPE_CHECKING:
    from snowmelt.catalog.access_keys import AccessKey
    from snowmelt.catalog.database import Database
    from snowmelt.catalog.keys import KeyRing
    from snowmelt.clock import Clock
    from snowmelt.server.s3.requests import Request
    from snowmelt.server.s3.signing import Credentials

_MOST_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class Identity:
    """The user of a request; `credentials` and `key` sign what follows in its body.

    They are None and empty where nothing in the body is signed: for addresses presigned in
    version 2, and for requests without a signature, which only the development mode takes.
    """

    user: str
    credentials: Credentials | None = None
    is_signed: bool = True
    key: bytes = b""


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
        anonymous_user: str | None = None,
    ) -> None:
        self._database = database
        self._keyring = keyring
        self._clock = clock
        self._anonymous = anonymous_user
        self._known: dict[str, tuple[AccessKey | None, float]] = {}
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
                raise S3Refusal("AccessDenied", "Requests must be signed.")
            check_host(request.headers.get("host", "").encode("latin-1"))
            return Identity(self._anonymous, is_signed=False)
        if "x-amz-security-token" in request.headers or "X-Amz-Security-Token" in request.query:
            raise S3Refusal("InvalidAccessKeyId", "Temporary credentials are not issued here.")
        known = self._require(credentials.access_key_id)
        signing.check_time(credentials, self._clock.now())
        key = signing.signing_key(known.secret, credentials.date, credentials.region)
        signing.check_signature(request, credentials, key)
        return Identity(known.user, credentials, key=key)

    def _require(self, access_key_id: str) -> AccessKey:
        known = self._access_key(access_key_id)
        if known is None:
            raise S3Refusal("InvalidAccessKeyId", AWSAccessKeyId=access_key_id[:200])
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
