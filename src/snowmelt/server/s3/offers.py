"""Headers that ask for what is not offered: refused, for in silence they would be a broken promise.

A caller who asks for encryption, an ACL, tags or a lock, and hears nothing, believes that it was done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.buckets.refusals import S3Refusal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from snowmelt.server.s3.calls import AuthorisedRequest

_ENCRYPTION = "x-amz-server-side-encryption"
_OWN_KEYS = (f"{_ENCRYPTION}-customer-", "x-amz-copy-source-server-side-encryption-customer-")
_ASKED = (
    _ENCRYPTION,
    "x-amz-acl",
    "x-amz-bucket-object-lock-enabled",
    "x-amz-grant-",
    "x-amz-object-lock-",
    "x-amz-storage-class",
    "x-amz-website-redirect-location",
    "x-amz-write-offset-bytes",
)
# Values that ask for nothing special.
_HARMLESS = {
    "x-amz-acl": {"private", "bucket-owner-full-control", "bucket-owner-read"},
    "x-amz-bucket-object-lock-enabled": {"false"},
    "x-amz-object-lock-legal-hold": {"off"},
    f"{_ENCRYPTION}-bucket-key-enabled": {"false"},
    "x-amz-storage-class": {"standard"},
}


def check_offers(call: AuthorisedRequest, *, stores: bool) -> None:
    """Let pass a request that asks for nothing that is not offered.

    Raises:
        S3Refusal: One that `stores` asks for something; any other brings its caller's own key, which
            S3 answers so for an object that is not encrypted with one.
    """
    for name, value in _asked(call):
        own_key = name.startswith(_OWN_KEYS)
        wanted = name.startswith(_ASKED) or name == "x-amz-tagging"
        if stores and wanted and value.strip().lower() not in _HARMLESS.get(name, ()):
            # A key must not be told to whoever reads the answer.
            shown = "" if own_key else f": {value[:60]}"
            raise S3Refusal("NotImplemented", f"{name}{shown} is not offered here.")
        if own_key:
            raise S3Refusal(
                "InvalidRequest",
                "The encryption parameters are not applicable to this object: none is encrypted "
                "with a key of its caller (SSE-C) here.",
            )


def _asked(call: AuthorisedRequest) -> Iterator[tuple[str, str]]:
    """Yield headers, and those that presigning has moved into the address."""
    yield from call.headers.items()
    for name, value in call.query.items():
        yield name.lower(), value
