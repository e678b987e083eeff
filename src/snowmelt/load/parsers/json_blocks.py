"""Many JSON objects at once by Arrow, where it makes of them what the exact way would."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa
import pyarrow.json as arrow_json

from snowmelt.load.parsers.layout import BOM
from snowmelt.schema.arrow import one_array
from snowmelt.schema.types import SEMI_STRUCTURED, Kind

if TYPE_CHECKING:
    from snowmelt.load.conversion import Conversion
    from snowmelt.load.parsers.json_documents import Paths
    from snowmelt.load.parsers.json_options import FlexJsonOptions

_DIRECT = {Kind.FIXED, Kind.REAL, Kind.BOOLEAN, Kind.TEXT}


class JsonBlocks:
    """Reads blocks of objects; remembers how keys are written, which Arrow must know before."""

    def __init__(self, conversion: Conversion, paths: Paths, options: FlexJsonOptions) -> None:
        self._columns = conversion.columns
        self._paths = paths
        self._strict = options.reject_on_materialized_type_error
        self._spelled: dict[int, tuple[str, ...]] = {}
        kinds = {column.column.kind for column in self._columns}
        self._can = not (
            kinds & SEMI_STRUCTURED
            or options.flatten_arrays
            or options.reject_on_duplicate
            or options.reject_on_empty_key
            or options.omit_empty_keys
            or options.suppress_nonalphanumeric_key_chars
            or options.start_point
        )

    def read(
        self, data: bytes, count: int | None = None, *, is_json: bool = False
    ) -> tuple[list[pa.Array], dict[int, tuple[str, str]]] | None:
        """Return native arrays and refused values by row; None if the exact way must be taken.

        `count` is how many objects there must be, if that is known; `is_json` says that they are
        known to be JSON.
        """
        if not self._can or not (is_json or _is_json(data)):
            return None
        if not self._spelled and not self._learn(data):
            return None
        read = self._read(data)
        if read is not None and self._learn_more(read.schema):
            read = self._read(data)
        if read is None or (count is not None and read.num_rows != count):
            return None
        return self._converted(read) if self._names_all(read.schema) else None

    def _learn(self, data: bytes) -> bool:
        end = data.find(b"\n")
        try:
            first = orjson.loads(data[: end if end >= 0 else None])
        except orjson.JSONDecodeError:
            return False
        if isinstance(first, dict):
            self._spelled = dict(self._paths.spelled(first))
        return bool(self._spelled)

    def _read(self, data: bytes) -> pa.Table | None:
        tree: dict[str, Any] = {}
        for place, path in self._spelled.items():
            inner = tree
            for key in path[:-1]:
                inner = inner.setdefault(key, {})
            inner[path[-1]] = self._type(place)
        try:
            return arrow_json.read_json(
                pa.BufferReader(data),
                arrow_json.ReadOptions(use_threads=False, block_size=len(data) + 1),
                arrow_json.ParseOptions(
                    explicit_schema=pa.schema(_fields(tree)),
                    newlines_in_values=True,
                    unexpected_field_behavior="infer",
                ),
            )
        except (pa.ArrowException, UnicodeDecodeError):
            return None

    def _type(self, place: int) -> pa.DataType:
        column = self._columns[place]
        direct = column.direct_type
        return direct if direct is not None and column.column.kind in _DIRECT else pa.string()

    def _learn_more(self, schema: pa.Schema) -> bool:
        """Remember paths of columns that had none before; tell whether there are any."""
        before = len(self._spelled)
        for place, path in self._paths.spelled(_record_of(schema)):
            self._spelled.setdefault(place, path)
        return len(self._spelled) > before

    def _names_all(self, schema: pa.Schema) -> bool:
        """Tell whether no column is written in two ways."""
        known = set(self._spelled.values())
        return all(path in known for _, path in self._paths.spelled(_record_of(schema)))

    def _converted(
        self, read: pa.Table
    ) -> tuple[list[pa.Array], dict[int, tuple[str, str]]] | None:
        arrays: list[pa.Array] = []
        refused: dict[int, tuple[str, str]] = {}
        for place, column in enumerate(self._columns):
            path = self._spelled.get(place)
            values = pa.nulls(read.num_rows, self._type(place)) if path is None else _at(read, path)
            parts = None
            if column.column.kind in _DIRECT and column.direct_type is not None:
                parts = column.finished(values)
                if parts is None:
                    return None
            else:
                parts, reasons = column.convert(values)
                if self._strict or not column.column.nullable:
                    name = column.column.display_name
                    refused |= {row: (name, reason) for row, reason in reasons.items()}
            arrays.extend(parts)
        return arrays, refused


def _is_json(data: bytes) -> bool:
    """Tell whether nothing is there that is no JSON, but that Arrow may take."""
    if data.startswith(BOM) or b"NaN" in data or b"Inf" in data:
        return False
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _fields(tree: dict[str, Any]) -> list[pa.Field]:
    return [
        pa.field(key, pa.struct(_fields(inner)) if isinstance(inner, dict) else inner)
        for key, inner in tree.items()
    ]


def _record_of(fields: pa.Schema | pa.StructType) -> dict[str, Any]:
    return {
        field.name: _record_of(field.type) if pa.types.is_struct(field.type) else None
        for field in fields
    }


def _at(read: pa.Table, path: tuple[str, ...]) -> pa.Array:
    values = one_array(read.column(path[0]))
    for key in path[1:]:
        # Flattening puts the parent's nulls into the child.
        names = [field.name for field in values.type]
        values = values.flatten()[names.index(key)]
    return values
