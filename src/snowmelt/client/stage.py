"""Where this client's blobs go."""

from __future__ import annotations

import datetime as dt
import email.utils
import hashlib
import hmac
import http.client
import logging
import re
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol
from urllib.parse import quote, urlsplit

from snowmelt.client.transport import trusting
from snowmelt.errors import SnowmeltError, StageUnavailable, Unsupported
from snowmelt.storage.local_store import LocalStore

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Mapping

    from snowmelt.client.settings import ClientSettings
    from snowmelt.clock import Clock
    from snowmelt.storage.store import BytesLike
    from snowmelt.wire.streaming import StageLocation

# --- Signature version 4 of a request to S3; no input or output.
#
# Source: AWS, "Signature Version 4 signing process", with S3's own rule: paths are encoded once.

_ALGORITHM = "AWS4-HMAC-SHA256"


@dataclass(frozen=True, slots=True)
class Credentials:
    """What requests are signed with; secret and token are not printed. `token` may be empty."""

    access_key_id: str
    secret: str = field(repr=False)
    token: str = field(repr=False)
    region: str


def encoded_path(*parts: str) -> str:
    """Return a bucket and a key as the path of an address."""
    return quote("/" + "/".join(parts), safe="/-_.~")


def signed(
    method: str,
    path: str,
    headers: Mapping[str, str],
    payload_sha256: str,
    credentials: Credentials,
    now: dt.datetime,
) -> dict[str, str]:
    """Return the headers of a request with all that its signature adds.

    Args:
        method: The request's method.
        path: From `encoded_path`; the address has no query.
        headers: With `host`; names in lower case.
        payload_sha256: Of the body, hex.
        credentials: What to sign with.
        now: Aware, in UTC.
    """
    stamp = now.strftime("%Y%m%dT%H%M%SZ")
    all_headers = {**headers, "x-amz-date": stamp, "x-amz-content-sha256": payload_sha256}
    if credentials.token:
        all_headers["x-amz-security-token"] = credentials.token
    names = sorted(all_headers)
    signed_names = ";".join(names)
    canonical = "\n".join(
        (
            method,
            path,
            "",
            *(f"{name}:{all_headers[name].strip()}" for name in names),
            "",
            signed_names,
            payload_sha256,
        )
    )
    scope = f"{stamp[:8]}/{credentials.region}/s3/aws4_request"
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    key = f"AWS4{credentials.secret}".encode()
    for text in (*scope.split("/"), "\n".join((_ALGORITHM, stamp, scope, digest))):
        key = hmac.digest(key, text.encode(), "sha256")
    all_headers["authorization"] = (
        f"{_ALGORITHM} Credential={credentials.access_key_id}/{scope},"
        f"SignedHeaders={signed_names},Signature={key.hex()}"
    )
    return all_headers


# --- A stage in a bucket: signed uploads over kept-alive connections, credentials that are renewed.
#
# An upload that fails may be sent again as it is: the same bytes under the same name.

_log = logging.getLogger(__name__)

_BROKEN = (OSError, http.client.HTTPException)
# Answers by which a store says that it is not the blob that is wrong, but what it is signed with.
_STALE_CODES = frozenset(
    {"ExpiredToken", "InvalidToken", "InvalidAccessKeyId", "TokenRefreshRequired"}
)
# Renewed when less than this part of their time is left, and not more often than every second.
_LEFT_AT_RENEWAL = 0.2
_LONGEST_ANSWER = 64 * 1024
_LONGEST_REASON = 300


class Grant(NamedTuple):
    """What the service hands out: a place, and for how many seconds it is good (None: for ever)."""

    location: StageLocation
    expires_in_s: float | None


class _Place(NamedTuple):
    """A grant that has been taken apart."""

    secure: bool
    host: str
    port: int | None
    authority: str
    bucket: str
    prefix: str
    credentials: Credentials
    renew_at: float
    gone_at: float


class _Answer(NamedTuple):
    status: int
    code: str
    message: str
    date: dt.datetime | None


