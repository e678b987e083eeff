"""Compile kernels with Numba at their first call. They release the GIL, and are cached on disk.

The cache is in NUMBA_CACHE_DIR if that is set, else beside the package if it is writable, else in
the user's cache folder (for a service, in its data folder). Several processes may write it
concurrently. Kernels are recompiled when a file with kernels, the processor type or the version of
numba changes.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from numba import njit

_KernelT = TypeVar("_KernelT", bound="Callable[..., object]")

# Omit the wrappers with which Python or C could call a helper: compiling them takes as long as
# compiling a short function. The type stubs of numba lack these options.
_jit: Any = njit
_HELPER_OPTIONS = {"nogil": True, "no_cpython_wrapper": True, "no_cfunc_wrapper": True}
_KERNELS: list[Any] = []


def helper_jit(function: _KernelT) -> _KernelT:
    """Compile a function that only kernels call, together with the first kernel that calls it."""
    return cast("_KernelT", _jit(function, **_HELPER_OPTIONS))


def inline_jit(function: _KernelT) -> _KernelT:
    """Inline a function into the kernels that call it."""
    return cast("_KernelT", _jit(function, forceinline=True, **_HELPER_OPTIONS))


def jit_kernel(function: _KernelT) -> _KernelT:
    """Compile a function at its first call. Cache it if a folder is writable."""
    try:
        compiled: Any = _jit(function, nogil=True, cache=True, no_cfunc_wrapper=True)
    except RuntimeError:
        compiled = _jit(function, nogil=True, no_cfunc_wrapper=True)
    else:
        # numba checks only the file of the function, but functions that it calls may be in other
        # files. The version is compared before the rest is unpickled, because unpickling may need
        # modules that were removed.
        kept = compiled._cache._cache_file  # noqa: SLF001 - there is no other way to say it
        shared = Path(__file__).parent / "kernels"
        sources = map(_digest_kernel_sources, (_find_package_folder(function), shared))
        kept._version = " ".join((kept._version, *sources))  # noqa: SLF001
    _KERNELS.append(compiled)
    return cast("_KernelT", compiled)


def list_kernels() -> tuple[list[str], list[str]]:
    """Return the names of the kernels that this process compiled, and of those loaded from the cache."""
    names = {_get_name(each): each.stats for each in _KERNELS}
    compiled = sorted(name for name, stats in names.items() if stats.cache_misses)
    loaded = sorted(name for name, stats in names.items() if stats.cache_hits)
    return compiled, loaded


def is_kernel_cached(name: str) -> bool:
    """Return True if a kernel is in memory or on disk, so that calling it compiles nothing."""
    kernel = next(each for each in _KERNELS if _get_name(each) == name)
    if kernel.overloads or kernel._cache.cache_path is None:  # noqa: SLF001
        return bool(kernel.overloads)
    processor = kernel.targetctx.codegen().magic_tuple()
    return any(key[1] == processor for key in kernel._cache._cache_file._load_index())  # noqa: SLF001


def find_cache_folder() -> Path | None:
    """Return the cache folder of kernels, or None if no folder is writable."""
    kept = (each._cache for each in _KERNELS)  # noqa: SLF001
    return next((Path(each.cache_path) for each in kept if each.cache_path), None)


def _get_name(kernel: Any) -> str:
    return str(kernel.__name__.lstrip("_"))


def _find_package_folder(function: Callable[..., object]) -> Path:
    """Return the folder of a kernel's top-level package, which contains the functions it may call."""
    file, root = Path(function.__code__.co_filename), Path(__file__).parent
    return root / file.relative_to(root).parts[0] if file.is_relative_to(root) else file.parent


@functools.cache
def _digest_kernel_sources(folder: Path) -> str:
    """Compute a digest of all files with kernels in a folder and its subfolders."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        text = path.read_bytes()
        if b"numba" in text or b"snowmelt.jit import" in text:
            digest.update(text)
    return digest.hexdigest()
