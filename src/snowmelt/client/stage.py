"""Upload blobs to the stage, a local folder or an S3 bucket.

Uploads to S3 are signed and use kept-alive connections and renewed credentials. A failed upload can
be repeated: it writes the same bytes under the same name.
"""

from __future__ import annotations

import datetime as dt
import email.utils
import hashlib
import http.client
import logging
import re
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import quote, urlsplit

from snowmelt.client.settings import ClientSettings
from snowmelt.client.transport import make_ssl_context
from snowmelt.clock import Clock
from snowmelt.errors import SnowmeltError, StageUnavailable, Unsupported
from snowmelt.sigv4 import AwsCredentials, SignableRequest, sign_headers
from snowmelt.storage.local_store import LocalStore
from snowmelt.storage.store import BytesLike
from snowmelt.wire.streaming import StageLocation


def encode_url_path(*parts: str) -> str:
    """Return the URL path of a bucket and a key."""
    return quote("/" + "/".join(parts), safe="/-_.~")


_log = logging.getLogger(__name__)

_CONNECTION_ERRORS = (OSError, http.client.HTTPException)
# Error codes after which credentials are renewed.
_EXPIRED_CREDENTIAL_CODES = frozenset(
    {"ExpiredToken", "InvalidToken", "InvalidAccessKeyId", "TokenRefreshRequired"}
)
# Credentials are renewed when less than this fraction of their lifetime is left, at most once per
# second.
_RENEWAL_REMAINING_FRACTION = 0.2
_MAX_RESPONSE_BYTES = 64 * 1024
_MAX_REASON_CHARACTERS = 300


class UploadGrant(NamedTuple):
    """An upload location from the service, and its lifetime in seconds (None: unlimited)."""

    location: StageLocation
    expires_in_s: float | None


class _UploadLocation(NamedTuple):
    """A parsed grant."""

    uses_tls: bool
    host: str
    port: int | None
    authority: str
    bucket: str
    prefix: str
    credentials: AwsCredentials
    region: str
    renew_at: float
    expires_at: float


class _S3Response(NamedTuple):
    status: int
    code: str
    message: str
    date: dt.datetime | None


