"""Argument counts of the scalar functions, which the parser checks."""

from __future__ import annotations

MAX_ARGUMENTS = 10_000

FUNCTION_ARITIES = {
    "utcnow": (0, 0),
    "add": (2, 2),
    "char_length": (1, 1),
    "character_length": (1, 1),
    "coalesce": (1, MAX_ARGUMENTS),
    "date_add": (3, 3),
    "date_diff": (3, 3),
    "dateadd": (3, 3),
    "datediff": (3, 3),
    "engine_version": (0, 0),
    "extract": (2, 2),
    "lower": (1, 1),
    "nullif": (2, 2),
    "substr": (2, 3),
    "substring": (2, 3),
    "timestamp": (1, 1),
    "to_string": (2, 2),
    "trim": (3, 3),
    "upper": (1, 1),
    "version": (0, 0),
}
"""How many arguments each function takes, at least and at most."""

DATE_PART_FUNCTIONS = ("date_add", "date_diff", "dateadd", "datediff")
"""Those whose first argument is a date part."""
