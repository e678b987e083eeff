"""Requests that are refused before anybody looks at what they ask for."""

from __future__ import annotations

from snowmelt.errors import UserError


class RequestTooLarge(UserError):
    """The request's body is larger than {limit} bytes."""

    code = "request_too_large"
    status = 413


class HostRefused(UserError):
    """Host {host} is not allowed: the service listens on loopback. If a proxy forwards this name, add it to SNOWMELT_PUBLIC_HOSTS."""

    code = "host_refused"
    status = 403


class ContentTypeRefused(UserError):
    """The body must be sent as application/json, not as {content_type}."""

    code = "content_type_refused"
    status = 415


class RouteNotFound(UserError):
    """There is nothing at {path}."""

    code = "route_not_found"
    status = 404


class MethodRefused(UserError):
    """{path} takes {allowed}, not {method}."""

    code = "method_refused"
    status = 405
