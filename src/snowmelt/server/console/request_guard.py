"""Checks of requests to the console, and the security headers of its responses.

A page of another origin can send requests with the cookie of a logged-in user. Requests that change
data must come from a page of this host and contain the CSRF token of the session. Browsers send the
origin of a request in `Sec-Fetch-Site`, or in `Origin` if the connection is not trustworthy.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import parse_qs, urlsplit

from snowmelt.errors import UserError

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    "content-security-policy": CONTENT_SECURITY_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_FORM_TYPE = "application/x-www-form-urlencoded"
_MAX_FORM_FIELDS = 100


class OriginNotAllowed(UserError, code="origin_refused", status=403):
    """The request comes from a page of {origin}, not from the console at {host}. Open the console, and repeat the request there."""


class InvalidFormToken(UserError, code="form_token_refused", status=403):
    """The form does not belong to this session. Reload the page, and send the form again."""


class UnsupportedFormType(UserError, code="form_type_refused", status=415):
    """Invalid content type {content_type} of a form. Expected application/x-www-form-urlencoded."""


def check_origin(headers: Mapping[str, str], *, changes: bool) -> None:
    """Reject a request from a page of another origin.

    With `changes`, a request without information about its origin is rejected too.

    Raises:
        OriginNotAllowed: If the origin is another one, or is required and missing.
    """
    host = headers.get("host", "")
    site = headers.get("sec-fetch-site", "")
    origin = headers.get("origin", "")
    is_navigation = headers.get("sec-fetch-mode") == "navigate"
    is_foreign = site in {"cross-site", "same-site"} and (changes or not is_navigation)
    if origin and (origin == "null" or urlsplit(origin).netloc.lower() != host.lower()):
        is_foreign = True
    if changes and not origin and site != "same-origin":
        is_foreign = True
    if is_foreign:
        raise OriginNotAllowed(origin=repr(origin[:200] or "another site"), host=repr(host[:200]))


def parse_form(headers: Mapping[str, str], body: bytes) -> dict[str, str]:
    """Return the fields of a form. Of repeated fields, the last one applies.

    Raises:
        UnsupportedFormType: If the body is not a form.
    """
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != _FORM_TYPE:
        raise UnsupportedFormType(content_type=repr(kind[:200]))
    fields = parse_qs(
        body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=_MAX_FORM_FIELDS
    )
    return {name: values[-1] for name, values in fields.items()}
