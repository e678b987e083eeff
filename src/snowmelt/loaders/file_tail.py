"""Stream the lines of growing files into a table, through one channel per file.

A channel is named after the file's identity (inode and first line), not after its path. Rotated
files therefore continue at their position, and an overwritten file is a new file. An offset token
such as `messages_1.log:20` names the last line that was read. The tokens are the only state, so
after a crash the next run resumes.
"""

from __future__ import annotations

import errno
import fnmatch
import glob
import logging
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from snowmelt.client.channel import Channel
from snowmelt.client.line_source import LineSource
from snowmelt.client.source_streaming import OnBackwards, StreamPump
from snowmelt.clock import Clock
from snowmelt.errors import ConfigurationError
from snowmelt.schema.conversion.row_converter import RowError
from snowmelt.schema.error_table import row_to_json

if TYPE_CHECKING:
    import threading

    from snowmelt.client.client import Client
    from snowmelt.client.line_source import ParsedLine

_log = logging.getLogger(__name__)

_POLL_INTERVAL_S = 0.25
_MAX_BATCHES_PER_ROUND = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class TailOptions:
    """Options of a tail: files, table, parser, and what happens to committed files.

    `make_parser` returns a line parser for a file. The first `header_lines` lines are skipped.
    Committed files are deleted, or moved to `move_to`, after `idle_before_removal_s` seconds
    without writes, or immediately with `once`. With `schema_evolution`, unknown keys become
    columns.
    """

    patterns: Sequence[str]
    table: str
    make_parser: Callable[[], Callable[[bytes, int], ParsedLine]]
    header_lines: int = 0
    once: bool = False
    delete: bool = False
    move_to: Path | None = None
    idle_before_removal_s: float = 10.0
    on_backwards: OnBackwards = "raise"
    schema_evolution: bool = False


@dataclass(frozen=True, slots=True)
class RejectedLine:
    """A line that is not a valid row: position (such as `messages_1.log:20`), bytes and reason."""

    location: str
    data: bytes
    reason: str


@dataclass(slots=True)
class TailProgress:
    """Progress of a tail.

    `unfinished_files` end with an incomplete line. `unreadable_files` cannot be opened.
    """

    files: int = 0
    rows: int = 0
    rejected: int = 0
    removed: int = 0
    unfinished_files: tuple[str, ...] = ()
    unreadable_files: tuple[str, ...] = ()


@dataclass(slots=True)
class _FollowedFile:
    lines: LineSource
    channel: Channel
    pump: StreamPump
    # Names of the file that match the patterns: links and, after them, regular files.
    paths: list[Path]

    @property
    def is_missing(self) -> bool:
        """True if no path leads to the file."""
        return not self.paths

    @property
    def is_committed(self) -> bool:
        """True if all lines read so far are committed."""
        return self.channel.status().waiting_rows == 0