class BucketStage:
    """One client's part of a bucket; thread-safe."""

    def __init__(
        self,
        grant: Grant,
        renew: Callable[[], Grant],
        clock: Clock,
        *,
        timeout_s: float,
        trusted: Callable[[], ssl.SSLContext],
    ) -> None:
        """Prepare to upload.

        Args:
            grant: A location of type S3.
            renew: Asks the service for another grant of the same place.
            clock: Dates signatures, and tells when credentials end.
            timeout_s: For each step of a connection, in seconds.
            trusted: Makes what certificates are checked against.

        Raises:
            StageUnavailable: The location cannot be understood.
        """
        self._renew = renew
        self._clock = clock
        self._timeout_s = timeout_s
        self._trusted = trusted
        self._context: ssl.SSLContext | None = None
        self._lock = threading.Lock()
        # Apart from the other, which nobody should have to wait for: held while the service is asked.
        self._renewing = threading.Lock()
        self._idle: list[tuple[str, http.client.HTTPConnection]] = []
        self._closed = False
        # What the store's clock is ahead of ours.
        self._ahead = dt.timedelta(0)
        self._place = self._taken_apart(grant)

    def put(self, path: str, data: BytesLike) -> None:
        """Write a whole object; nothing is visible when it fails.

        Raises:
            StageUnavailable: The store does not answer, refuses, or the credentials cannot be
                renewed; trying again later may work.
        """
        place = self._current()
        digest = hashlib.sha256(data).hexdigest()
        answer = self._sent(place, path, data, digest)
        if self._may_work_now(answer, place):
            place = self._place
            answer = self._sent(place, path, data, digest)
        if answer.status != 200:
            said = f"{answer.code} {answer.message}".strip()[:_LONGEST_REASON].rstrip(".")
            where = f"{place.authority}/{place.bucket}"
            raise StageUnavailable(reason=f"{where} answers HTTP {answer.status}: {said}")

    def close(self) -> None:
        """Close idle connections, and keep none from now on."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for _, connection in idle:
            connection.close()

    def _may_work_now(self, answer: _Answer, place: _Place) -> bool:
        """Mend what an answer complains about; tell whether the request should be sent again."""
        if answer.code == "RequestTimeTooSkewed" and answer.date is not None:
            self._ahead = answer.date - self._clock.now()
            return True
        if answer.code in _STALE_CODES:
            self._renewed(place)
            return True
        return False

    def _current(self) -> _Place:
        """Return the place with credentials that are good for a while."""
        place, now = self._place, self._clock.monotonic()
        if now < place.renew_at:
            return place
        try:
            return self._renewed(place)
        except StageUnavailable as error:
            if now >= place.gone_at:
                raise
            _log.info("%s The old ones are good for %.0f s more.", error, place.gone_at - now)
            return place

    def _renewed(self, old: _Place) -> _Place:
        """Renew the credentials unless another thread has."""
        with self._renewing:
            if self._place is not old:
                return self._place
            try:
                grant = self._renew()
            except SnowmeltError as error:
                reason = f"its credentials cannot be renewed: {error}".rstrip(".")
                raise StageUnavailable(reason=reason) from error
            self._place = self._taken_apart(grant)
            return self._place

    def _taken_apart(self, grant: Grant) -> _Place:
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
                reason=f"the service names {location!r} at {location.endPoint!r}, which is no bucket"
            )
        lifetime_s = grant.expires_in_s if grant.expires_in_s is not None else float("inf")
        return _Place(
            secure=parts.scheme != "http",
            host=parts.hostname,
            port=port,
            authority=parts.netloc,
            bucket=bucket,
            prefix=prefix.strip("/"),
            credentials=Credentials(
                creds.get("AWS_KEY_ID", ""),
                creds.get("AWS_SECRET_KEY", ""),
                creds.get("AWS_TOKEN", ""),
                location.region or "us-east-1",
            ),
            renew_at=now + max(lifetime_s * (1 - _LEFT_AT_RENEWAL), 1.0),
            gone_at=now + lifetime_s,
        )

    def _sent(self, place: _Place, path: str, data: BytesLike, digest: str) -> _Answer:
        address = encoded_path(place.bucket, *filter(None, (place.prefix, path)))
        now = self._clock.now() + self._ahead
        headers = signed("PUT", address, {"host": place.authority}, digest, place.credentials, now)
        headers["content-length"] = str(memoryview(data).nbytes)
        headers["content-type"] = "application/octet-stream"
        kept = self._kept(place)
        if kept is not None:
            try:
                return self._over(kept, place, address, data, headers)
            except (http.client.RemoteDisconnected, ConnectionError):
                # Stores close connections that idle; the new one tells what is the matter.
                pass
            except _BROKEN as error:
                raise _away(place, error) from error
        try:
            return self._over(self._connected(place), place, address, data, headers)
        except _BROKEN as error:
            raise _away(place, error) from error

    def _over(
        self,
        connection: http.client.HTTPConnection,
        place: _Place,
        address: str,
        data: BytesLike,
        headers: dict[str, str],
    ) -> _Answer:
        try:
            connection.request("PUT", address, data, headers)
            response = connection.getresponse()
            body = response.read(_LONGEST_ANSWER)
        except BaseException:
            connection.close()
            raise
        if not response.isclosed() or not self._keep(place, connection):
            connection.close()
        return _Answer(
            response.status,
            _element(body, b"Code"),
            _element(body, b"Message"),
            _date(response.getheader("date")),
        )

    def _keep(self, place: _Place, connection: http.client.HTTPConnection) -> bool:
        with self._lock:
            if self._closed or connection.sock is None:
                return False
            self._idle.append((place.authority, connection))
            return True

    def _kept(self, place: _Place) -> http.client.HTTPConnection | None:
        with self._lock:
            idle, self._idle = self._idle, []
            fitting = [each for each in idle if each[0] == place.authority]
            self._idle = fitting[:-1]
        for authority, connection in idle:
            if authority != place.authority:
                connection.close()
        return fitting[-1][1] if fitting else None

    def _connected(self, place: _Place) -> http.client.HTTPConnection:
        if not place.secure:
            return http.client.HTTPConnection(place.host, place.port, timeout=self._timeout_s)
        self._context = self._context or self._trusted()
        return http.client.HTTPSConnection(
            place.host, place.port, timeout=self._timeout_s, context=self._context
        )


def _away(place: _Place, error: BaseException) -> StageUnavailable:
    return StageUnavailable(reason=f"{place.authority}: {str(error) or type(error).__name__}")


def _element(body: bytes, name: bytes) -> str:
    """Return the text of an element of S3's short error documents, empty where it has none."""
    found = re.search(b"<" + name + b">([^<]*)<", body)
    return found[1].decode("utf-8", "replace") if found else ""


