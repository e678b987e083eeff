"""`spark.read.format("snowmelt-select")`: objects of an S3 endpoint, filtered by the endpoint.

The source sends one SELECT with the columns and the option `where`. Each Spark task requests a byte
range of the object. Spark does not report the columns of a query to a Python source, and does not
report filters reliably. The schema or the option `columns` therefore selects the columns. Options:

* `path`: `s3://bucket/key`; `endpoint` (default `http://127.0.0.1:9000`), `accessKey` and
  `secretKey` (default: boto3's credential lookup)
* `input`: `csv`, `lines`, `json` or `parquet`; `compression`: `none`, `gzip`, `bzip2`, `zstd`
  (default: by the suffix of the key, else `csv` and `none`); for CSV `header` (`none`, `use`,
  `ignore`), `delimiter`, `recordDelimiter`, `quote`, `escape`, `comment`, `quotedRecords`
* `columns`: names, separated by commas (default: all); `where`: text of a WHERE clause, with
columns written as `s.name`; `dialect`
* `rangeBytes`: bytes per task (default 64 MiB); only uncompressed CSV and lines are split

Without a schema, the source infers one from the first records. CSV columns are strings, JSON values
keep their types, and decimals of Parquet stay decimals.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa
import pyarrow.json as pj
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema

from snowmelt.errors import UserError
from snowmelt.select.client import SelectEndpoint, select_object
from snowmelt.select.dialect import Dialect
from snowmelt.select.request import (
    CsvInput,
    GuessedForm,
    HeaderMode,
    InputFormat,
    JsonInput,
    JsonOutput,
    ObjectCompression,
    ParquetInput,
    ScanRange,
    SelectRequest,
    guess_form,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


FORMAT = "snowmelt-select"
_DEFAULT_ENDPOINT = "http://127.0.0.1:9000"
_DEFAULT_RANGE_BYTES = 64 * 1024 * 1024
_BLOCK_BYTES = 4 * 1024 * 1024
_FOOTER_BYTES = 64 * 1024
_SAMPLE_ROWS = 100
_POSITIONAL_COLUMN = re.compile(r"_[1-9][0-9]*")
_FORMAT_OPTIONS = (
    *("input", "compression", "header", "delimiter", "recorddelimiter"),
    *("quote", "escape", "comment", "quotedrecords"),
)
_OPTIONS = frozenset(
    (
        *("path", "endpoint", "accesskey", "secretkey", *_FORMAT_OPTIONS),
        *("columns", "where", "dialect", "rangebytes"),
    )
)


def register(spark: SparkSession) -> None:
    """Register the format with a session."""
    spark.dataSource.register(SelectSource)


class SelectSource(DataSource):
    """Spark data source `snowmelt-select`."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return FORMAT

    def schema(self) -> StructType:
        """Infer the columns from the first records. Called if the user gave no schema.

        Raises:
            SelectError: If the endpoint rejects the request.
            UserError: If an option is invalid, the object has no records, or a column has mixed types.
        """
        from pyspark.sql.pandas.types import from_arrow_schema

        asked = _SelectOptions.parse(self.options)
        if any(character in asked.key for character in "*?"):
            asked.read_head()
        found = b"".join(asked.stream_payloads(asked.build_sample_statement(), None))
        if not found:
            raise UserError(f"{asked.path} has no records to infer a schema from. Pass a schema.")
        try:
            schema = pj.read_json(pa.py_buffer(found)).schema
        except pa.ArrowInvalid as error:
            raise UserError(
                f"The first records of {asked.path} have values of several types in one column; "
                f"give a schema. ({error})"
            ) from error
        missing = [name for name in asked.columns if name not in schema.names]
        if missing:
            raise UserError(
                f"The first records of {asked.path} have no column {missing[0]}, which the option "
                f"columns names; they have {', '.join(schema.names) or 'none of the columns'}. Give "
                "a schema for nested values."
            )
        decimals = asked.read_decimal_types() if isinstance(asked.input, ParquetInput) else {}
        plain = [
            pa.field(each.name, decimals.get(each.name) or _to_supported_type(each.type))
            for each in schema
        ]
        return from_arrow_schema(pa.schema(plain))

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of these columns.

        Raises:
            UserError: If an option is invalid.
        """
        options = _SelectOptions.parse(self.options)
        if options.columns and sorted(options.columns) != sorted(schema.names):
            raise UserError(
                "The option columns differs from the schema. Omit the option: the schema already "
                "names the columns."
            )
        return SelectReader(options, schema)


@dataclass(frozen=True)
class SelectPartition(InputPartition):
    """Byte range that one task reads, of the object with this ETag.

    If the range is None, the task reads the whole object.
    """

    scan_range: ScanRange | None
    etag: str | None = None


class SelectReader(DataSourceReader):
    """Reader that requests one range of the object in each task."""

    def __init__(self, options: _SelectOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> Sequence[InputPartition]:
        """Return one partition per byte range of the object.

        Raises:
            UserError: If the object does not exist or the endpoint is unavailable.
        """
        return self._options.list_partitions()

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the records that begin in a range.

        Raises:
            SelectError: If the endpoint rejects the statement or fails while sending results.
            UserError: If a value does not fit its column, or the object was replaced after the first
                task had been planned.
        """
        assert isinstance(partition, SelectPartition)  # noqa: S101  always our own partition
        schema = to_arrow_schema(self._schema, timezone="UTC")
        payloads = self._options.stream_payloads(
            self._options.build_statement(schema.names), partition.scan_range
        )
        for block in _split_into_blocks(payloads):
            yield _to_record_batch(
                block, schema, is_text_input=isinstance(self._options.input, CsvInput)
            )
        # SelectObjectContent has no If-Match. An object that has the same ETag after the request had
        # it during the request.
        if partition.etag is not None and self._options.read_head()["ETag"] != partition.etag:
            raise UserError(
                f"{self._options.path} was replaced while tasks read its ranges. Run the query again."
            )


