"""Sums of floats in order, with what rounding lost kept aside (Neumaier's method)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    Kernel: TypeAlias = Callable[
        [NDArray[np.float64], NDArray[np.bool_], float, float], tuple[float, float]
    ]


def _compiled(function: Any) -> Any:
    try:
        from numba import njit
    except ImportError:  # the `select` extra is not installed: the same loop, slower
        return function
    return njit(cache=True, nogil=True)(function)


@_compiled
def _add_all(
    data: NDArray[np.float64], null: NDArray[np.bool_], total: float, lost: float
) -> tuple[float, float]:
    for place in range(len(data)):
        if not null[place]:
            number = data[place]
            grown = total + number
            if abs(total) >= abs(number):
                lost += (total - grown) + number
            else:
                lost += (number - grown) + total
            total = grown
    return total, lost


add_all: Kernel = _add_all
"""Add the numbers that are not null, in order, to a total and what it lost so far."""


def add_one(number: float, total: float, lost: float) -> tuple[float, float]:
    """Add one number; many calls give the very bits of one `add_all`."""
    grown = total + number
    if abs(total) >= abs(number):
        return grown, lost + ((total - grown) + number)
    return grown, lost + ((number - grown) + total)
