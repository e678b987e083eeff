"""A SELECT sent to an endpoint, with boto3; the answer arrives as it is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from snowmelt.config import read_environment_variable
from snowmelt.errors import UserError
from snowmelt.select.errors import SelectError
from snowmelt.select.request import Compression, CsvInput, CsvOutput, JsonInput

if TYPE_CHECKING:
    from collections.abc import Iterator

    from snowmelt.select.request import Input, Output, SelectRequest

DIALECT_HEADER = "x-snowmelt-select-dialect"
OBJECTS_HEADER = "x-snowmelt-select-objects"

_REGION = "us-east-1"
# Where other S3 clients look for it, too.
_REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")
_PATIENCE_S = 300


def _region() -> str:
    found = (read_environment_variable(name) for name in _REGION_VARIABLES)
    return next(filter(None, found), _REGION)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to ask; keys that are None come from where boto3 looks for them."""

    url: str
    access_key: str | None = None
    secret_key: str | None = None

    def client(self) -> Any:
        """Return a boto3 client; addresses are host/bucket/key, which every endpoint knows.

        Raises:
            UserError: boto3 is not installed.
        """
        try:
            import boto3
            from botocore.config import Config
        except ModuleNotFoundError as error:
            raise UserError(
                "Asking an endpoint needs boto3; pip install 'snowmelt[select]'."
            ) from error

        return boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name=_region(),
            config=Config(
                s3={"addressing_style": "path"},
                read_timeout=_PATIENCE_S,
                retries={"mode": "standard", "max_attempts": 4},
            ),
        )


def ask(
    client: Any, bucket: str, key: str, request: SelectRequest, *, many: bool = False
) -> Iterator[bytes]:
    """Yield the payloads of an answer; with `many` the key is a prefix or holds `*`, `?`, `**`.

    Raises:
        SelectError: The endpoint refused the request, or ended the answer in the middle.
    """
    from botocore.exceptions import ClientError, EventStreamError

    headers = {DIALECT_HEADER: request.dialect.value}
    if many:
        headers[OBJECTS_HEADER] = "many"

    def add_headers(request: Any, **_: object) -> None:
        for name, value in headers.items():
            request.headers[name] = value

    client.meta.events.register("before-sign.s3.SelectObjectContent", add_headers)
    try:
        answer = client.select_object_content(Bucket=bucket, Key=key, **_parameters(request))
        ended = False
        for event in answer["Payload"]:
            ended = "End" in event
            if "Records" in event:
                yield event["Records"]["Payload"]
        if not ended:
            raise SelectError("TruncatedInput", "The endpoint broke off before the answer's end.")
    except (ClientError, EventStreamError) as error:
        said = error.response.get("Error", {})
        code = str(said.get("Code", "InternalError"))
        raise SelectError(code, f"{bucket}/{key}: {said.get('Message', code)}") from error
    finally:
        client.meta.events.unregister("before-sign.s3.SelectObjectContent", add_headers)


def _parameters(request: SelectRequest) -> dict[str, Any]:
    parameters: dict[str, Any] = {
        "Expression": request.expression,
        "ExpressionType": "SQL",
        "InputSerialization": _input(request.input),
        "OutputSerialization": _output(request.output),
        "RequestProgress": {"Enabled": request.progress},
    }
    if request.compression is not Compression.NONE:
        parameters["InputSerialization"]["CompressionType"] = request.compression.value
    if request.scan_range is not None:
        ends = {"Start": request.scan_range.start, "End": request.scan_range.end}
        parameters["ScanRange"] = {name: at for name, at in ends.items() if at is not None}
    return parameters


def _input(form: Input) -> dict[str, Any]:
    if isinstance(form, CsvInput):
        return {
            "CSV": {
                "FileHeaderInfo": form.header.value,
                "RecordDelimiter": form.record_delimiter.decode(),
                "FieldDelimiter": form.field_delimiter.decode(),
                "QuoteCharacter": form.quote.decode(),
                "QuoteEscapeCharacter": form.escape.decode(),
                "Comments": form.comment.decode(),
                "AllowQuotedRecordDelimiter": form.quoted_record_delimiter,
            }
        }
    if isinstance(form, JsonInput):
        return {"JSON": {"Type": "LINES" if form.lines else "DOCUMENT"}}
    return {"Parquet": {}}


def _output(form: Output) -> dict[str, Any]:
    if isinstance(form, CsvOutput):
        return {
            "CSV": {
                **({"QuoteFields": "ALWAYS"} if form.quote_always else {}),
                "RecordDelimiter": form.record_delimiter.decode(),
                "FieldDelimiter": form.field_delimiter.decode(),
                "QuoteCharacter": form.quote.decode(),
                "QuoteEscapeCharacter": form.escape.decode(),
            }
        }
    return {"JSON": {"RecordDelimiter": form.record_delimiter.decode()}}