@dataclass(frozen=True)
class _SelectOptions:
    """Parsed and validated options."""

    path: str
    bucket: str
    key: str
    endpoint: SelectEndpoint
    input: InputFormat
    compression: ObjectCompression
    dialect: Dialect
    columns: tuple[str, ...]
    where: str
    range_bytes: int

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> _SelectOptions:
        given = {name.lower(): text for name, text in options.items()}
        unknown = sorted(given.keys() - _OPTIONS)
        if unknown:
            raise UserError(
                f"{FORMAT} has no option {unknown[0]}; it has {', '.join(sorted(_OPTIONS))}."
            )
        path = given.get("path", "")
        parts = urlsplit(path, allow_fragments=False)
        front, _, key = path.partition(f"{parts.scheme}://{parts.netloc}/")
        if parts.scheme not in {"s3", "s3a"} or not parts.netloc or front or not key:
            raise UserError(f"The path is {path!r}; it must be s3://bucket/key.")
        dialect = _parse_choice(Dialect, given, "dialect", "aws")
        guessed = guess_form(key)
        return cls(
            path=path,
            bucket=parts.netloc,
            key=key,
            endpoint=SelectEndpoint(
                given.get("endpoint", _DEFAULT_ENDPOINT),
                given.get("accesskey"),
                given.get("secretkey"),
            ),
            input=_parse_input(given, dialect, guessed),
            compression=_parse_choice(
                ObjectCompression, given, "compression", guessed.compression.value
            ),
            dialect=dialect,
            columns=tuple(filter(None, map(str.strip, given.get("columns", "").split(",")))),
            where=given.get("where", "").strip(),
            range_bytes=_parse_byte_count(given, "rangebytes", _DEFAULT_RANGE_BYTES),
        )

    def build_statement(self, columns: Sequence[str]) -> str:
        """Build the SELECT of these columns. Without columns it selects a constant for each record."""
        items = ", ".join(f"s.{_quote_identifier(name)}" for name in columns) or "1"
        return f"SELECT {items} FROM s3object s" + (f" WHERE {self.where}" if self.where else "")

    def build_sample_statement(self) -> str:
        """Build the SELECT of the first records, for schema inference."""
        items = ", ".join(f"s.{_quote_identifier(name)}" for name in self.columns) or "*"
        return f"SELECT {items} FROM s3object s LIMIT {_SAMPLE_ROWS}"

    def stream_payloads(self, statement: str, scan_range: ScanRange | None) -> Iterator[bytes]:
        request = SelectRequest(
            statement,
            input=self.input,
            output=JsonOutput(),
            compression=self.compression,
            scan_range=scan_range,
            dialect=self.dialect,
        )
        return select_object(self.endpoint.create_client(), self.bucket, self.key, request)

    def list_partitions(self) -> list[SelectPartition]:
        """Return partitions that cover the object."""
        if not self._is_splittable:
            return [SelectPartition(None)]
        head = self.read_head()
        size = int(head["ContentLength"])
        if size <= self.range_bytes:
            return [SelectPartition(None)]
        return [
            SelectPartition(
                ScanRange(start, min(start + self.range_bytes, size) - 1), str(head["ETag"])
            )
            for start in range(0, size, self.range_bytes)
        ]

    def read_decimal_types(self) -> dict[str, pa.DataType]:
        """Return the types of a Parquet object's decimal columns, which JSON results do not have."""
        footer = self._read_tail(_FOOTER_BYTES)
        length = int.from_bytes(footer[-8:-4], "little") + 8
        if length > len(footer):
            footer = self._read_tail(length)
        found = pq.read_schema(pa.BufferReader(footer))
        return {field.name: field.type for field in found if pa.types.is_decimal(field.type)}

    def _read_tail(self, count: int) -> bytes:
        from botocore.exceptions import BotoCoreError, ClientError

        client = self.endpoint.create_client()
        try:
            found = client.get_object(Bucket=self.bucket, Key=self.key, Range=f"bytes=-{count}")
            return bytes(found["Body"].read())
        except (BotoCoreError, ClientError) as error:
            raise UserError(f"{self.path} cannot be read: {error}") from error

    def read_head(self) -> dict[str, Any]:
        """Return size, ETag and other attributes of the object, as boto3 names them.

        Raises:
            UserError: If it does not exist or the endpoint is unavailable.
        """
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            return dict(self.endpoint.create_client().head_object(Bucket=self.bucket, Key=self.key))
        except (BotoCoreError, ClientError) as error:
            hint = " Only one object can be read: * and ? are not patterns here." * any(
                character in self.key for character in "*?"
            )
            raise UserError(f"{self.path} cannot be read: {error}.{hint}") from error

    @property
    def _is_splittable(self) -> bool:
        if self.compression is not ObjectCompression.NONE:
            return False
        if isinstance(self.input, CsvInput):
            return not self.input.quoted_record_delimiter
        return isinstance(self.input, JsonInput) and self.input.lines


