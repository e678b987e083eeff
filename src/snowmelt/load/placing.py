"""Says where a load failed: file, portion, step with its parameters, byte and record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.errors import LoadCancelled, LoadFailed, SnowmeltError

if TYPE_CHECKING:
    from snowmelt.load.portion import Portion
    from snowmelt.load.steps import Step


class Placer:
    """Knows the portion that is loaded, and keeps the first failure of it.

    A step that swallows what its input raises does not make the failure unseen.
    """

    def __init__(self, portion: Portion) -> None:
        self._portion = portion
        self.failure: LoadFailed | None = None
        self.cancelled = False

    def go_on(self) -> None:
        """Do nothing, unless the load was cancelled.

        Raises:
            LoadCancelled: It was.
        """
        if self.cancelled:
            raise LoadCancelled

    def failed(self, step: Step, error: Exception, read: int, *, of_file: bool) -> LoadFailed:
        """Return the error that says what a step raised, and where; the caller raises it.

        `read` counts the bytes that the step was given (a source: that it gave) before;
        `of_file` says that these are the bytes of the file as they are.
        """
        fields = error.fields if isinstance(error, SnowmeltError) else {}
        place = [self._named(), str(step), self._byte(fields.get("offset"), read, of_file=of_file)]
        if fields.get("record") is not None:
            place.append(f"record {fields['record']:,}")
        reason = str(error).rstrip(".") if isinstance(error, SnowmeltError) else _described(error)
        # A source's own error begins with the path, too.
        reason = reason.removeprefix(f"{self._portion.file.path}: ")
        failure = LoadFailed(
            where=", ".join(place), reason=reason, file=self._portion.file.path, step=str(step)
        )
        self.failure = self.failure or failure
        return failure

    def _named(self) -> str:
        portion = self._portion
        if portion.is_whole:
            return portion.file.path
        end = "its end" if portion.size is None else f"{portion.offset + portion.size:,}"
        return f"{portion.file.path} (bytes {portion.offset:,} to {end})"

    def _byte(self, offset: object, read: int, *, of_file: bool) -> str:
        start = self._portion.offset if of_file else 0
        whose = "the file" if of_file else "its input"
        if isinstance(offset, int):
            return f"at byte {start + offset:,} of {whose}"
        return f"after {start + read:,} bytes of {whose}"


def _described(error: Exception) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
