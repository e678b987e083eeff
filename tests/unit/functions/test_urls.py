"""What is allowed is decided on the URL that is called, however it was written."""

from __future__ import annotations

import posixpath
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.functions.definition import ApiIntegration
from snowmelt.functions.errors import UrlRefused
from snowmelt.functions.urls import (
    is_within_allowed_prefix,
    parse_url,
    parse_url_prefix,
    resolve_allowed_url,
)


def gateway(*allowed: str, blocked: tuple[str, ...] = ()) -> ApiIntegration:
    return ApiIntegration("GATEWAY", "http", allowed, blocked)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("HTTPS://API.Example.COM:443/a", "https://api.example.com/a"),
        ("https://h", "https://h/"),
        ("https://h:/x", "https://h/x"),
        ("http://h:80/", "http://h/"),
        ("http://h:0443/", "http://h:443/"),
        ("https://h/%7euser/%2fx?%7e", None),
        ("https://h/%7euser?a=%2f%7e", "https://h/~user?a=%2F~"),
        ("https://bücher.example/", "https://xn--bcher-kva.example/"),
        ("https://ＡＰＩ．example/", "https://api.example/"),
        ("https://[::FFFF:0:1]:8443/x", "https://[::ffff:0:1]:8443/x"),
        ("https://127.0.0.1:8080/x?", "https://127.0.0.1:8080/x?"),
    ],
)
def test_a_url_is_written_anew(text, normal):
    if normal is None:
        with pytest.raises(UrlRefused):
            parse_url(text)
    else:
        assert str(parse_url(text)) == normal


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("https://h/a/../b", r"\.\."),
        ("https://h/a/%2e%2E/b", r"\.\."),
        ("https://h/a/%252e%252e/b", r"\.\."),
        ("https://h/a/..;x=1/b", r"\.\."),
        ("https://h/a/./b", r"\.\."),
        ("https://h/a%2fb", "encoded /"),
        ("https://h/a%5cb", "encoded /"),
        ("https://h/a%252fb", "doubly encoded"),
        ("https://h/a\\b", "percent-encoded"),
        ("https://h/a//b", "//"),
        ("https://h/a%00", "control"),
        ("https://h/a%0d%0aHost:x", "control"),
        ("https://h/a b", "percent-encoded"),
        ("https://h/a\n", "percent-encoded"),
        ("https://h/%zz", "percent-encoded"),
        ("https://h/ä", "percent-encoded"),
        ("https://h/a#b", "fragment"),
        ("https://user:secret@h/", "user or password"),
        ("https://good.example@evil.example/", "user or password"),
        ("https://good.example\\@evil.example/", "user or password"),
        ("https:///path", "invalid host"),
        ("https://h:70000/", "port"),
        ("https://h:0/", "port"),
        ("https://h:8o/", "host"),
        ("https://a..b/", "host"),
        ("https://h./", "host"),
        ("https://ev%69l/", "host"),
        ("https://evil.example／.good.example/", "host"),
        ("https://0x7f.1/", "four numbers"),
        ("https://2130706433/", "four numbers"),
        ("https://127.0.0.01/", "four numbers"),
        ("https://[::1%25eth0]/", "host"),
        ("ftp://h/", "scheme ftp"),
        ("//h/x", "begin with https"),
        ("https:/h/x", "begin with https"),
        (" https://h/", "begin with https"),
        ("https://h/" + "a" * 9000, "expected at most"),
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(url, reason):
    with pytest.raises(UrlRefused, match=reason):
        parse_url(url)


@pytest.mark.parametrize(
    ("url", "prefix", "within"),
    [
        ("https://h/a/b", "https://h/a", True),
        ("https://h/a", "https://h/a", True),
        ("https://h/a?key=1", "https://h/a", True),
        ("https://h/ab", "https://h/a", False),
        ("https://h/a/b", "https://h/a/", True),
        ("https://h/a", "https://h/a/", False),
        ("https://h/x", "https://h", True),
        ("https://h.evil.example/", "https://h", False),
        ("https://sub.h/", "https://h", False),
        ("https://h:444/", "https://h", False),
        ("https://h:443/", "https://h", True),
        ("http://h/", "https://h", False),
        ("http://127.0.0.1:9/x", "http://127.0.0.1:9/", True),
        ("https://h/A", "https://h/a", False),
        ("https://h/a%3Bb", "https://h/a;b", True),
    ],
)
def test_a_prefix_ends_between_segments_and_its_host_is_exact(url, prefix, within):
    assert is_within_allowed_prefix(parse_url(url), parse_url_prefix(prefix)) is within