def _date(text: str | None) -> dt.datetime | None:
    try:
        return email.utils.parsedate_to_datetime(text or "")
    except ValueError:
        return None


class Stage(Protocol):
    """The part of a store that a client needs."""

    def put(self, path: str, data: BytesLike) -> None:
        """Write a whole object; nothing is visible when it fails."""

    def close(self) -> None:
        """Let go of connections; again is harmless."""


class _Folder:
    """One folder of a store, made again where a put finds it missing."""

    def __init__(self, store: LocalStore, name: str) -> None:
        self._store = store
        self._name = name

    def put(self, path: str, data: BytesLike) -> None:
        """Write a whole object into the folder; nothing is visible when it fails."""
        self._store.put(f"{self._name}/{path}", data)

    def close(self) -> None:
        """Nothing is held."""


def open_stage(
    grant: Grant, renew: Callable[[], Grant], settings: ClientSettings, *, timeout_s: float
) -> Stage:
    """Return the stage that the service told this client to use.

    Args:
        grant: What the service handed out.
        renew: Asks the service for the stage again, with new credentials.
        settings: The client's; clock and certificates matter here.
        timeout_s: For each step of a connection to a bucket, in seconds.

    Raises:
        StageUnavailable: A folder that is not on this machine, or a bucket without an address.
        Unsupported: A kind of stage that this version cannot write.
    """
    location = grant.location
    if location.locationType == "S3":
        return BucketStage(
            grant,
            renew,
            settings.clock,
            timeout_s=timeout_s,
            trusted=lambda: trusting(settings.ca_file),
        )
    if location.locationType != "LOCAL_FS":
        raise Unsupported(
            what=f"a stage of type {location.locationType}",
            instead="use one in a folder, or behind the service's S3 endpoint",
        )
    folder = Path(location.location)
    # Making the folder would write rows to a disk that the service never sees.
    if not folder.parent.is_dir():
        reason = f"{folder.parent} is not a folder on this machine; client and service share it"
        raise StageUnavailable(reason=reason)
    try:
        # Not the folder itself: the service removes it with the last blob of a client that rests.
        return _Folder(LocalStore(folder.parent), folder.name)
    except OSError as error:
        raise StageUnavailable(reason=f"{folder}: {error.strerror}") from error
