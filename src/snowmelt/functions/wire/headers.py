"""Headers of a call, with their base64-encoded duplicates."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping

from snowmelt.functions.errors import DeclarationInvalid
from snowmelt.functions.signature import FunctionSignature, HeaderStyle

HEADER_PREFIX = "sf-external-function-"
FORMAT = f"{HEADER_PREFIX}format"
FORMAT_VERSION = f"{HEADER_PREFIX}format-version"
QUERY_ID = f"{HEADER_PREFIX}current-query-id"
BATCH_ID = f"{HEADER_PREFIX}query-batch-id"
FUNCTION_NAME = f"{HEADER_PREFIX}name"
SIGNATURE = f"{HEADER_PREFIX}signature"
RETURN_TYPE = f"{HEADER_PREFIX}return-type"
CUSTOM_PREFIX = "sf-custom-"
CONTEXT_PREFIX = "sf-context-"
BASE64_SUFFIX = "-base64"
# A caller that sends "1" accepts row errors in responses. Snowmelt's caller sends the first header.
# Engines that support only the HEADERS clause send the second one, which the author of the function
# declares.
ROW_ERRORS = "x-snowmelt-row-errors"
CUSTOM_ROW_ERRORS = f"{CUSTOM_PREFIX}row-errors"

MAX_CUSTOM_HEADERS_BYTES = 8 * 1024

_ILLEGAL_CHARACTERS_PATTERN = re.compile(r"[^\x20-\x7e]+")
_CUSTOM_NAME_PATTERN = re.compile(r"""[^\x00-\x20\x7f-\U0010ffff(),/:;<>="?@\[\]\\{}_]+\Z""")
_DOUBLE_BLANK_PATTERN = re.compile(r"\s\s")


def replace_illegal_characters(text: str) -> str:
    """Replace each run of characters that are illegal in a header with one blank."""
    return _ILLEGAL_CHARACTERS_PATTERN.sub(" ", text)


def encode_base64(text: str) -> str:
    """Encode a text as UTF-8 in base64 (standard alphabet, padded)."""
    return base64.b64encode(text.encode("utf-8", "surrogatepass")).decode("ascii")


def decode_header(headers: Mapping[str, str], name: str) -> str | None:
    """Return a header's value from its exact base64 duplicate, or else from the plain header."""
    encoded = headers.get(name + BASE64_SUFFIX)
    if encoded is not None:
        try:
            return base64.b64decode(encoded, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            pass  # The duplicate is invalid, for example handwritten. Use the plain value.
    return headers.get(name)


def make_request_headers(
    signature: FunctionSignature,
    query_id: str,
    batch_id: str,
    *,
    style: HeaderStyle | None = None,
    custom: Mapping[str, str] | None = None,
    context: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Make the headers of one call. A POST and its polling GETs have the same headers.

    Args:
        signature: Signature of the function.
        query_id: ID of the query.
        batch_id: ID of the batch.
        style: Format of the signature. None: the published format.
        custom: Values by name without prefix, from the HEADERS clause. `validate_custom_headers`
            must have accepted them.
        context: Values by function, such as `CURRENT_USER`, from the CONTEXT_HEADERS clause.
    """
    style = style or HeaderStyle()
    headers = {
        FORMAT: "json",
        FORMAT_VERSION: "1.0",
        QUERY_ID: query_id,
        BATCH_ID: batch_id,
    }
    for name, text in (
        (FUNCTION_NAME, signature.format_header_name(style)),
        (SIGNATURE, signature.format_arguments()),
        (RETURN_TYPE, signature.format_return_type(style)),
    ):
        headers[name] = replace_illegal_characters(text)
        headers[name + BASE64_SUFFIX] = encode_base64(text)
    for key, text in (custom or {}).items():
        headers[CUSTOM_PREFIX + key] = text
    for function, text in (context or {}).items():
        name = CONTEXT_PREFIX + function.lower().replace("_", "-")
        headers[name] = replace_illegal_characters(text)
        headers[name + BASE64_SUFFIX] = encode_base64(text)
    return headers


def validate_custom_headers(headers: Mapping[str, str]) -> None:
    """Verify the headers of a HEADERS clause.

    Raises:
        DeclarationInvalid: If a name or a value is invalid, or their total size exceeds 8 KiB.
    """
    for name, value in headers.items():
        if not _CUSTOM_NAME_PATTERN.match(name):
            raise DeclarationInvalid(
                reason=f"header name {name!r} may contain only visible ASCII characters, without "
                'blanks, underscores and ( ) , / : ; < > = " ? @ [ ] \\ { }'
            )
        if _DOUBLE_BLANK_PATTERN.search(value) or _ILLEGAL_CHARACTERS_PATTERN.search(value):
            raise DeclarationInvalid(
                reason=f"the value of header {name!r} may contain only visible ASCII "
                "characters and single blanks"
            )
    size = sum(len(name) + len(value) for name, value in headers.items())
    if size > MAX_CUSTOM_HEADERS_BYTES:
        raise DeclarationInvalid(
            reason=f"the headers' names and values have {size} bytes, more than {MAX_CUSTOM_HEADERS_BYTES}"
        )
