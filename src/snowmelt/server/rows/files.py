"""Files of rows: where clients put those that are too large for a request, and how they are read.

The stage takes them through the service's own S3 endpoint, below a prefix of the client's own.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import logging
import posixpath
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from snowmelt.catalog import stage_credentials, stages
from snowmelt.clock import milliseconds
from snowmelt.errors import (
    BodyTooLarge,
    ObjectMissing,
    PathRefused,
    RequestMalformed,
    SnowmeltError,
)
from snowmelt.ingest.handing import STAGE_BUCKET
from snowmelt.ingest.rows.bodies import unpacked
from snowmelt.ingest.rows.places import is_row_file
from snowmelt.wire.rows import PipeEncryption, PipeInfo, StageLocation

if TYPE_CHECKING:
    from snowmelt.catalog.database import Database
    from snowmelt.catalog.keys import KeyRing
    from snowmelt.clock import Clock
    from snowmelt.ingest.rows.places import PipePath, Sender
    from snowmelt.ingest.rows.targets import Targets
    from snowmelt.storage.store import Store
    from snowmelt.wire.rows import Fragment

_log = logging.getLogger("snowmelt.server")
_IV_BYTES = 16
# The official client takes only names that AWS has.
_REGION = "us-east-1"


@dataclass(frozen=True, slots=True)
class RowFiles:
    """Hands out places for files, and reads what was put there.

    `endpoint` is the S3 endpoint as clients reach it, host and port; without a host, that by which
    the client reached the service.
    """

    database: Database
    keyring: KeyRing
    targets: Targets
    stage: Store
    clock: Clock
    endpoint: str
    lifetime_s: float
    max_file_bytes: int
    flush_ms: int

    def pipe_info(self, path: PipePath, sender: Sender, host: str) -> PipeInfo:
        """Return what a client asks first: places for files, never given before, and their key.

        Raises:
            PipeNotFound: There is no such pipe, or this role may not insert by it.
        """
        target = self.targets.find(path, sender, again=True)
        overrides: dict[str, str | int] = {"binary_input_format": "HEX"}
        if self.flush_ms:
            overrides["max_append_request_buffer_duration_ms"] = self.flush_ms
        return PipeInfo(
            rowset_stage_location=self._place(sender.user, host),
            durable_stage_location=self._place(sender.user, host),
            pipe_encryption_info=PipeEncryption(
                base64.b64encode(target.data_key.key).decode(), str(target.data_key.key_id)
            ),
            parameter_overrides=overrides,
        )

    def fetch(self, fragment: Fragment, path: PipePath, sender: Sender) -> bytes:
        """Return the rows of a file, newline-delimited JSON.

        Raises:
            RequestMalformed: It is no file of this user's, or is not there.
            BodyUnreadable: It does not decrypt to compressed rows.
            BodyTooLarge: It is larger than files may be.
        """
        where = _stage_path(fragment)
        with self.database.reading() as connection:
            owner = stages.prefix_owner(connection, where.partition("/")[0])
        if owner != sender.user:
            raise RequestMalformed(
                reason=f"{fragment.file_path[:200]} is no place that you were given"
            )
        if fragment.file_length_bytes > self.max_file_bytes:
            raise BodyTooLarge(limit=self.max_file_bytes)
        try:
            iv = base64.b64decode(fragment.iv_base64, validate=True)
        except binascii.Error:
            iv = b""
        if len(iv) != _IV_BYTES:
            raise RequestMalformed(reason=f"iv_base64 must be {_IV_BYTES} bytes in base64")
        try:
            found = self.stage.head(where)
            if found is not None and found.size > self.max_file_bytes:
                raise BodyTooLarge(limit=self.max_file_bytes)
            sealed = self.stage.get(where)
        except (ObjectMissing, PathRefused):
            raise RequestMalformed(reason=f"{fragment.file_path[:200]} is not there") from None
        key = self.targets.find(path, sender).data_key
        cipher = Cipher(algorithms.AES(key.key), modes.CTR(iv)).decryptor()
        # Many times the size of what one request may send: a file is a client's whole buffer.
        return unpacked(cipher.update(sealed), "zstd", self.max_file_bytes * 8)

    def forget(self, fragment: Fragment) -> None:
        """Delete a file whose rows are committed."""
        try:
            self.stage.delete(_stage_path(fragment))
        except (SnowmeltError, OSError) as error:
            _log.warning("file %s of committed rows stays: %s", fragment.file_path, error)

    def _place(self, user: str, host: str) -> StageLocation:
        now = self.clock.now()
        with self.database.writing() as connection:
            prefix = stages.issue_prefix(connection, user, now)
        expires_at = now + dt.timedelta(seconds=self.lifetime_s)
        credentials = stage_credentials.issue(
            self.keyring, user, prefix, any_prefix=False, expires_at=expires_at
        )
        return StageLocation(
            expiry_time_ms=milliseconds(expires_at),
            location=f"{STAGE_BUCKET}/{prefix}/",
            region=_REGION,
            creds={
                "AWS_KEY_ID": credentials.access_key_id,
                "AWS_SECRET_KEY": credentials.secret,
                "AWS_TOKEN": credentials.token,
            },
            storage_endpoint=self.endpoint if self.endpoint[0] != ":" else host + self.endpoint,
        )


def _stage_path(fragment: Fragment) -> str:
    bucket, _, path = fragment.file_path.partition("/")
    prefix, _, name = path.partition("/")
    if bucket != STAGE_BUCKET or not prefix or not is_row_file(name):
        raise RequestMalformed(reason=f"{fragment.file_path[:200]!r} is no file of rows")
    return posixpath.join(prefix, name)
