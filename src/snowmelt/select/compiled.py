"""How kernels are compiled: at their first call, outside the GIL, kept on disk if that can be.

The compiled code lies in NUMBA_CACHE_DIR if that is set, else beside the package, else in the
user's cache folder; several processes may fill it at once. It is renewed when a source file, the
kind of processor or numba's version changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from numba import njit

if TYPE_CHECKING:
    from collections.abc import Callable

_Kernel = TypeVar("_Kernel", bound="Callable[..., object]")


def kernel(function: _Kernel) -> _Kernel:
    """Compile a function when it is first called; where no folder can be written, each time."""
    try:
        compiled: _Kernel = njit(function, nogil=True, cache=True)
    except RuntimeError:
        compiled = njit(function, nogil=True)
    return compiled
