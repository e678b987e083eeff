"""Messages between the sites of a failover group.

Requests are JSON over POST, with the token of a user that has the privilege REPLICATE. Responses
are MessagePack. The exception is `wire.sites.SiteState`, which is JSON and needs no token.

The follower sends all requests. A request also confirms the follower's last state. A primary
therefore needs no credentials of its followers. A follower that is down delays only offset tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

import msgspec

from snowmelt.backup.manifests import StoreName
from snowmelt.catalog.objects.failover_groups import ReportedChannel, TokenMode

# Maximum bytes of one read of an object.
READ_BYTES = 8 << 20
# Name of the lease that the pulling process of a site holds.
FOLLOWER_LEASE = "replica"

_LENGTH_BYTES = 8


class PullRequest(msgspec.Struct, kw_only=True):
    """Request for the changes since a state.

    Attributes:
        group: Name of the group.
        site: Name of the follower.
        site_number: Number of the follower, or 0 if it has none yet.
        url: URL of the follower, or None if it has none.
        epoch: Epoch of the follower's state, or -1 before its first state.
        point: Number of the follower's state. None: request the whole state.
        sequences: Last commit sequence of each table at the follower, by table ID.
        reported: State at the follower of channels that changed since its last request.
        public_key: Public X25519 key in base64, with which the primary seals keys.
        wait_s: Maximum time to wait for changes, in seconds.
        closes: True to stop writes at the primary, for a switch to the follower.
        keeps: True if the follower is still copying. The primary then retains objects and sends
            no state.
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
    """A state of the primary, as the changes since the follower's state.

    Attributes:
        role: Role of the responding site. The response has a state only if this is the primary.
        epoch: Epoch of the responding site.
        point: Number of the state.
        since: Number of the state before the changes. None: the content is the whole state.
        has_changes: True if there are changes.
        handed_over: True if the follower has all changes and must become the primary.
        sites: Names of all sites of the group.
        tokens: Mode that determines which offset tokens the primary reports (`TokenMode`).
        protected_from: Number of the first state that allows a promotion of the follower, or None.
        state_at: Time of the state by the primary's clock, in microseconds since 1970.
        content: The changes, if they have at most 1 MiB.
        content_path: Path of larger changes in the stage of the primary.
        content_bytes: Size of the changes in bytes.
        blobs: Contents of blobs of new chunks by path in the stage. The follower requests the others.
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
    blobs: dict[str, bytes] = msgspec.field(default_factory=dict)


class ReadRequest(msgspec.Struct, kw_only=True):
    """Request for a range of an object."""

    group: str
    store: StoreName
    path: str
    offset: int = 0
    length: int = READ_BYTES


class ReadBlobsRequest(msgspec.Struct, kw_only=True):
    """Request for whole blobs of the stage, many at a time to reduce the load on the primary."""

    group: str
    paths: list[str]


class ReadBlobsResponse(msgspec.Struct):
    """Contents of one or more requested blobs, in order, up to `READ_BYTES` in total.

    The content of a blob that does not exist is None.
    """

    contents: list[bytes | None]


class ReadResponse(msgspec.Struct):
    """Bytes of an object, and the size of the object. `size` is -1 if the object does not exist."""

    size: int
    content: bytes = b""


class ExportRequest(msgspec.Struct):
    """Request of a follower, from the service to its export process.

    `path` is the path of the route, and `response` the response to a pull without its changes.
    """

    path: str
    body: bytes
    response: PullResponse | None = None


class TableHeader(msgspec.Struct, array_like=True, tag="table"):
    """First frame of a table. The frames up to the next header belong to the table."""

    name: str
    columns: tuple[str, ...]
    last_id: int | None


class TableRows(msgspec.Struct, array_like=True, tag="rows"):
    """Rows to write, with stored values in the order of the columns."""

    rows: list[list[Any]]


class DeletedKeys(msgspec.Struct, array_like=True, tag="deleted"):
    """Primary keys of deleted rows."""

    keys: list[list[Any]]


class EndOfState(msgspec.Struct, array_like=True, tag="end"):
    """Last frame of a state, with the number of previous frames. Without it, content is missing."""

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
    """Yield the frames of a state, except its `EndOfState`.

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
