"""Messages between the sites of a failover group.

Requests are JSON over POST, with the token of a user that has the privilege REPLICATE. Answers are
MessagePack, except `wire.sites.SiteState`, which is JSON and needs no token.

The follower asks: its request is also the confirmation of the last state. So a primary needs no address
and no credentials of its followers, and one that is down holds up nothing but offset tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

import msgspec

from snowmelt.backup.manifests import StoreName
from snowmelt.catalog.objects.failover_groups import ReportedChannel, TokenMode

# Bytes of one read of an object.
READ_BYTES = 8 << 20
# Lease of the one process of a site that follows.
FOLLOWER_LEASE = "replica"

_LENGTH_BYTES = 8


class PullRequest(msgspec.Struct, kw_only=True):
    """Asks for the changes since a state.

    Attributes:
        group: Name of the group.
        site: Name of the follower.
        site_number: Number of the follower; 0 if it has none yet.
        url: Address of the follower.
        epoch: Epoch of the state that the follower has; -1 before the first one.
        point: Number of that state. None asks for the whole state.
        sequences: Last commit sequence of each table, by table ID.
        reported: Channels as the follower has them, if they changed since its last request.
        public_key: X25519 key to seal keys for, base64.
        wait_s: How long to wait for changes, in seconds.
        closes: Whether the primary shall stop writes, to hand over to the follower.
        keeps: Whether the follower still copies, and wants no state: objects must be kept for it.
    """

    group: str
    site: str
    site_number: int = 0
    url: str | None = None
    epoch: int = -1
    point: int | None = None
    sequences: dict[int, int] = msgspec.field(default_factory=dict)
    reported: list[ReportedChannel] = msgspec.field(default_factory=list)
    public_key: str = ""
    wait_s: float = 1.0
    closes: bool = False
    keeps: bool = False


class PullResponse(msgspec.Struct, kw_only=True):
    """A state of the primary, as the difference to the follower's state.

    Attributes:
        role: Role of the answering site. If it is not the primary, there is no state.
        epoch: Its epoch.
        point: Number of the state.
        since: Number of the state that the difference starts from. None: it is the whole state.
        has_changes: Whether there is a difference.
        handed_over: Whether the follower has everything and shall be the primary.
        sites: Names of all sites of the group.
        tokens: Which offset tokens the primary reports.
        protected_from: First state without which a follower must not be promoted.
        state_at: Time of the state by the primary's clock, microseconds since 1970.
        content: The difference, if it is small.
        content_path: Path in the stage of the primary from which it is read otherwise.
        content_bytes: Its size.
    """

    role: str
    epoch: int
    group: str = ""
    kind: str = ""
    site_number: int = 0
    deployment_id: int = 0
    sequencer_floor: int = 0
    point: int = 0
    since: int | None = None
    has_changes: bool = False
    handed_over: bool = False
    sites: tuple[str, ...] = ()
    tokens: str = TokenMode.REPLICATED
    protected_from: int | None = None
    state_at: int = 0
    warehouse_root: str = ""
    catalog_version: str = ""
    content: bytes = b""
    content_path: str | None = None
    content_bytes: int = 0


class ReadRequest(msgspec.Struct, kw_only=True):
    """Asks for a range of an object."""

    group: str
    store: StoreName
    path: str
    offset: int = 0
    length: int = READ_BYTES


class ReadBlobsRequest(msgspec.Struct, kw_only=True):
    """Asks for whole blobs of the stage. One request for many costs the primary little."""

    group: str
    paths: list[str]


class ReadBlobsResponse(msgspec.Struct):
    """The contents of the first of the blobs, up to READ_BYTES; at least one. None: it does not exist."""

    contents: list[bytes | None]


class ReadResponse(msgspec.Struct):
    """Bytes of an object, and its size. `size` is -1 if it does not exist."""

    size: int
    content: bytes = b""


class TableHeader(msgspec.Struct, array_like=True, tag="table"):
    """Begins the part of a table."""

    name: str
    columns: tuple[str, ...]
    last_id: int | None


class TableRows(msgspec.Struct, array_like=True, tag="rows"):
    """Rows to write, with stored values in the order of the columns."""

    rows: list[list[Any]]


class DeletedKeys(msgspec.Struct, array_like=True, tag="deleted"):
    """Primary keys of rows that do not exist any longer."""

    keys: list[list[Any]]


class EndOfState(msgspec.Struct, array_like=True, tag="end"):
    """Ends a state. Without it the content was cut."""

    frames: int


Frame = TableHeader | TableRows | DeletedKeys | EndOfState

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Frame] = msgspec.msgpack.Decoder(Frame)


def write_frame(file: BinaryIO, frame: Frame) -> None:
    """Append a frame to a state."""
    data = _encoder.encode(frame)
    file.write(len(data).to_bytes(_LENGTH_BYTES, "big"))
    file.write(data)


def read_frames(file: BinaryIO) -> Iterator[Frame]:
    """Yield the frames of a state, without the last one.

    Raises:
        EOFError: If the state is incomplete.
    """
    file.seek(0)
    count = 0
    while True:
        length = file.read(_LENGTH_BYTES)
        size = int.from_bytes(length, "big") if len(length) == _LENGTH_BYTES else 0
        data = file.read(size)
        if not size or len(data) != size:
            raise EOFError
        frame = _decoder.decode(data)
        if isinstance(frame, EndOfState):
            if frame.frames != count:
                raise EOFError
            return
        count += 1
        yield frame
