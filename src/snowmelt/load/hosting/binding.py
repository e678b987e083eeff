"""Which argument goes where: methods of user code are called by what their parameters are called.

Documentation and existing code disagree on orders and on how many arguments there are. A parameter
whose name tells its role is given that; the others are given what is left, in the usual order.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from snowmelt.errors import LoadRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SETUP = ("server",)
PROCESS = ("server", "input", "state", "output")
PROCESS_RECORDS = ("server", "input", "input_lengths", "state", "output", "output_lengths")
PARSER_SETUP = ("server", "returns")
PARSE = ("server", "input", "state", "writer")
PARSE_RECORDS = ("server", "input", "input_lengths", "state", "writer")
CHUNK = ("server", "input", "state")
ALIGN = CHUNK
SOURCE_PROCESS = ("server", "output")
SOURCE_RECORDS = ("server", "output", "output_lengths")
DESTROY = ("server", "session")
PARSER_DESTROY = ("server", "returns", "session")
PLAN = ("server", "plan")
PARSER_PLAN = ("server", "columns", "plan")
PARSER_PREPARE = ("server", "columns", "plan", "returns")
RETURN_TYPE = ("server", "columns", "plan", "arguments", "returns")
PARAMETER_TYPE = ("server", "parameters")

# A role is taken if all words of one of its lists are in the name; the first role that fits.
_WORDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("output_lengths", ("out", "len")),
    ("input_lengths", ("len",)),
    ("state", ("state",)),
    ("columns", ("column",)),
    ("session", ("session",)),
    ("plan", ("plan",)),
    ("returns", ("return",)),
    ("arguments", ("arg",)),
    ("parameters", ("param",)),
    ("server", ("srv",)),
    ("server", ("server",)),
    ("writer", ("writer",)),
    ("writer", ("stream",)),
    ("output", ("out",)),
    ("input", ("in",)),
    ("input", ("buf",)),
)


def bound(owner: object, name: str, roles: Sequence[str]) -> Callable[..., Any]:
    """Return a method as a function of one argument for each role, in the order of `roles`.

    Raises:
        LoadRefused: The method does not exist, lacks `self`, or wants more than there is.
    """
    method = getattr(owner, name, None)
    what = f"{type(owner).__name__}.{name}"
    if not callable(method):
        raise LoadRefused(what=what, reason="there is no such method")
    _check_self(owner, name, what)
    places = _places(method, roles, what)
    if places == list(range(len(roles))):
        return method  # type: ignore[no-any-return]
    return lambda *arguments: method(*[arguments[place] for place in places])


def _places(method: Callable[..., Any], roles: Sequence[str], what: str) -> list[int]:
    everything = list(range(len(roles)))
    try:
        parameters = list(inspect.signature(method).parameters.values())
    except (TypeError, ValueError):  # written in another language, which does not tell
        return everything
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return everything
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    taken = [parameter for parameter in parameters if parameter.kind in kinds]
    required = [parameter for parameter in taken if parameter.default is parameter.empty]
    if len(required) > len(roles):
        raise LoadRefused(
            what=what,
            reason=f"it takes {len(required)} arguments ({_names(required)}), "
            f"but is given {len(roles)} ({', '.join(roles)})",
        )
    found = [_role(parameter.name, roles) for parameter in taken[: len(roles)]]
    named = [role for role in found if role is not None]
    if len(set(named)) < len(named):
        return everything[: len(taken)]
    left = iter([role for role in roles if role not in named])
    return [roles.index(role if role is not None else next(left)) for role in found]


def _role(name: str, roles: Sequence[str]) -> str | None:
    low = name.lower()
    return next(
        (role for role, words in _WORDS if role in roles and all(word in low for word in words)),
        None,
    )


def _check_self(owner: object, name: str, what: str) -> None:
    function = inspect.getattr_static(owner, name, None)
    if not inspect.isfunction(function) or name in vars(owner):
        return
    names = list(inspect.signature(function).parameters)
    if names and _role(names[0], ("server",)) is not None:
        raise LoadRefused(what=what, reason=f"its first parameter is {names[0]}; `self` is missing")


def _names(parameters: list[inspect.Parameter]) -> str:
    return ", ".join(parameter.name for parameter in parameters)