class S3BlobStage:
    """Uploads to one client's prefix of a bucket. Thread-safe."""

    def __init__(
        self,
        grant: UploadGrant,
        renew_grant: Callable[[], UploadGrant],
        clock: Clock,
        *,
        timeout_s: float,
        ssl_context_factory: Callable[[], ssl.SSLContext],
    ) -> None:
        """Create the stage. Sends no request.

        Args:
            grant: A location of type S3.
            renew_grant: Requests a new grant of the same location from the service.
            clock: Clock for signatures and the expiration of credentials.
            timeout_s: Timeout of each connection step in seconds.
            ssl_context_factory: Function that creates the TLS context.

        Raises:
            StageUnavailable: If the location is invalid.
        """
        self._renew_grant = renew_grant
        self._clock = clock
        self._timeout_s = timeout_s
        self._ssl_context_factory = ssl_context_factory
        self._ssl_context: ssl.SSLContext | None = None
        self._lock = threading.Lock()
        # Held during a request to the service. Uploads do not wait for it.
        self._renewal_lock = threading.Lock()
        self._idle_connections: list[tuple[str, http.client.HTTPConnection]] = []
        self._is_closed = False
        # Clock skew: store time minus local time.
        self._clock_skew = dt.timedelta(0)
        self._location = self._parse_grant(grant)

    def put(self, path: str, data: BytesLike) -> None:
        """Write a whole object. After a failure, no part of it is visible.

        Raises:
            StageUnavailable: If the store does not respond or rejects the request, or the
                credentials cannot be renewed. A later retry may succeed.
        """
        place = self._get_valid_location()
        digest = hashlib.sha256(data).hexdigest()
        answer = self._put_object(place, path, data, digest)
        if self._try_recover(answer, place):
            place = self._location
            answer = self._put_object(place, path, data, digest)
        if answer.status != 200:
            said = f"{answer.code} {answer.message}".strip()[:_MAX_REASON_CHARACTERS].rstrip(".")
            where = f"{place.authority}/{place.bucket}"
            raise StageUnavailable(reason=f"{where} responded with HTTP {answer.status}: {said}")

    def close(self) -> None:
        """Close idle connections. Connections of later uploads are closed after use."""
        with self._lock:
            self._is_closed = True
            idle, self._idle_connections = self._idle_connections, []
        for _, connection in idle:
            connection.close()

    def _try_recover(self, response: _S3Response, location: _UploadLocation) -> bool:
        """Correct the clock skew or renew the credentials. Return True if the request may be repeated."""
        if response.code == "RequestTimeTooSkewed" and response.date is not None:
            self._clock_skew = response.date - self._clock.now()
            return True
        if response.code in _EXPIRED_CREDENTIAL_CODES:
            self._renew_credentials(location)
            return True
        return False

    def _get_valid_location(self) -> _UploadLocation:
        """Return the location with credentials that do not expire soon."""
        place, now = self._location, self._clock.monotonic()
        if now < place.renew_at:
            return place
        try:
            return self._renew_credentials(place)
        except StageUnavailable as error:
            if now >= place.expires_at:
                raise
            _log.info(
                "%s The old ones are valid for another %.0f s.", error, place.expires_at - now
            )
            return place

    def _renew_credentials(self, expiring: _UploadLocation) -> _UploadLocation:
        """Renew the credentials, unless another thread has just renewed them."""
        with self._renewal_lock:
            if self._location is not expiring:
                return self._location
            try:
                grant = self._renew_grant()
            except SnowmeltError as error:
                reason = f"its credentials cannot be renewed: {error}".rstrip(".")
                raise StageUnavailable(reason=reason) from error
            self._location = self._parse_grant(grant)
            return self._location

    def _parse_grant(self, grant: UploadGrant) -> _UploadLocation:
        location = grant.location
        parts = urlsplit(location.endPoint or "")
        try:
            port = parts.port
        except ValueError:
            port = None
        bucket, _, prefix = location.location.partition("/")
        creds, now = location.creds, self._clock.monotonic()
        if location.locationType != "S3" or not parts.hostname or not bucket:
            raise StageUnavailable(
                reason=f"the service names {location!r} at {location.endPoint!r}, which is not a bucket"
            )
        lifetime_s = grant.expires_in_s if grant.expires_in_s is not None else float("inf")
        return _UploadLocation(
            uses_tls=parts.scheme != "http",
            host=parts.hostname,
            port=port,
            authority=parts.netloc,
            bucket=bucket,
            prefix=prefix.strip("/"),
            credentials=AwsCredentials(
                creds.get("AWS_KEY_ID", ""),
                creds.get("AWS_SECRET_KEY", ""),
                creds.get("AWS_TOKEN", ""),
            ),
            region=location.region or "us-east-1",
            renew_at=now + max(lifetime_s * (1 - _RENEWAL_REMAINING_FRACTION), 1.0),
            expires_at=now + lifetime_s,
        )

    def _put_object(
        self, location: _UploadLocation, path: str, data: BytesLike, payload_sha256: str
    ) -> _S3Response:
        address = encode_url_path(location.bucket, *filter(None, (location.prefix, path)))
        now = self._clock.now() + self._clock_skew
        request = SignableRequest("PUT", address, (), {"host": location.authority}, payload_sha256)
        headers = sign_headers(
            request, location.credentials, region=location.region, service="s3", signed_at=now
        )
        headers["content-length"] = str(memoryview(data).nbytes)
        headers["content-type"] = "application/octet-stream"
        kept = self._take_idle_connection(location)
        if kept is not None:
            try:
                return self._put_on_connection(kept, location, address, data, headers)
            except (http.client.RemoteDisconnected, ConnectionError):
                # The store closed the idle connection. Retry on a new one.
                pass
            except _CONNECTION_ERRORS as error:
                raise _make_unavailable_error(location, error) from error
        try:
            return self._put_on_connection(
                self._open_connection(location), location, address, data, headers
            )
        except _CONNECTION_ERRORS as error:
            raise _make_unavailable_error(location, error) from error

    def _put_on_connection(
        self,
        connection: http.client.HTTPConnection,
        location: _UploadLocation,
        url_path: str,
        data: BytesLike,
        headers: dict[str, str],
    ) -> _S3Response:
        try:
            connection.request("PUT", url_path, data, headers)
            response = connection.getresponse()
            body = response.read(_MAX_RESPONSE_BYTES)
        except BaseException:
            connection.close()
            raise
        if not response.isclosed() or not self._return_connection(location, connection):
            connection.close()
        return _S3Response(
            response.status,
            _find_xml_element(body, b"Code"),
            _find_xml_element(body, b"Message"),
            _parse_http_date(response.getheader("date")),
        )

    def _return_connection(
        self, location: _UploadLocation, connection: http.client.HTTPConnection
    ) -> bool:
        with self._lock:
            if self._is_closed or connection.sock is None:
                return False
            self._idle_connections.append((location.authority, connection))
            return True

    def _take_idle_connection(self, location: _UploadLocation) -> http.client.HTTPConnection | None:
        with self._lock:
            idle, self._idle_connections = self._idle_connections, []
            fitting = [each for each in idle if each[0] == location.authority]
            self._idle_connections = fitting[:-1]
        for authority, connection in idle:
            if authority != location.authority:
                connection.close()
        return fitting[-1][1] if fitting else None

    def _open_connection(self, location: _UploadLocation) -> http.client.HTTPConnection:
        if not location.uses_tls:
            return http.client.HTTPConnection(location.host, location.port, timeout=self._timeout_s)
        self._ssl_context = self._ssl_context or self._ssl_context_factory()
        return http.client.HTTPSConnection(
            location.host, location.port, timeout=self._timeout_s, context=self._ssl_context
        )