def _parse_input(options: Mapping[str, str], dialect: Dialect, guessed: GuessedForm) -> InputFormat:
    form = options.get("input", guessed.input).lower()
    if form == "parquet":
        return ParquetInput()
    if form in {"json", "lines"}:
        return JsonInput(lines=form == "lines")
    if form != "csv":
        raise UserError(f"Invalid input {form!r}. Valid values: csv, lines, json, parquet.")
    aws = dialect is Dialect.AWS
    quote = options.get("quote", '"')
    return CsvInput(
        header=_parse_choice(HeaderMode, options, "header", "NONE"),
        record_delimiter=options.get("recorddelimiter", "\n").encode(),
        field_delimiter=options.get("delimiter", "\t" if guessed.delimiter else ",").encode(),
        quote=quote.encode(),
        escape=options.get("escape", quote if aws else "\\").encode(),
        comment=options.get("comment", "#" if aws else "").encode(),
        quoted_record_delimiter=options.get("quotedrecords", "false").lower() == "true",
    )


def _parse_choice(enum_type: Any, options: Mapping[str, str], name: str, default: str) -> Any:
    said = options.get(name, default)
    for each in enum_type:
        if each.value.lower() == said.lower():
            return each
    known = ", ".join(each.value.lower() for each in enum_type)
    raise UserError(f"Invalid option {name} {said!r}. Valid values: {known}.")


def _parse_byte_count(options: Mapping[str, str], name: str, default: int) -> int:
    said = options.get(name, str(default))
    if not said.isdigit() or int(said) < 1:
        raise UserError(f"Invalid option {name} {said!r}. Expected a number of bytes.")
    return int(said)


def _quote_identifier(name: str) -> str:
    return name if _POSITIONAL_COLUMN.fullmatch(name) else '"' + name.replace('"', '""') + '"'


