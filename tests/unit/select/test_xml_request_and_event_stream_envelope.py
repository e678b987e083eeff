"""Requests as boto3 writes them, and what is said of broken ones."""

from __future__ import annotations

import botocore.session
import pytest
from botocore.serialize import create_serializer

from snowmelt.select.dialect import Dialect
from snowmelt.select.errors import SelectError
from snowmelt.select.request import (
    CsvInput,
    CsvOutput,
    HeaderMode,
    JsonInput,
    JsonOutput,
    ObjectCompression,
    ParquetInput,
    ScanRange,
)
from snowmelt.select.xml_request_and_event_stream import parse_select_request

_MODEL = botocore.session.get_session().get_service_model("s3")
_OPERATION = _MODEL.operation_model("SelectObjectContent")


def _body(**changes: object) -> bytes:
    parameters = {
        "Bucket": "b",
        "Key": "k",
        "Expression": "select * from s3object",
        "ExpressionType": "SQL",
        "InputSerialization": {"CSV": {}},
        "OutputSerialization": {"CSV": {}},
        **changes,
    }
    serializer = create_serializer(_MODEL.metadata["protocol"], include_validation=False)
    body: bytes = serializer.serialize_to_request(parameters, _OPERATION)["body"]
    return body


def _error(body: bytes) -> SelectError:
    with pytest.raises(SelectError) as caught:
        parse_select_request(body)
    return caught.value


def test_what_is_left_out_takes_the_default_of_aws() -> None:
    request = parse_select_request(_body())
    assert request.expression == "select * from s3object"
    assert request.input == CsvInput()
    assert request.output == CsvOutput()
    assert request.compression is ObjectCompression.NONE
    assert (request.scan_range, request.progress) == (None, False)


def test_ceph_escapes_with_a_backslash_and_knows_no_comments() -> None:
    request = parse_select_request(_body(), dialect=Dialect.CEPH)
    assert request.input == CsvInput(escape=b"\\", comment=b"")


@pytest.mark.parametrize(
    "delimiter", ["\n", "\r\n", "\r", "\x01", "\x1e", " ", "\t", "||", "þ", "<", "&", "#\r"]
)
def test_a_delimiter_arrives_as_the_caller_gave_it(delimiter: str) -> None:
    form = {"CSV": {"RecordDelimiter": delimiter, "FieldDelimiter": delimiter}}
    request = parse_select_request(_body(InputSerialization=form))
    assert isinstance(request.input, CsvInput)
    assert request.input.record_delimiter == delimiter.encode()
    assert request.input.field_delimiter == delimiter.encode()


def test_the_expression_keeps_its_line_breaks_and_signs() -> None:
    text = "select _1\r\nfrom s3object\n where _1 < 3 and _2 <> '&amp;'"
    assert parse_select_request(_body(Expression=text)).expression == text


def test_every_option_of_csv_is_read() -> None:
    form = {
        "CSV": {
            "FileHeaderInfo": "USE",
            "Comments": "%",
            "QuoteEscapeCharacter": "\\",
            "QuoteCharacter": "'",
            "AllowQuotedRecordDelimiter": True,
        },
        "CompressionType": "GZIP",
    }
    request = parse_select_request(
        _body(InputSerialization=form, RequestProgress={"Enabled": True})
    )
    assert request.input == CsvInput(
        header=HeaderMode.USE,
        comment=b"%",
        escape=b"\\",
        quote=b"'",
        quoted_record_delimiter=True,
    )
    assert request.compression is ObjectCompression.GZIP
    assert request.progress


def test_a_quote_of_ones_own_is_escaped_by_itself_unless_said() -> None:
    request = parse_select_request(_body(InputSerialization={"CSV": {"QuoteCharacter": "'"}}))
    assert request.input == CsvInput(quote=b"'", escape=b"'")


def test_json_parquet_outputs_and_scan_ranges_are_read() -> None:
    request = parse_select_request(
        _body(
            InputSerialization={"JSON": {"Type": "LINES"}},
            OutputSerialization={"JSON": {"RecordDelimiter": "\r\n"}},
            ScanRange={"Start": 5, "End": 9},
        )
    )
    assert request.input == JsonInput(lines=True)
    assert request.output == JsonOutput(b"\r\n")
    assert request.scan_range == ScanRange(5, 9)
    assert parse_select_request(_body(InputSerialization={"Parquet": {}})).input == ParquetInput()
    document = parse_select_request(_body(InputSerialization={"JSON": {}})).input
    assert document == JsonInput(lines=False)
    quoted = parse_select_request(_body(OutputSerialization={"CSV": {"QuoteFields": "ALWAYS"}}))
    assert quoted.output == CsvOutput(quote_always=True)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"ExpressionType": "PartiQL"}, "InvalidExpressionType"),
        ({"InputSerialization": {}}, "MissingRequiredParameter"),
        ({"InputSerialization": {"CSV": {}, "JSON": {}}}, "ObjectSerializationConflict"),
        ({"OutputSerialization": {"CSV": {}, "JSON": {}}}, "ObjectSerializationConflict"),
        ({"InputSerialization": {"CSV": {"FileHeaderInfo": "MAYBE"}}}, "InvalidFileHeaderInfo"),
        ({"InputSerialization": {"CSV": {"FieldDelimiter": ""}}}, "InvalidRequestParameter"),
        ({"InputSerialization": {"JSON": {"Type": "ROWS"}}}, "InvalidJsonType"),
        ({"InputSerialization": {"CSV": {}, "CompressionType": "RAR"}}, "InvalidCompressionFormat"),
        (
            {"InputSerialization": {"Parquet": {}, "CompressionType": "GZIP"}},
            "InvalidCompressionFormat",
        ),
        ({"OutputSerialization": {"CSV": {"QuoteFields": "NEVER"}}}, "InvalidQuoteFields"),
        ({"ScanRange": {"Start": 9, "End": 3}}, "InvalidScanRange"),
        ({"ScanRange": {}}, "InvalidScanRange"),
        ({"ScanRange": {"Start": -1}}, "InvalidScanRange"),
    ],
)
def test_a_wrong_option_has_its_own_code(changes: dict[str, object], code: str) -> None:
    assert _error(_body(**changes)).s3_code == code


def test_a_missing_expression_is_named() -> None:
    error = _error(b"<SelectRequest><ExpressionType>SQL</ExpressionType></SelectRequest>")
    assert error.s3_code == "MissingRequiredParameter"
    assert "<Expression>" in str(error)


def test_a_misspelt_option_is_named_and_not_ignored() -> None:
    body = _body().replace(b"<CSV />", b"<CSV><FieldDelimeter>;</FieldDelimeter></CSV>", 1)
    error = _error(body)
    assert error.s3_code == "MalformedXML"
    assert "FieldDelimeter" in str(error)
    assert "FieldDelimiter" in str(error)


def test_another_document_is_refused() -> None:
    assert _error(b"<Delete/>").s3_code == "MalformedXML"
