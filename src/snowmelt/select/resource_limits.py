"""Resource limits of one execution, and the memory budget that enforces them.

The error for an exceeded limit names the setting to change.
"""

from __future__ import annotations

from dataclasses import dataclass

from snowmelt.config import Settings
from snowmelt.select.errors import SelectError

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Limits of one execution; sizes in bytes.

    `threads` is the size of the worker pool, 0 for the number of processors. All executions of the
    process with the same number share a pool.
    """

    threads: int = 0
    block_bytes: int = 2 * _MIB
    blocks_in_flight: int = 3
    record_bytes: int = 16 * _MIB
    group_memory_bytes: int = 128 * _MIB
    sort_memory_bytes: int = 128 * _MIB
    document_bytes: int = 64 * _MIB
    row_group_bytes: int = 256 * _MIB

    @classmethod
    def from_settings(cls, settings: Settings) -> EngineSettings:
        """Return the limits from the settings of a deployment."""
        return cls(
            threads=settings.select_threads,
            record_bytes=settings.select_record_bytes,
            group_memory_bytes=settings.select_group_memory_bytes,
            sort_memory_bytes=settings.select_sort_memory_bytes,
            document_bytes=settings.select_document_bytes,
            row_group_bytes=settings.select_row_group_bytes,
        )


class MemoryBudget:
    """Budget that counts the memory of a buffered result.

    Sizes are estimates above the actual sizes of the Python objects.
    """

    def __init__(self, limit_bytes: int, *, purpose: str, setting_name: str) -> None:
        self._limit_bytes = limit_bytes
        self._purpose = purpose
        self._setting_name = setting_name
        self._reserved_bytes = 0

    def has_space(self, size_bytes: int) -> bool:
        """Return True if `size_bytes` more bytes fit."""
        return self._reserved_bytes + size_bytes <= self._limit_bytes

    def reserve(self, size_bytes: int) -> None:
        """Reserve `size_bytes` more bytes.

        Raises:
            SelectError: If the limit is exceeded (OverMaxMemory). The message contains the setting.
        """
        self._reserved_bytes += size_bytes
        if self._reserved_bytes > self._limit_bytes:
            raise SelectError(
                "OverMaxMemory",
                f"{self._purpose} requires more than {self._limit_bytes} bytes of memory "
                f"(setting {self._setting_name}).",
            )

    def release_all(self) -> None:
        """Release all reserved bytes."""
        self._reserved_bytes = 0
