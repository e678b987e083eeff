"""Arguments of one call, matched with those that its function has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.spark.function_calls import CallMalformed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from snowmelt.catalog.calls import CallableFunction
    from snowmelt.functions.signature import Signature
    from snowmelt.spark.function_calls import Given


def overload(found: Sequence[CallableFunction], given: Sequence[Given]) -> CallableFunction:
    """Return the function of a name that takes so many arguments.

    Raises:
        CallMalformed: None does.
    """
    for each in found:
        signature = each.function.signature
        if signature.least_arguments <= len(given) <= len(signature.arguments):
            return each
    takes = " or ".join(_takes(each.function.signature) for each in found)
    raise CallMalformed(function=str(found[0].name), reason=f"it takes {takes}, not {len(given)}")


def _takes(signature: Signature) -> str:
    least, most = signature.least_arguments, len(signature.arguments)
    count = f"{least}" if least == most else f"{least} to {most}"
    listed = f" ({signature.arguments_ddl()})" if most else ""
    return f"{count} argument{'' if most == 1 else 's'}{listed}"


def bound(called: CallableFunction, given: Sequence[Given]) -> list[Given | None]:
    """Return what was given for each argument of a function; None where its default counts.

    Raises:
        CallMalformed: A name is unknown or given twice, or an argument is missing.
    """

    def malformed(reason: str) -> CallMalformed:
        return CallMalformed(function=str(called.name), reason=reason)

    arguments = called.function.signature.arguments
    places = {argument.name.upper(): at for at, argument in enumerate(arguments)}
    found: dict[int, Given] = {}
    named = False
    for at, each in enumerate(given):
        if each.name is None and named:
            raise malformed("arguments by position come before those by name")
        named = named or each.name is not None
        place = at if each.name is None else places.get(each.name.upper())
        if place is None:
            raise malformed(f"it has no argument {each.name}")
        if place in found:
            raise malformed(f"{arguments[place].name.upper()} is given twice")
        found[place] = each
    for at, argument in enumerate(arguments):
        if at not in found and argument.default is None:
            raise malformed(f"{argument.name.upper()} is missing")
    return [found.get(at) for at in range(len(arguments))]
