"""Row files, for rows that are too large for a request: upload locations and reading.

Each upload location has a unique prefix. Clients upload through the service's S3 endpoint or, with
credentials of an IAM role, directly to the bucket of the stage.
"""

from __future__ import annotations

import base64
import binascii
import datetime as dt
import logging
import posixpath
from dataclasses import dataclass

from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from snowmelt.catalog.db.database import Database
from snowmelt.catalog.streaming import registration
from snowmelt.clock import Clock, to_epoch_ms
from snowmelt.errors import (
    BodyTooLarge,
    ObjectMissing,
    PathRefused,
    RequestMalformed,
    SnowmeltError,
)
from snowmelt.ingest.rows.binary_encoding_tracker import ClientEncodingInstructions
from snowmelt.ingest.rows.body import decompress_body
from snowmelt.ingest.rows.targets import (
    PipePath,
    RowSender,
    SdkClient,
    TargetResolver,
    is_uploaded_row_file_name,
)
from snowmelt.ingest.stage_locations import STAGE_BUCKET, StageLocator, StageRequester
from snowmelt.storage.store import Store
from snowmelt.wire.row_api import PipeEncryption, PipeInfo, RowFileFragment, RowStageLocation

_log = logging.getLogger("snowmelt.server")
_IV_BYTES = 16
_DEFAULT_LIFETIME_S = 86_400.0


@dataclass(frozen=True, slots=True)
class RowFileService:
    """Issues upload locations and reads the uploaded files.

    `bucket_prefix` is the bucket and folder of the stage for direct uploads, or empty.
    """

    database: Database
    target_resolver: TargetResolver
    stage: Store
    clock: Clock
    stage_locator: StageLocator
    bucket_prefix: str
    max_file_bytes: int
    flush_interval_ms: int
    binary_encodings: ClientEncodingInstructions

    def build_pipe_info(
        self, path: PipePath, sender: RowSender, host: str, client: SdkClient | None
    ) -> PipeInfo:
        """Return the response to a client's first request, with new upload locations and their key.

        The client repeats the request before the locations expire. If `binary_input_format` is then
        different, the client closes itself, because the SDK cannot change the format.

        Raises:
            PipeNotFound: If the pipe does not exist, or this role may not insert through it.
        """
        target = self.target_resolver.find(path, sender, refresh=True)
        # Sent to every client regardless of its columns, because bytes must have the same meaning
        # in all tables. The Python SDK then checks each value, which takes most of its time.
        overrides: dict[str, str | int] = {"binary_input_format": "HEX"}
        asks_again_s = self.binary_encodings.record_hex_instruction(target, client)
        if self.flush_interval_ms:
            overrides["max_append_request_buffer_duration_ms"] = self.flush_interval_ms
        return PipeInfo(
            rowset_stage_location=self._issue_location(sender.user, host, asks_again_s),
            durable_stage_location=self._issue_location(sender.user, host, asks_again_s),
            pipe_encryption_info=PipeEncryption(
                base64.b64encode(target.data_key.key).decode(), str(target.data_key.key_id)
            ),
            parameter_overrides=overrides,
        )

    def read_file(self, fragment: RowFileFragment, path: PipePath, sender: RowSender) -> bytes:
        """Read and decrypt a file. Return its rows as newline-delimited JSON.

        Raises:
            RequestMalformed: If the file does not exist or belongs to another user.
            BodyUnreadable: If the decrypted file is not compressed rows.
            BodyTooLarge: If the file exceeds the size limit.
        """
        where = self._parse_stage_path(fragment)
        with self.database.reading() as connection:
            owner = registration.find_prefix_owner(connection, where.partition("/")[0])
        if owner != sender.user:
            raise RequestMalformed(
                reason=f"{fragment.file_path[:200]} is not an upload location issued to this user"
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
            raise RequestMalformed(
                reason=f"{fragment.file_path[:200]} is not on the stage. Upload the file first"
            ) from None
        key = self.target_resolver.find(path, sender).data_key
        cipher = Cipher(algorithms.AES(key.key), modes.CTR(iv)).decryptor()
        # Allow eight times the maximum file size after decompression.
        return decompress_body(cipher.update(sealed), "zstd", self.max_file_bytes * 8)

    def delete_file(self, fragment: RowFileFragment) -> None:
        """Delete a file whose rows are committed."""
        try:
            self.stage.delete(self._parse_stage_path(fragment))
        except (SnowmeltError, OSError) as error:
            _log.warning("cannot delete file %s of committed rows: %s", fragment.file_path, error)

    def _issue_location(
        self, user: str, host: str, max_lifetime_s: float | None
    ) -> RowStageLocation:
        now = self.clock.now()
        with self.database.writing() as connection:
            prefix = registration.issue_client_prefix(connection, user, now)
        # Each location needs a unique prefix, because the SDK numbers its files from 0.
        given = self.stage_locator.issue_grant(
            StageRequester(user, host, renews_by_prefix=True), prefix
        )
        seconds = given.expires_in_s or _DEFAULT_LIFETIME_S
        lasts = dt.timedelta(
            seconds=seconds if max_lifetime_s is None else min(seconds, max_lifetime_s)
        )
        at = given.location
        return RowStageLocation(
            expiry_time_ms=to_epoch_ms(now + lasts),
            location=at.location,
            region=at.region or "",
            creds=at.creds or {},
            # The SDK always prepends https://.
            storage_endpoint=(at.endPoint or "").rpartition("://")[2],
        )

    def _parse_stage_path(self, fragment: RowFileFragment) -> str:
        place, _, name = fragment.file_path.rpartition("/")
        root, _, prefix = place.rpartition("/")
        if (
            root not in {STAGE_BUCKET, self.bucket_prefix}
            or not prefix
            or not is_uploaded_row_file_name(name)
        ):
            raise RequestMalformed(reason=f"{fragment.file_path[:200]!r} is not a row file")
        return posixpath.join(prefix, name)
