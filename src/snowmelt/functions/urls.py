"""Service URLs: parses strictly, normalizes, and checks URLs against an integration's prefixes.

A check can be bypassed if two programs parse a URL differently. A URL is therefore parsed strictly
and rebuilt from the parsed parts. Only the rebuilt form is compared and called. Error messages
never contain a query, because queries may contain function keys.
"""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import unquote_to_bytes

from snowmelt.functions.definition import ApiIntegration
from snowmelt.functions.errors import UrlRefused

MAX_URL_CHARS = 8_192
_DEFAULT_PORTS = {"https": 443, "http": 80}
_MAX_PORT = 65_535

_URL_PATTERN = re.compile(
    r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?#]*)(?P<path>[^?#]*)(?P<rest>.*)\Z",
    re.DOTALL,
)
_AUTHORITY_PATTERN = re.compile(
    r"(?P<host>\[[0-9A-Fa-f:.]+\]|[^\[\]:@%]+)(?::(?P<port>[0-9]{0,5}))?\Z"
)
_HOST_LABEL_PATTERN = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\Z")
_NUMERIC_LABEL_PATTERN = re.compile(r"(?:[0-9]+|0x[0-9a-f]*)\Z")
# RFC 3986's pchar and `/`. Queries also allow `?`.
_PATH_PATTERN = re.compile(r"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/]|%[0-9A-Fa-f]{2})*\Z")
_QUERY_PATTERN = re.compile(r"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/?]|%[0-9A-Fa-f]{2})*\Z")
_PERCENT_ESCAPE_PATTERN = re.compile(r"%([0-9A-Fa-f]{2})")
_UNRESERVED_BYTES = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_SEGMENT_SEPARATOR_PATTERN = re.compile(rb"[/\\]")
_CONTROL_CHARACTER_PATTERN = re.compile(rb"[\x00-\x1f\x7f]")
_INVALID_UTF8_PATTERN = re.compile(rb"[\xc0\xc1\xf5-\xff]")
_DOT_SEGMENTS = frozenset({b".", b".."})