def test_what_is_blocked_is_not_reached_by_another_port_or_scheme():
    there = gateway("https://h/", "http://h:8080/", blocked=("https://h/admin",))
    assert str(resolve_allowed_url("https://h/user", there)) == "https://h/user"
    for url in ("https://h/admin", "http://h:8080/admin/x", "https://H/%61dmin/"):
        with pytest.raises(UrlRefused, match="API_BLOCKED_PREFIXES"):
            resolve_allowed_url(url, there)


@pytest.mark.parametrize(
    "written",
    [
        "/v1/admin", "/v1/admin/", "/v1/admin;x=1", "/v1/admin%3bx=1", "/v1/admin%253bx", "/v1/ADMIN",
        "/v1/Admin/x", "/v1/adm%69n", "/v1/adm%2569n", "/v1/admin.", "/v1/admin%20", "/v1/admin%2e",
        "/v1/admin;/x", "/v1/;/admin", "/v1/;a=b/admin", "/v1/%3b/admin", "/v1/adm%C4%B1n?x=1",
        "/v1/%EF%BD%81dmin", "/V1/admin", "/v1;a/admin",
    ],
)  # fmt: skip
@pytest.mark.parametrize("origin", ["https://h", "http://h", "HTTPS://H:443", "https://h:8443"])
def test_what_is_blocked_is_blocked_however_it_is_written(written, origin):
    there = gateway("https://h", "http://h", "https://h:8443", blocked=("https://h/v1/admin/",))
    assert resolve_allowed_url(f"{origin}/v1/administrator", there) is not None
    with pytest.raises(UrlRefused, match="API_BLOCKED_PREFIXES"):
        resolve_allowed_url(origin + written, there)


@pytest.mark.parametrize(
    "written",
    [
        "https://u@h/v1/admin", "https://h./v1/admin", "https://h/v1//admin", "https://h/v1/./admin",
        "https://h/x/../v1/admin", "https://h/v1/%2e/admin", "https://h/v1%2fadmin",
        "https://h/v1%c0%afadmin", "https://h/v1/..%c1%9cadmin",
    ],
)  # fmt: skip
def test_what_some_servers_take_for_a_blocked_path_is_refused(written):
    with pytest.raises(UrlRefused):
        resolve_allowed_url(written, gateway("https://h", blocked=("https://h/v1/admin",)))


_disguises = st.sampled_from(["a", "A", "%61", "%41", "%2561", "%EF%BD%81", "%ef%bc%a1"])


@given(_disguises, st.sampled_from(["", ";", ";x", "%3b", "%3Bx=1", ".", "%20", "%20."]))
def test_no_disguise_of_a_segment_passes_a_block(letter, tail):
    there = gateway("https://h", blocked=("https://h/v1/admin",))
    with pytest.raises(UrlRefused):
        resolve_allowed_url(f"https://h/v1/{letter}dmin{tail}/x", there)


def test_a_refusal_shows_the_prefixes_and_no_query():
    with pytest.raises(UrlRefused) as caught:
        resolve_allowed_url("https://other/x?code=secret", gateway("https://h/a", "https://h/b"))
    assert "https://h/a, https://h/b" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_prefix_has_no_query():
    with pytest.raises(UrlRefused, match="query"):
        parse_url_prefix("https://h/a?b")


_pieces = st.sampled_from(
    [*"/.?#%:@\\;&= aé", "..", "%2e", "%2F", "%5c", "%25", "a", "b", "h", "//", "HTTPS", "[::1]"]
)
_tails = st.lists(_pieces, max_size=12).map("".join)


@given(tail=_tails)
def test_a_url_that_is_written_anew_stays_as_it_is(tail):
    try:
        address = parse_url("https://h" + tail)
    except UrlRefused:
        return
    assert parse_url(str(address)) == address
    other = urlsplit(str(address))
    assert (other.scheme, other.hostname) == (address.scheme, address.host)
    assert (other.port or 443, other.path) == (address.port, address.path)


@given(tail=_tails, prefix=st.sampled_from(["/a", "/a/", "/a/b", "/"]))
def test_nothing_that_is_let_through_ends_up_elsewhere(tail, prefix):
    there = gateway("https://h" + prefix)
    try:
        address = resolve_allowed_url("https://h" + prefix + tail, there)
    except UrlRefused:
        return
    assert (address.scheme, address.host, address.port) == ("https", "h", 443)
    # As the laxest server reads it: decoded over and over, `\` as `/`, dots resolved.
    path = address.path
    while unquote(path) != path:
        path = unquote(path)
    reached = posixpath.normpath(path.replace("\\", "/").partition(";")[0]) + "/"
    assert reached.replace("//", "/").startswith(prefix.rstrip("/") + "/")
