"""Loads of files."""

from __future__ import annotations

from snowmelt.errors.tree import ConflictError, RemoteError, UserError


class LoadRefused(UserError):
    """{what}: {reason}."""

    code = "load_refused"


class OutputRefused(UserError):
    """Cannot write {option} to {path}: {reason}."""

    code = "output_refused"


class PhaseFailed(UserError):
    """{reason}."""

    # Raised by a source, filter or parser, which knows its bytes but not whose they are; `offset`
    # counts bytes of its input, `record` records of its portion from 1. The load adds the rest.
    code = "phase_failed"


class UserCodeFailed(UserError):
    """{what}: {reason}."""

    # The process that ran the code of a user ended, or was ended because of a limit.
    code = "user_code_failed"


class LoadFailed(UserError):
    """{where}: {reason}."""

    code = "load_failed"


class BrokersSilent(RemoteError):
    """No broker answers for {what}: {reason}."""

    code = "brokers_silent"


class LoadCancelled(UserError):
    """The load was cancelled: nothing of it was loaded."""

    code = "load_cancelled"


class LoadOvertaken(ConflictError):
    """Load {load} was overtaken: {reason}. Nothing was loaded."""

    code = "load_overtaken"
