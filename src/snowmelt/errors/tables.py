"""Tables, reading and migration."""

from __future__ import annotations

from snowmelt.errors.tree import ConflictError, InternalError


class LeaseLost(ConflictError):
    """Another process has taken over {name}."""

    code = "lease_lost"


class CommitLost(ConflictError):
    """The commit to {table} was lost to another: {reason}."""

    code = "commit_lost"


class PlanExpired(ConflictError):
    """This query of {table} is older than its files are kept; run it again."""

    code = "plan_expired"


class TableInconsistent(InternalError):
    """Table {table} does not add up: {reason}."""

    code = "table_inconsistent"
