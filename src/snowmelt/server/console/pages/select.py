"""Page Select: a SELECT on an object of a bucket, with equivalents for boto3 and the AWS CLI."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

from snowmelt.catalog.model.records import PUBLIC
from snowmelt.catalog.objects import s3_buckets
from snowmelt.catalog.objects.s3_objects import decode_key, list_objects, prefix_end
from snowmelt.errors import SnowmeltError
from snowmelt.server.console.layout import (
    RESULT,
    ConsolePage,
    choice_field,
    data_table,
    empty,
    end_sentence,
    figures,
    filter_form,
    form,
    format_bytes,
    format_number,
    format_quantity,
    format_seconds,
    link,
    panel,
    text_field,
)
from snowmelt.server.console.markup import EMPTY, Html, cut, join, tag
from snowmelt.server.console.pages.action import ActionRequest
from snowmelt.server.console.request import PageRequest
from snowmelt.server.console.workers import PreviewTask, SelectResult, SelectTask

_FORMS = (
    ("", "determined by the key"),
    ("csv", "CSV"),
    ("lines", "JSON lines"),
    ("json", "JSON"),
    ("parquet", "Parquet"),
)
_HEADERS = (
    ("use", "first line has names"),
    ("ignore", "skip the first line"),
    ("none", "no header"),
)
_DEFAULT_SQL = "SELECT * FROM S3Object s LIMIT 10"
_OBJECT_TABLE = re.compile(r"\bS3Object\b", re.IGNORECASE)
_FROM = re.compile(r"\bFROM\b", re.IGNORECASE)
_MAX_ROWS = 1_000
_MAX_LISTED = 100


async def show_select(request: ActionRequest) -> ConsolePage:
    """Return the lists of buckets and objects, the form, and the result of a sent SELECT."""
    given = {**request.query, **request.fields}
    bucket, key = given.get("bucket", ""), given.get("key", "")
    listing = await request.read(lambda page: _render_objects(page, bucket))
    blocks: list[Html] = [listing]
    copies: dict[str, str] = {}
    if bucket and key:
        sql = given.get("sql") or _DEFAULT_SQL
        blocks = [_render_form(request, given, sql)]
        if request.fields:
            blocks.append(tag("div", await _render_result(request, given, sql), id=RESULT))
        blocks += [await _render_preview(request, given), listing]
        copies = _make_copies(request, bucket, key, sql, given)
    return ConsolePage(
        "Select from a file",
        "What is in this object?",
        blocks,
        section="Select from a file",
        copies=copies,
        copies_title="This SELECT in a terminal, in Python (boto3) and with the AWS CLI",
    )


def _render_form(request: ActionRequest, given: dict[str, str], sql: str) -> Html:
    return form(
        "/select",
        request.session,
        tag(
            "div",
            text_field("bucket", "Bucket", given["bucket"], required=True),
            text_field("key", "Object", given["key"], required=True),
            choice_field("form", "Form", given.get("form", ""), _FORMS),
            choice_field("header", "Header of CSV", given.get("header", "use"), _HEADERS),
            class_="fields",
        ),
        tag(
            "label",
            tag("span", "Statement (Ctrl-Enter runs it)"),
            tag("textarea", sql, name="sql", rows="3", spellcheck="false", required=True),
        ),
        tag("button", "Run"),
        fragment=RESULT,
    )


async def _select(request: ActionRequest, given: dict[str, str], sql: str) -> SelectResult:
    task = SelectTask(
        roles=[request.session.role, PUBLIC],
        bucket=given["bucket"],
        key=given["key"],
        sql=sql,
        form=given.get("form", ""),
        header=given.get("header", "use"),
        max_rows=_MAX_ROWS,
    )
    return await request.parts.workers.select(task)


async def _render_preview(request: ActionRequest, given: dict[str, str]) -> Html:
    """Return the columns and first records of the object, as help for writing a SELECT."""
    task = PreviewTask(
        roles=[request.session.role, PUBLIC],
        bucket=given["bucket"],
        key=given["key"],
        form=given.get("form", ""),
        header=given.get("header", "use"),
    )
    try:
        found = await request.parts.workers.preview(task)
    except SnowmeltError as error:
        return panel("First records", tag("p", str(error), class_="error"))
    if not found.columns:
        return panel("First records", empty("The object has no record."))
    width = len(found.columns)
    rows = [[*map(cut, row[:width]), *[""] * (width - len(row))] for row in found.rows]
    caption = f"{format_quantity(len(found.columns), 'column')}, the first records of the object"
    return panel("First records", data_table(found.columns, rows, caption=caption))


async def _render_result(request: ActionRequest, given: dict[str, str], sql: str) -> Html:
    try:
        found = await _select(request, given, sql)
    except (SnowmeltError, ValueError) as error:
        pointer = EMPTY
        if _FROM.search(sql) and not _OBJECT_TABLE.search(sql):
            pointer = join(
                " A file is queried as S3Object. For tables: ",
                link("Query tables", "/query", sql=sql),
                ".",
            )
        return tag("p", end_sentence(str(error)), pointer, class_="error", role="alert")
    speed = found.scanned_bytes / found.seconds if found.seconds else 0.0
    return panel(
        "Result",
        _render_records(found.rows, "Records of the result"),
        figures(
            (
                (
                    "Rows",
                    format_number(len(found.rows)),
                    "" if found.is_complete else "first records only",
                ),
                ("Scanned", format_bytes(found.scanned_bytes), f"{format_bytes(speed)}/s"),
                ("Returned", format_bytes(found.returned_bytes), ""),
                ("Took", format_seconds(found.seconds), ""),
            )
        ),
    )


def _render_records(lines: list[str], caption: str) -> Html:
    records = [_parse_record(line) for line in lines]
    columns = list(dict.fromkeys(name for record in records for name in record))
    if not records or not columns:
        return empty("No record.")
    rows = [
        [cut(_to_text(record[name])) if name in record else EMPTY for name in columns]
        for record in records
    ]
    return data_table(columns, rows, caption=caption)


def _parse_record(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {"record": line}
    return found if isinstance(found, dict) else {"record": found}


def _to_text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _render_objects(page: PageRequest, name: str) -> Html:
    """Return the buckets of the role, or the objects of one bucket with a prefix."""
    prefix = page.get("prefix")
    roles = (page.session.role, PUBLIC)
    visible = [
        each
        for each in s3_buckets.list_buckets(page.connection)
        if not s3_buckets.bucket_privileges(page.connection, roles, each).is_empty
    ]
    chosen = next((each for each in visible if each.name == name), None)
    if chosen is None:
        if not visible:
            return empty(
                "There is no bucket, or this role may read none. Create one and put an object:",
                'snowmelt sql "CREATE BUCKET data"',
                "aws s3 cp people.csv s3://data/ --endpoint-url http://127.0.0.1:9000",
            )
        rows = [
            (
                link(each.name, "/select", bucket=each.name),
                each.owner,
                each.backend or "local files",
            )
            for each in visible
        ]
        return panel(
            "Buckets", data_table(("bucket", "owner", "place"), rows, caption="Choose a bucket")
        )
    controls = filter_form(
        "/select",
        tag("input", type="hidden", name="bucket", value=chosen.name),
        text_field("prefix", "Prefix of the objects", prefix, autocomplete="off"),
    )
    if chosen.backend is not None:
        return panel(
            f"Objects of {chosen.name}",
            filter_form(
                "/select",
                tag("input", type="hidden", name="bucket", value=chosen.name),
                text_field("key", "Name of the object", "", required=True),
            ),
            empty("Objects of a bucket with a backend are listed by the S3 endpoint."),
        )
    privileges = s3_buckets.bucket_privileges(page.connection, roles, chosen)
    found = [
        each
        for each in list_objects(
            page.connection,
            chosen.bucket_id,
            prefix.encode(),
            inclusive=True,
            end_key=prefix_end(prefix.encode()),
            limit=_MAX_LISTED,
        )
        if privileges.allows("READ", each.key)
    ]
    if not found:
        return panel(f"Objects of {chosen.name}", controls, empty("No object has this prefix."))
    rows = [
        (
            link(decode_key(each.key), "/select", bucket=chosen.name, key=decode_key(each.key)),
            format_bytes(each.size),
            each.modified_at.strftime("%Y-%m-%d %H:%M UTC"),
        )
        for each in found
    ]
    return panel(
        f"Objects of {chosen.name}",
        controls,
        data_table(
            ("object", "size", "modified"),
            rows,
            caption=f"The first {_MAX_LISTED} objects at most",
            numeric="size",
        ),
    )


def _make_copies(
    request: ActionRequest, bucket: str, key: str, sql: str, given: dict[str, str]
) -> dict[str, str]:
    settings = request.parts.settings
    scheme = "https" if settings.tls_cert else "http"
    endpoint = f"{scheme}://127.0.0.1:{settings.s3_port or 9000}"
    form_name = given.get("form") or ("csv" if key.endswith((".csv", ".tsv", ".gz")) else "lines")
    inputs: dict[str, object] = {
        "parquet": {"Parquet": {}},
        "lines": {"JSON": {"Type": "LINES"}},
        "json": {"JSON": {"Type": "DOCUMENT"}},
    }.get(form_name, {"CSV": {"FileHeaderInfo": given.get("header", "use").upper()}})  # type: ignore[assignment]
    packed = {"InputSerialization": inputs, "OutputSerialization": {"JSON": {}}}
    python = (
        f'boto3.client("s3", endpoint_url={endpoint!r}).select_object_content(Bucket={bucket!r},'
        f' Key={key!r}, Expression={sql!r}, ExpressionType="SQL",'
        f" InputSerialization={inputs!r}, OutputSerialization={{'JSON': {{}}}})"
    )
    command = " ".join(
        shlex.quote(each)
        for each in (
            *("aws", "--endpoint-url", endpoint, "s3api", "select-object-content"),
            *("--bucket", bucket, "--key", key, "--expression", sql, "--expression-type", "SQL"),
            *("--input-serialization", json.dumps(packed["InputSerialization"])),
            *("--output-serialization", json.dumps(packed["OutputSerialization"]), "/dev/stdout"),
        )
    )
    terminal = f"snowmelt select {shlex.quote(f's3://{bucket}/{key}')} {shlex.quote(sql)}"
    return {"terminal": terminal, "Python (boto3)": python, "AWS CLI": command}
