"""Client for SelectObjectContent: sends requests with boto3 and streams the response payloads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from snowmelt.config import read_environment_variable
from snowmelt.errors import UserError
from snowmelt.select.errors import SelectError
from snowmelt.select.request import (
    CsvInput,
    CsvOutput,
    InputFormat,
    JsonInput,
    ObjectCompression,
    OutputFormat,
    SelectRequest,
)

DIALECT_HEADER = "x-snowmelt-select-dialect"
OBJECTS_HEADER = "x-snowmelt-select-objects"

_DEFAULT_REGION = "us-east-1"
# Environment variables that other S3 clients also read.
_REGION_VARIABLES = ("AWS_REGION", "AWS_DEFAULT_REGION")
_READ_TIMEOUT_S = 300


def _find_region() -> str:
    found = (read_environment_variable(name) for name in _REGION_VARIABLES)
    return next(filter(None, found), _DEFAULT_REGION)


@dataclass(frozen=True, slots=True)
class SelectEndpoint:
    """URL and credentials of an S3 endpoint.

    If a key is None, boto3's credential chain supplies it.
    """

    url: str
    access_key: str | None = None
    secret_key: str | None = None

    def create_client(self) -> Any:
        """Return a boto3 client that uses path-style addresses, which every endpoint supports.

        Raises:
            UserError: If boto3 is not installed.
        """
        try:
            import boto3
            from botocore.config import Config
        except ModuleNotFoundError as error:
            raise UserError(
                "A query of an S3 endpoint needs boto3. Run: pip install 'snowmelt[select]'."
            ) from error

        return boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name=_find_region(),
            config=Config(
                s3={"addressing_style": "path"},
                read_timeout=_READ_TIMEOUT_S,
                retries={"mode": "standard", "max_attempts": 4},
            ),
        )


def select_object(
    client: Any, bucket: str, key: str, request: SelectRequest, *, key_is_pattern: bool = False
) -> Iterator[bytes]:
    """Yield the payloads of a response.

    With `key_is_pattern`, the key is a prefix or contains `*`, `?` or `**`.

    Raises:
        SelectError: If the endpoint rejects the request or ends the response early.
        UserError: If there is no access key.
    """
    from botocore.exceptions import ClientError, EventStreamError, NoCredentialsError

    headers = {DIALECT_HEADER: request.dialect.value}
    if key_is_pattern:
        headers[OBJECTS_HEADER] = "many"

    def add_headers(request: Any, **_: object) -> None:
        for name, value in headers.items():
            request.headers[name] = value

    client.meta.events.register("before-sign.s3.SelectObjectContent", add_headers)
    try:
        answer = client.select_object_content(
            Bucket=bucket, Key=key, **_make_api_parameters(request)
        )
        ended = False
        for event in answer["Payload"]:
            ended = "End" in event
            if "Records" in event:
                yield event["Records"]["Payload"]
        if not ended:
            raise SelectError(
                "TruncatedInput",
                "The endpoint closed the connection before the end of the result. Retry the query.",
            )
    except NoCredentialsError:
        raise UserError(
            "There is no access key. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, for example with "
            'eval "$(snowmelt user access-key NAME)", which makes a key of a user.'
        ) from None
    except (ClientError, EventStreamError) as error:
        said = error.response.get("Error", {})
        code = str(said.get("Code", "InternalError"))
        raise SelectError(code, f"{bucket}/{key}: {said.get('Message', code)}") from error
    finally:
        client.meta.events.unregister("before-sign.s3.SelectObjectContent", add_headers)


def _make_api_parameters(request: SelectRequest) -> dict[str, Any]:
    parameters: dict[str, Any] = {
        "Expression": request.expression,
        "ExpressionType": "SQL",
        "InputSerialization": _encode_input(request.input),
        "OutputSerialization": _encode_output(request.output),
        "RequestProgress": {"Enabled": request.progress},
    }
    if request.compression is not ObjectCompression.NONE:
        parameters["InputSerialization"]["CompressionType"] = request.compression.value
    if request.scan_range is not None:
        ends = {"Start": request.scan_range.start, "End": request.scan_range.end}
        parameters["ScanRange"] = {name: at for name, at in ends.items() if at is not None}
    return parameters


def _encode_input(input_format: InputFormat) -> dict[str, Any]:
    if isinstance(input_format, CsvInput):
        return {
            "CSV": {
                "FileHeaderInfo": input_format.header.value,
                "RecordDelimiter": input_format.record_delimiter.decode(),
                "FieldDelimiter": input_format.field_delimiter.decode(),
                "QuoteCharacter": input_format.quote.decode(),
                "QuoteEscapeCharacter": input_format.escape.decode(),
                "Comments": input_format.comment.decode(),
                "AllowQuotedRecordDelimiter": input_format.quoted_record_delimiter,
            }
        }
    if isinstance(input_format, JsonInput):
        return {"JSON": {"Type": "LINES" if input_format.lines else "DOCUMENT"}}
    return {"Parquet": {}}


def _encode_output(output_format: OutputFormat) -> dict[str, Any]:
    if isinstance(output_format, CsvOutput):
        return {
            "CSV": {
                **({"QuoteFields": "ALWAYS"} if output_format.quote_always else {}),
                "RecordDelimiter": output_format.record_delimiter.decode(),
                "FieldDelimiter": output_format.field_delimiter.decode(),
                "QuoteCharacter": output_format.quote.decode(),
                "QuoteEscapeCharacter": output_format.escape.decode(),
            }
        }
    return {"JSON": {"RecordDelimiter": output_format.record_delimiter.decode()}}