class FileTail:
    """Reader that follows growing files. Not thread-safe."""

    def __init__(
        self,
        options: TailOptions,
        client: Client,
        clock: Clock,
        on_rejected: Callable[[RejectedLine], None],
    ) -> None:
        if options.move_to is not None and any(
            # The patterns would match the moved files again, regardless of their names.
            _matches_pattern(options.move_to.resolve().parts, Path(pattern).resolve().parent.parts)
            for pattern in options.patterns
        ):
            reason = (
                f"{options.move_to} matches the patterns of the files to follow. Use another folder"
            )
            raise ConfigurationError(setting="move_to", reason=reason)
        self._options = options
        self._client = client
        self._clock = clock
        self._on_rejected = on_rejected
        self._files: dict[str, _FollowedFile] = {}
        self._left: set[Path] = set()
        self._unreadable: set[Path] = set()
        self.done = TailProgress()

    def run(
        self, stop: threading.Event, on_progress: Callable[[TailProgress], None] | None = None
    ) -> TailProgress:
        """Follow files until `stop` is set or, with `once`, to their ends. All rows are then committed.

        `on_progress` is called after each round. A round that reads nothing is followed by a pause
        of 0.25 s.

        Raises:
            SourceWentBackwards: If a file is shorter than its committed position.
            ChannelFenced: If another tail follows the same files into the table.
            TableNotFound: If the table does not exist or the role lacks INSERT on it.
        """
        try:
            while not stop.is_set():
                moved = self._read_round(stop)
                if on_progress is not None:
                    on_progress(self.done)
                if not moved:
                    if self._options.once:
                        break
                    self._delete_or_move_committed_files()
                    stop.wait(_POLL_INTERVAL_S)
            self._client.flush()
            if self._options.once:
                self._delete_or_move_committed_files()
        finally:
            for followed in self._files.values():
                followed.lines.close()
        return self.done

    def _read_round(self, stop: threading.Event) -> bool:
        """Find files and read a part of each. Return True if there was anything to read."""
        self._discover_files()
        moved = False
        for followed in self._files.values():
            for _ in range(_MAX_BATCHES_PER_ROUND):
                before = followed.pump.result.inserted, followed.pump.result.refused
                if stop.is_set() or not followed.pump.insert_next_batch():
                    break
                done = followed.pump.result
                self.done.rows += done.inserted - before[0]
                self.done.rejected += done.refused - before[1]
                moved = True
        self.done.unfinished_files = (
            *(str(path) for path in sorted(self._left)),
            *(str(each.lines.path) for each in self._files.values() if each.lines.unread_bytes > 0),
        )
        self.done.unreadable_files = tuple(map(str, sorted(self._unreadable)))
        return moved

    def _discover_files(self) -> None:
        paths: dict[str, list[Path]] = {}
        by_inode = {each.lines.device_and_inode: key for key, each in self._files.items()}
        for path in self._list_paths():
            try:
                status = path.stat()
                key = by_inode.get((status.st_dev, status.st_ino))
                if key is None or not self._files[key].lines.is_same_file:
                    key = self._follow_file(path)
                else:
                    self._files[key].lines.path = path
            except FileNotFoundError:
                continue  # The file was just rotated. The next round finds it under its new name.
            except OSError as error:
                # For example, a file of another user. It must not stop the other files.
                if path not in self._unreadable:
                    _log.warning("%s cannot be read: %s", path, error.strerror)
                self._unreadable.add(path)
                continue
            self._unreadable.discard(path)
            if key is not None:
                paths.setdefault(key, []).append(path)
        for key, followed in list(self._files.items()):
            followed.paths = paths.get(key, [])
            # A renamed or deleted file is read to its end. Overwritten lines are lost.
            if (
                followed.is_missing
                and not followed.lines.has_unread_lines
                and followed.is_committed
            ):
                # A later file with the same inode number and first line must not continue here.
                if followed.lines.is_deleted and followed.channel.is_valid:
                    followed.channel.close(drop=True)
                self._close_file(key)

    def _list_paths(self) -> Iterator[Path]:
        found = {
            name
            for each in self._options.patterns
            for name in glob.glob(each, recursive=True)  # noqa: PTH207 - patterns may be absolute
        }
        # Links come first, so that a file has its own name even if links to it match as well.
        ordered = sorted(map(Path, found), key=lambda path: (not path.is_symlink(), str(path)))
        return (path for path in ordered if path.is_file())

    def _follow_file(self, path: Path) -> str | None:
        lines = LineSource(
            path,
            self._options.make_parser(),
            self._report_rejected_line,
            header_lines=self._options.header_lines,
        )
        key = lines.file_identity
        other = None if key is None else self._files.get(key)
        if other is not None and other.lines.device_and_inode != lines.device_and_inode:
            lines.close()
            raise OSError(
                errno.EEXIST,
                f"it has the inode number and first line of {other.lines.path} on another file "
                "system, so both would have the same channel",
            )
        if key is None or key in self._files:
            lines.close()
            if key is None and lines.initial_size_bytes:
                self._left.add(path)
            elif key is not None:
                self._files[key].lines.path = path
            return key
        self._left.discard(path)
        channel = self._client.open_channel(
            f'"{key}"',
            table=self._options.table,
            on_error="continue",
            compatibility="strict",
            schema_evolution=self._options.schema_evolution,
        )
        pump = StreamPump(
            lines,
            channel,
            on_backwards=self._options.on_backwards,
            on_refused=self._report_rejected_row,
        )
        self._files[key] = _FollowedFile(lines, channel, pump, [path])
        self.done.files += 1
        return key

    def _delete_or_move_committed_files(self) -> None:
        """Delete or move committed files, if requested."""
        options = self._options
        if not options.delete and options.move_to is None:
            return
        now = self._clock.now().timestamp()
        for key, followed in list(self._files.items()):
            lines = followed.lines
            if (
                not followed.is_missing
                and (options.once or now - lines.modified_at >= options.idle_before_removal_s)
                and followed.is_committed
                and followed.channel.is_valid
                and lines.is_same_file
                and lines.unread_bytes == 0
            ):
                # A remaining name would be a new file, because the channel is dropped. A link is
                # removed only if the file itself does not match the patterns.
                regular = [path for path in followed.paths if not path.is_symlink()]
                names = regular or followed.paths
                if not all(_is_same_file_at(path, lines.device_and_inode) for path in names):
                    continue
                for path in names:
                    self._delete_or_move_file(path)
                self.done.removed += 1
                # Delete the file first: a channel without its file is harmless, but a file without
                # its channel would be loaded again.
                followed.channel.close(drop=True)
                self._close_file(key)

    def _delete_or_move_file(self, path: Path) -> None:
        folder = self._options.move_to
        if folder is None:
            path.unlink()
            return
        folder.mkdir(parents=True, exist_ok=True)
        target, number = folder / path.name, 0
        while target.exists():
            number += 1
            target = folder / f"{path.name}.{number}"
        shutil.move(path, target)

    def _close_file(self, key: str) -> None:
        followed = self._files.pop(key)
        followed.channel.close()
        followed.lines.close()

    def _report_rejected_line(self, location: str, data: bytes, reason: str) -> None:
        self.done.rejected += 1
        self._on_rejected(RejectedLine(location, data, reason))

    def _report_rejected_row(self, location: str, error: RowError) -> None:
        self._on_rejected(RejectedLine(location, row_to_json(error.row).encode(), str(error.error)))


def is_followed(path: Path, patterns: Iterable[str]) -> bool:
    """Return True if this path matches one of the patterns. The file need not exist."""
    parts = path.resolve().parts
    return any(_matches_pattern(parts, Path(pattern).resolve().parts) for pattern in patterns)


def _matches_pattern(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_matches_pattern(parts[at:], pattern[1:]) for at in range(len(parts) + 1))
    return (
        bool(parts)
        and fnmatch.fnmatchcase(parts[0], pattern[0])
        and _matches_pattern(parts[1:], pattern[1:])
    )


def _is_same_file_at(path: Path, device_and_inode: tuple[int, int]) -> bool:
    """Return True if the file is still at its path and was not rotated."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    return (status.st_dev, status.st_ino) == device_and_inode