@dataclass(frozen=True, slots=True)
class ServiceUrl:
    """A normalized URL: scheme and host in lower case, an explicit port, no `..` in the path.

    `path` begins with `/`. Only the characters of `path` and `query` that need it are percent-encoded.
    `query` is None if the URL has no `?`.
    """

    scheme: str
    host: str
    port: int
    path: str
    query: str | None = None

    @property
    def authority(self) -> str:
        """Value of the Host header: the host, and the port unless it is the scheme's default."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def request_target(self) -> str:
        """Path and query, for the request line."""
        return self.path if self.query is None else f"{self.path}?{self.query}"

    @property
    def url_without_query(self) -> str:
        """The URL without its query, for display."""
        return f"{self.scheme}://{self.authority}{self.path}"

    def __str__(self) -> str:
        return f"{self.scheme}://{self.authority}{self.request_target}"


@lru_cache(maxsize=1_024)
def parse_url(text: str) -> ServiceUrl:
    """Parse and normalize a URL.

    Raises:
        UrlRefused: If the scheme is not http or https, or the URL is invalid or ambiguous.
    """
    if len(text) > MAX_URL_CHARS:
        raise UrlRefused(reason=f"has {len(text):,} characters, expected at most {MAX_URL_CHARS:,}")
    found = _URL_PATTERN.match(text)
    if found is None:
        raise UrlRefused(reason="does not begin with https:// and a host")
    scheme = found["scheme"].lower()
    if scheme not in _DEFAULT_PORTS:
        raise UrlRefused(reason=f"has scheme {scheme}; expected https or http")
    host, port = _parse_authority(found["authority"])
    rest = found["rest"]
    if "#" in rest:
        raise UrlRefused(reason="has a fragment (#), which is never sent: remove it")
    query = _normalize_escapes(rest[1:], _QUERY_PATTERN, "query") if rest else None
    return ServiceUrl(
        scheme,
        host,
        _DEFAULT_PORTS[scheme] if port is None else port,
        _normalize_path(found["path"]),
        query,
    )


def parse_url_prefix(text: str) -> ServiceUrl:
    """Parse a URL prefix. It ends between two path segments and has no query.

    Raises:
        UrlRefused: If the URL is invalid or has a query.
    """
    address = parse_url(text)
    if address.query is not None:
        raise UrlRefused(reason="has a query (?), which a prefix cannot have")
    return address


def is_within_allowed_prefix(url: ServiceUrl, prefix: ServiceUrl) -> bool:
    """Return True if a URL has the scheme, host, port and leading path segments of a prefix."""
    if (url.scheme, url.host, url.port) != (prefix.scheme, prefix.host, prefix.port):
        return False
    # Compare decoded segments, because servers treat `%3B` and `;` the same.
    mine, first = _split_path(url.path), _split_path(prefix.path)
    if not first[-1]:
        return len(mine) >= len(first) and mine[: len(first) - 1] == first[:-1]
    return mine[: len(first)] == first


def is_within_blocked_prefix(url: ServiceUrl, prefix: ServiceUrl) -> bool:
    """Return True if a blocked prefix covers a URL.

    The scheme is ignored. The port is ignored if the prefix has its scheme's default port. Paths are
    compared as the most lenient server reads them: fully decoded and without regard to case. Parameters
    after `;`, empty segments, and dots or blanks at the end of a segment are ignored.
    """
    any_port = prefix.port == _DEFAULT_PORTS[prefix.scheme]
    if _normalize_mapped_ipv4_host(url.host) != _normalize_mapped_ipv4_host(prefix.host):
        return False
    first = _split_path_leniently(prefix.path)
    same = any_port or url.port == prefix.port
    return same and _split_path_leniently(url.path)[: len(first)] == first


def is_url_extension(url: ServiceUrl, base_url: ServiceUrl) -> bool:
    """Return True if a URL extends a base URL by more path segments or by more query parameters."""
    if not is_within_allowed_prefix(url, base_url):
        return False
    if base_url.query is None:
        return True
    # The base query must be followed by `&`: other text would extend its last value.
    rest = (url.query or "").removeprefix(base_url.query)
    return url.path == base_url.path and (not rest or rest.startswith("&"))


def resolve_allowed_url(url: str, integration: ApiIntegration) -> ServiceUrl:
    """Parse a URL and verify that the integration allows calls to it.

    Raises:
        UrlRefused: If the URL is invalid, under no allowed prefix, or under a blocked prefix.
    """
    address = parse_url(url)
    if not any(
        is_within_allowed_prefix(address, parse_url_prefix(each))
        for each in integration.allowed_prefixes
    ):
        raise UrlRefused(
            reason=f"({address.url_without_query}) is under none of the API_ALLOWED_PREFIXES of "
            f"{integration.name}: {', '.join(integration.allowed_prefixes)}"
        )
    if any(
        is_within_blocked_prefix(address, parse_url_prefix(each))
        for each in integration.blocked_prefixes
    ):
        raise UrlRefused(
            reason=f"({address.url_without_query}) is under one of the API_BLOCKED_PREFIXES of "
            f"{integration.name}"
        )
    return address


def _parse_authority(text: str) -> tuple[str, int | None]:
    if "@" in text:
        raise UrlRefused(
            reason="has a user or password before its host. Specify these in the API integration"
        )
    found = _AUTHORITY_PATTERN.match(text)
    if found is None:
        raise UrlRefused(reason="has an invalid host or port")
    port = int(found["port"]) if found["port"] else None
    if port is not None and not 1 <= port <= _MAX_PORT:
        raise UrlRefused(reason=f"has port {port}, expected 1 to {_MAX_PORT}")
    return _normalize_host(found["host"]), port


def _normalize_host(text: str) -> str:
    if text.startswith("["):
        try:
            return _write_ipv6(ipaddress.IPv6Address(text[1:-1]))
        except ValueError:
            raise UrlRefused(reason="has a host in [ ] that is not an IPv6 address") from None
    try:
        # Use the codec's result: its nameprep step replaces full-width letters and dots.
        host = (text if text.isascii() else text.encode("idna").decode("ascii")).lower()
    except UnicodeError:
        raise UrlRefused(reason="has a host that is not a valid domain name") from None
    labels = host.split(".")
    if len(host) > 253 or not all(_HOST_LABEL_PATTERN.match(label) for label in labels):
        raise UrlRefused(
            reason="has an invalid host; expected letters, digits, hyphens, underscores and single dots"
        )
    if _NUMERIC_LABEL_PATTERN.match(labels[-1]):
        try:
            return str(ipaddress.IPv4Address(host))
        except ValueError:
            # Require four numbers: resolvers also read 127.1, 0x7f000001 and 2130706433 as
            # 127.0.0.1.
            raise UrlRefused(reason="has an IPv4 address that is not four numbers") from None
    return host


def _normalize_path(text: str) -> str:
    path = _normalize_escapes(text, _PATH_PATTERN, "path") or "/"
    if "//" in path:
        raise UrlRefused(reason="has // in its path, which servers interpret differently")
    plain = unquote_to_bytes(path)
    if len(_SEGMENT_SEPARATOR_PATTERN.split(plain)) != path.count("/") + 1:
        raise UrlRefused(reason="has an encoded / or a \\ in its path")
    while True:
        if _INVALID_UTF8_PATTERN.search(plain):
            # Some decoders decode the invalid %C0%AF to a slash.
            raise UrlRefused(reason="has bytes in its path that are not UTF-8")
        if _CONTROL_CHARACTER_PATTERN.search(plain):
            raise UrlRefused(reason="has an encoded control character in its path")
        # Some servers remove `;` and the text after it before they resolve dot segments.
        if any(
            segment.split(b";")[0] in _DOT_SEGMENTS
            for segment in _SEGMENT_SEPARATOR_PATTERN.split(plain)
        ):
            raise UrlRefused(reason="has . or .. in its path: write the resolved path")
        # A server behind a proxy that decodes may decode a second time.
        again = unquote_to_bytes(plain)
        if again == plain:
            return path
        if len(_SEGMENT_SEPARATOR_PATTERN.split(again)) != len(
            _SEGMENT_SEPARATOR_PATTERN.split(plain)
        ):
            raise UrlRefused(reason="has a doubly encoded / or \\ in its path")
        plain = again


def _normalize_escapes(text: str, allowed: re.Pattern[str], component: str) -> str:
    """Verify the characters, decode unnecessary escapes and convert other escapes to upper case."""
    if not allowed.match(text):
        raise UrlRefused(
            reason=f"has characters in its {component} that must be percent-encoded, or a % without two "
            "hexadecimal digits"
        )
    return _PERCENT_ESCAPE_PATTERN.sub(
        lambda found: (
            chr(byte) if (byte := int(found[1], 16)) in _UNRESERVED_BYTES else found[0].upper()
        ),
        text,
    )


def _write_ipv6(address: ipaddress.IPv6Address) -> str:
    """Return the address in hexadecimal. Python 3.13 writes IPv4-mapped addresses with dots."""
    mapped = address.ipv4_mapped
    if mapped is None:
        return str(address)
    high, low = divmod(int(mapped), 1 << 16)
    return f"::ffff:{high:x}:{low:x}"


def _normalize_mapped_ipv4_host(host: str) -> str:
    try:
        mapped = ipaddress.IPv6Address(host).ipv4_mapped
    except ValueError:
        return host
    return host if mapped is None else str(mapped)


@lru_cache(maxsize=1_024)
def _split_path_leniently(path: str) -> tuple[str, ...]:
    plain = path.encode()
    while (again := unquote_to_bytes(plain)) != plain:
        plain = again
    found = []
    for each in plain.split(b"/"):
        name = each.split(b";")[0].decode(errors="surrogateescape")
        # Apply upper() before casefold(), because some letters map to an ASCII letter only in upper
        # case.
        name = unicodedata.normalize("NFKC", name).upper().casefold().rstrip(". \t")
        if name:
            found.append(name)
    return tuple(found)


@lru_cache(maxsize=1_024)
def _split_path(path: str) -> tuple[bytes, ...]:
    return tuple(unquote_to_bytes(each) for each in path.split("/"))