def _make_unavailable_error(location: _UploadLocation, error: BaseException) -> StageUnavailable:
    return StageUnavailable(reason=f"{location.authority}: {str(error) or type(error).__name__}")


def _find_xml_element(body: bytes, tag: bytes) -> str:
    """Return the text of an element of an S3 error document, or an empty string."""
    found = re.search(b"<" + tag + b">([^<]*)<", body)
    return found[1].decode("utf-8", "replace") if found else ""


def _parse_http_date(text: str | None) -> dt.datetime | None:
    try:
        return email.utils.parsedate_to_datetime(text or "")
    except ValueError:
        return None


class BlobStage(Protocol):
    """Interface of stages: the operations that a client needs."""

    def put(self, path: str, data: BytesLike) -> None:
        """Write a whole object. After a failure, no part of it is visible."""

    def close(self) -> None:
        """Close connections. Idempotent."""


class _LocalFolderStage:
    """A folder of a store. A put creates it if it is missing."""

    def __init__(self, store: LocalStore, folder_name: str) -> None:
        self._store = store
        self._folder_name = folder_name

    def put(self, path: str, data: BytesLike) -> None:
        """Write a whole object into the folder. After a failure, no part of it is visible."""
        self._store.put(f"{self._folder_name}/{path}", data)

    def close(self) -> None:
        """Do nothing, because there are no connections."""


def open_stage(
    grant: UploadGrant,
    renew_grant: Callable[[], UploadGrant],
    settings: ClientSettings,
    *,
    timeout_s: float,
) -> BlobStage:
    """Open the stage of a grant.

    Args:
        grant: The grant from the service.
        renew_grant: Function that requests a grant with new credentials from the service.
        settings: Settings of the client, which have the clock and the certificates.
        timeout_s: Timeout in seconds of each connection step to a bucket.

    Raises:
        StageUnavailable: If the folder does not exist on this machine, or the bucket has no
            address.
        Unsupported: If this version cannot write stages of this type.
    """
    location = grant.location
    if location.locationType == "S3":
        return S3BlobStage(
            grant,
            renew_grant,
            settings.clock,
            timeout_s=timeout_s,
            ssl_context_factory=lambda: make_ssl_context(settings.ca_file),
        )
    if location.locationType != "LOCAL_FS":
        raise Unsupported(
            what=f"a stage of type {location.locationType}",
            instead="use a stage in a folder, or one behind the S3 endpoint of the service",
        )
    folder = Path(location.location)
    # Do not create the folder: it would be on a disk that the service does not read.
    if not folder.parent.is_dir():
        reason = (
            f"{folder.parent} is not a folder on this machine; client and service must share it"
        )
        raise StageUnavailable(reason=reason)
    try:
        # Use the parent folder, because the service deletes the folder with the last blob of an
        # idle client.
        return _LocalFolderStage(LocalStore(folder.parent), folder.name)
    except OSError as error:
        raise StageUnavailable(reason=f"{folder}: {error.strerror}") from error