def _to_supported_type(data_type: pa.DataType) -> pa.DataType:
    """Return the type if Spark columns support it, else string: nested values stay JSON text."""
    if (
        pa.types.is_null(data_type)
        or pa.types.is_nested(data_type)
        or pa.types.is_timestamp(data_type)
    ):
        return pa.string()
    return data_type


def _split_into_blocks(payloads: Iterator[bytes]) -> Iterator[bytes]:
    """Yield blocks of whole lines, about 4 MiB each."""
    parts: list[bytes] = []
    held = 0
    for payload in payloads:
        end = payload.rfind(b"\n") + 1
        parts.append(payload[:end])
        held += len(payload)
        if held >= _BLOCK_BYTES and end:
            yield b"".join(parts)
            parts, held = [payload[end:]], len(payload) - end
        elif end < len(payload):
            parts.append(payload[end:])
    if held:
        yield b"".join(parts)


def _to_record_batch(block: bytes, schema: pa.Schema, *, is_text_input: bool) -> pa.RecordBatch:
    """Convert lines of JSON to a batch with exactly this schema."""
    if not schema.names:
        rows = pa.array([None] * block.count(b"\n"), pa.null())
        return pa.RecordBatch.from_arrays([rows], names=["_"]).select([])
    if is_text_input:
        texts = [msgspec.json.decode(line) for line in block.splitlines()]
        arrays = [
            _convert_text_values([text.get(field.name) for text in texts], field)
            for field in schema
        ]
    else:
        records = [_record_decoder.decode(line) for line in block.splitlines()]
        arrays = [
            _convert_json_values([record.get(field.name, _NULL) for record in records], field)
            for field in schema
        ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


# Keep values as JSON text until the column's type is known, because doubles are inexact for
# decimals.
_record_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_exact_decoder = msgspec.json.Decoder(float_hook=Decimal)
_NULL = msgspec.Raw(b"null")


def _convert_text_values(values: list[Any], field: pa.Field) -> pa.Array:
    if not pa.types.is_string(field.type):
        # An empty CSV field is NULL in every type except string.
        values = [value if value != "" else None for value in values]
    return _cast_array(pa.array(values, pa.string()), field)


def _convert_json_values(texts: list[msgspec.Raw], field: pa.Field) -> pa.Array:
    if pa.types.is_string(field.type):
        return pa.array(map(_to_text, map(bytes, texts)), field.type)
    try:
        values = [_exact_decoder.decode(text) for text in texts]
        if pa.types.is_decimal(field.type):
            return pa.array([_to_decimal(value) for value in values], field.type)
        values = [_to_float_where_due(value, field.type) for value in values]
        if pa.types.is_nested(field.type) or not any(values):
            return pa.array(values, field.type)
        return _cast_array(pa.array(values), field)
    except (pa.ArrowInvalid, pa.ArrowTypeError, InvalidOperation) as error:
        raise _make_cast_error(field, error) from error


def _to_text(text: bytes) -> str | None:
    """Convert JSON text to the value of a string column. Numbers and nested values stay JSON text."""
    if text == b"null":
        return None
    return str(msgspec.json.decode(text)) if text.startswith(b'"') else text.decode()


def _to_decimal(value: object) -> object:
    return Decimal(value) if isinstance(value, str) else value


def _to_float_where_due(value: Any, kind: pa.DataType) -> Any:
    """Convert the decimals in a value to floats, except where the type has decimals."""
    if isinstance(value, dict) and pa.types.is_struct(kind):
        return {
            field.name: _to_float_where_due(value.get(field.name), field.type) for field in kind
        }
    if isinstance(value, list) and pa.types.is_list(kind):
        return [_to_float_where_due(each, kind.value_type) for each in value]
    if pa.types.is_decimal(kind):
        return _to_decimal(value)
    is_number = isinstance(value, Decimal | int) and not isinstance(value, bool)
    return float(value) if is_number and _holds_floats(value, kind) else value


def _holds_floats(value: Decimal | int, kind: pa.DataType) -> bool:
    return isinstance(value, Decimal) or pa.types.is_floating(kind)


def _cast_array(values: pa.Array, field: pa.Field) -> pa.Array:
    try:
        return values.cast(field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise _make_cast_error(field, error) from error


def _make_cast_error(field: pa.Field, error: Exception) -> UserError:
    return UserError(f"Column {field.name} does not fit {field.type}: {error}")
