"""A service answers batches by its functions, and everything else by a sentence."""

from __future__ import annotations

import base64
import datetime as dt
import gzip
import hashlib
import json
from decimal import Decimal
from typing import Annotated, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.functions.errors import DeclarationInvalid
from snowmelt.functions.service import (
    Context,
    Limits,
    Overloaded,
    PermanentError,
    RemoteService,
    ServiceOptions,
)
from snowmelt.functions.wire.headers import encode_base64
from snowmelt.json import exact
from support import functions_service as kit


@pytest.fixture
def svc():
    service = RemoteService("geo", options=ServiceOptions(content_md5=True))

    @service.function
    def city(lat: float, lon: float) -> str | None:
        return f"{lat:.0f}/{lon:.0f}" if lat > 0 else None

    @service.function(blocking=False)
    def inverse(n: int) -> float:
        return 1 / n

    @service.function(mode="batch", blocking=False)
    def lengths(texts: list[str | None]) -> list[int]:
        return [-1 if text is None else len(text) for text in texts]

    return service


def test_a_batch_is_answered_over_http(svc):
    with kit.hosted(svc.asgi()) as url, kit.client(url) as client:
        reply = client.post("/city", json={"data": [[0, 52.4, 21], [1, -1.0, 0.0]]})
        assert reply.status_code == 200
        assert reply.json() == {"data": [[0, "52/21"], [1, None]]}
        digest = hashlib.md5(reply.content).digest()
        assert reply.headers["content-md5"] == base64.b64encode(digest).decode()
        assert client.get("/").json()["service"] == "geo"


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/stage/city", {}),
        ("/CITY/", {}),
        ("/", {"sf_external_function_name": "CITY"}),
        (
            "/",
            {
                "sf_external_function_name": "x",
                "sf_external_function_name_base64": encode_base64("City"),
            },
        ),
        ("/", {"sf_external_function_name": 'DEMO.PUBLIC."city"'}),
    ],
)
def test_a_function_is_found_by_path_or_by_header(svc, path, headers):
    assert kit.values(kit.ask(svc, [1.0, 2.0], path=path, **headers)) == ["1/2"]


def test_an_unknown_function_is_404(svc):
    assert kit.ask(svc, [1], path="/nothing").status == 404


def test_other_methods_are_refused(svc):
    assert kit.ask(svc, method="PUT").status == 405


def test_a_null_that_a_function_does_not_want_makes_its_row_null(svc):
    assert kit.values(kit.ask(svc, [None, 1.0], [1.0, 1.0], [2.0, None], path="/city")) == [
        None,
        "1/1",
        None,
    ]
    assert kit.values(kit.ask(svc, ["ab"], [None], path="/lengths")) == [2, -1]


def test_no_null_reaches_an_argument_of_a_written_type():
    svc = RemoteService("decimals")

    @svc.function
    def price(a: Annotated[Decimal, "NUMBER(12,2)"]) -> str:
        return str(a)

    @svc.function(mode="batch")
    def document(a: list[Annotated[dict[str, str], "VARIANT"]]) -> list[str]:
        return [each["k"] for each in a]

    assert kit.values(kit.ask(svc, ["1.5"], [None], [2], path="/price")) == ["1.50", None, "2.00"]
    assert kit.values(kit.ask(svc, [{"k": "v"}], [None], path="/document")) == ["v", None]


@pytest.mark.parametrize(
    ("mode", "returns", "results", "expected"),
    [
        ("row", "ARRAY", [[1], "x", (2,), "[3]"], [[1], None, [2], "[3]"]),
        ("row", "ARRAY", [np.array([5]), 5, {"a": 1}, []], [[5], None, None, []]),
        ("row", "OBJECT", [{"a": 1}, [1], "x", {"b": object()}], [{"a": 1}, None, None, None]),
        ("row", "VARIANT", [np.array([1, 2]), object(), Decimal("NaN"), "NaN"],
         [[1, 2], None, None, "NaN"]),
        ("row", "TIMESTAMP_LTZ", [None, dt.datetime(1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1)))],
         [None, None]),
        ("row", "VARCHAR", ["a", "\ud800", "\\ud800", None], ["a", None, "\\ud800", None]),
        ("arrow", "OBJECT", ['{"a":1}', "{", "[1]", None], [{"a": 1}, None, None, None]),
    ],
)  # fmt: skip
def test_a_result_that_cannot_be_written_fails_its_row_only(mode, returns, results, expected):
    svc = RemoteService("odd", options=ServiceOptions())

    @svc.function(mode=mode, arguments=["NUMBER(18,0)"], returns=returns, on_error="null")
    def pick(a):
        return results[a] if mode == "row" else [results[at.as_py()] for at in a]

    rows = [[at] for at in range(len(results))]
    assert kit.values(kit.ask(svc, *rows)) == expected
    reported = json.loads(kit.ask(svc, *rows, x_snowmelt_row_errors="1").body)
    assert [value for _, value in reported["data"]] == expected
    # NaN is null in a document, without an error.
    nulls = {at for at, value in enumerate(expected) if value is None}
    unset = {at for at in nulls if results[at] is None or isinstance(results[at], Decimal)}
    assert {at for at, _, _ in reported["errors"]} == nulls - unset


@pytest.mark.parametrize(
    ("returns", "make", "expected"),
    [
        ("NUMBER(5,0)", lambda: pd.Series([1, None], dtype="Int64"), [1, None]),
        ("BOOLEAN", lambda: pd.Series([True, None], dtype="boolean"), [True, None]),
        ("DATE", lambda: pd.to_datetime(pd.Series(["2020-01-02", None])), ["2020-01-02", None]),
        ("FLOAT", lambda: pd.Series([1.5, None]), [1.5, "NaN"]),
        (
            "TIMESTAMP_NTZ",
            lambda: np.array(["2020-01-02T03:04:05.123456789", "NaT"], "datetime64[ns]"),
            ["2020-01-02 03:04:05.123456", None],
        ),
    ],
)
def test_missing_values_of_pandas_and_numpy_are_null(returns, make, expected):
    svc = RemoteService("missing")

    @svc.function(mode="batch", arguments=["VARCHAR"], returns=returns)
    def column(a):
        return make()

    assert kit.values(kit.ask(svc, ["a"], ["b"])) == expected


def test_a_set_is_no_column_because_it_has_no_order():
    svc = RemoteService("sets")

    @svc.function(mode="batch", arguments=["VARCHAR"], returns="VARCHAR")
    def column(a):
        return {each.upper() for each in a}

    assert kit.ask(svc, ["a"], ["b"]).status == 400


def test_no_rows_and_many_rows_are_answered(svc):
    for count in (0, 1, 4095, 4096, 4097):
        rows = [["x" * (at % 7)] for at in range(count)]
        assert kit.values(kit.ask(svc, *rows, path="/lengths")) == [at % 7 for at in range(count)]


def test_columns_may_be_arrow_or_numpy_and_text_may_hold_anything():
    svc = RemoteService("columns")

    @svc.function(mode="arrow", arguments=["NUMBER(18,0)", "VARIANT"], returns="VARIANT")
    def pair(numbers, documents):
        assert numbers.type == pa.int64()
        return pa.array([f'{{"n":{n},"d":{d}}}' for n, d in zip(numbers, documents, strict=True)])

    @svc.function(mode="batch")
    def doubled(x: list[float]) -> Annotated[np.ndarray, "FLOAT"]:
        return np.array(x) * 2

    @svc.function
    def echo(anything: Any) -> Any:
        return anything

    assert kit.values(kit.ask(svc, [1, {"a": [None]}], path="/pair")) == [
        {"n": 1, "d": {"a": [None]}}
    ]
    assert kit.values(kit.ask(svc, [1.5], [2], path="/doubled")) == [3.0, 4.0]
    rows: list[list[Any]] = [["💧\x00\ud800"], [10**30], [{"a": [1.5, None, True]}], [None], [[]]]
    assert kit.values(kit.ask(svc, *rows, path="/echo")) == [row[0] for row in rows]


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.decimals(allow_nan=False, allow_infinity=False, places=20) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(st.lists(_JSON, max_size=5))
def test_whatever_json_says_comes_back_with_every_digit(values):
    svc = RemoteService("echo")

    @svc.function(blocking=False)
    def echo(anything: Any) -> Any:
        return anything

    sent = exact.serialize_json({"data": [[at, value] for at, value in enumerate(values)]})
    reply = kit.ask(svc, body=sent)
    assert exact.parse_json(reply.body) == exact.parse_json(sent)


def test_a_coroutine_works_on_rows_together_and_keeps_their_order():
    import asyncio

    svc = RemoteService("slow")
    most = running = 0

    @svc.function(rows_at_once=4)
    async def wait(n: int) -> int:
        nonlocal most, running
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001 * (n % 3))
        running -= 1
        if n == 5:
            raise ValueError
        return n

    reply = kit.ask(svc, *([n] for n in range(12)), sf_custom_row_errors="1")
    assert kit.values(reply) == [0, 1, 2, 3, 4, None, 6, 7, 8, 9, 10, 11]
    assert most == 4


def test_a_call_without_arguments_is_made_per_row():
    svc = RemoteService("constant")
    calls = iter(range(10))

    @svc.function
    def count() -> int:
        return next(calls)

    assert kit.values(kit.ask(svc, [], [], [])) == [0, 1, 2]


def test_the_context_prefers_the_exact_headers():
    svc = RemoteService("context")

    @svc.function
    def who(ctx: Context, n: int) -> Any:
        return [ctx.query_id, ctx.batch_id, ctx.signature, ctx.session, ctx.custom, ctx.rows]

    headers: dict[str, Any] = {
        "sf-external-function-current-query-id": "q",
        "sf-external-function-signature": "(N NUMBER)",
        "sf-context-current-user": "Zo ",
        "sf-context-current-user-base64": encode_base64("Zoë"),
        "sf-custom-volume-measure": "liters",
    }
    found = kit.values(kit.ask(svc, [1], batch_id="b", **headers))[0]
    assert found == [
        "q",
        "b",
        "(N NUMBER)",
        {"current-user": "Zoë"},
        {"volume-measure": "liters"},
        1,
    ]


def test_a_failed_row_is_told_to_callers_that_ask_and_fails_the_batch_of_others(svc):
    reply = kit.ask(svc, [1], [0], [2], path="/inverse", sf_custom_row_errors="1")
    assert json.loads(reply.body) == {
        "data": [[0, 1.0], [1, None], [2, 0.5]],
        "errors": [[1, "ZeroDivisionError", "division by zero"]],
    }
    other = kit.ask(svc, [1], [0], path="/inverse")
    assert other.status == 500
    assert kit.message(other) == "Row 1 failed: ZeroDivisionError."


def test_failed_rows_may_be_null_or_values_instead():
    svc = RemoteService("lenient")

    @svc.function(on_error="null", name="as_null")
    def one(n: int) -> float:
        return 1 / n

    @svc.function(on_error="value", name="as_value")
    def two(n: int) -> Any:
        return 1 / n

    assert kit.values(kit.ask(svc, [0], [1], path="/as_null")) == [None, 1.0]
    shown = kit.values(kit.ask(svc, [0], path="/as_value"))[0]
    assert shown["error"]["code"] == "ZeroDivisionError"


def test_stop_iteration_does_not_shift_rows():
    svc = RemoteService("stop")

    @svc.function(on_error="null")
    def stop(n: int) -> int:
        if n == 1:
            raise StopIteration
        return n

    assert kit.values(kit.ask(svc, [0], [1], [2])) == [0, None, 2]


def test_what_is_permanent_is_400_and_what_is_overload_is_429():
    svc = RemoteService("refusing")

    @svc.function
    def refuse(n: int) -> int:
        raise PermanentError("No such model.")

    @svc.function
    def busy(n: int) -> int:
        raise Overloaded(retry_after=7)

    refused = kit.ask(svc, [1], path="/refuse")
    assert (refused.status, kit.message(refused)) == (400, "Row 0 is rejected: No such model.")
    overloaded = kit.ask(svc, [1], path="/busy")
    assert (overloaded.status, overloaded.headers["retry-after"]) == (429, "7")


def test_a_wrong_number_or_type_of_results_is_said():
    svc = RemoteService("wrong")

    @svc.function(mode="batch")
    def short(n: list[int]) -> list[int]:
        return n[1:]

    @svc.function
    def text(n: int) -> int:
        return str(n)  # type: ignore[return-value]

    assert "1 results for 2 rows" in kit.message(kit.ask(svc, [1], [2], path="/short"))
    assert "str is not a number" in kit.message(kit.ask(svc, [1], path="/text"))


def test_payload_stays_out_of_errors_unless_debugging():
    def service(debug):
        svc = RemoteService("s", options=ServiceOptions(debug=debug))

        @svc.function
        def fail(text: str) -> str:
            raise ValueError(text)

        return svc

    assert "secret" not in kit.message(kit.ask(service(False), ["secret"]))
    assert "secret" in kit.message(kit.ask(service(True), ["secret"]))


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_requests_and_replies_may_be_compressed(svc, encoding):
    import zlib

    body = json.dumps({"data": [[at, "ab" * 50] for at in range(500)]}).encode()
    pack = gzip.compress if encoding == "gzip" else zlib.compress
    unpack = gzip.decompress if encoding == "gzip" else zlib.decompress
    reply = kit.ask(
        svc, path="/lengths", body=pack(body), content_encoding=encoding, accept_encoding=encoding
    )
    assert reply.headers["content-encoding"] == encoding
    plain = unpack(reply.body)
    assert len(json.loads(plain)["data"]) == 500
    assert reply.headers["content-md5"] == base64.b64encode(hashlib.md5(plain).digest()).decode()


def test_too_large_requests_and_replies_are_413():
    options = ServiceOptions(limits=Limits(request_bytes=1000, reply_bytes=100))
    svc = RemoteService("small", options=options)

    @svc.function
    def repeat(n: int) -> str:
        return "x" * n

    assert kit.ask(svc, [50]).status == 200
    assert kit.ask(svc, [200]).status == 413
    assert kit.ask(svc, body=b" " * 1001).status == 413
    with kit.hosted(svc.asgi()) as url, kit.client(url) as client:
        assert client.post("/", content=b" " * 5000).status_code == 413


def test_a_signature_of_another_width_is_refused(svc):
    reply = kit.ask(svc, [1], path="/city", sf_external_function_signature="(A FLOAT)")
    assert reply.status == 400
    assert "1 arguments, city has 2" in kit.message(reply)


def test_statements_say_what_the_annotations_say():
    svc = RemoteService("ddl")

    @svc.function(immutable=True, comment="it's", max_batch_rows=100)
    def distance(lat: float, price: Annotated[int, "NUMBER(12,2)"]) -> float | None: ...

    @svc.function
    def describe(  # type: ignore[empty-body]
        document: dict,  # type: ignore[type-arg]
        at: Annotated[str | None, "TIMESTAMP_TZ"],
    ) -> list[int]: ...

    assert svc.create_sql("https://x.example/prod/", "gateway") == (
        """CREATE OR REPLACE EXTERNAL FUNCTION distance(LAT FLOAT, PRICE NUMBER(12,2))
RETURNS FLOAT
RETURNS NULL ON NULL INPUT
IMMUTABLE
COMMENT = 'it''s'
API_INTEGRATION = gateway
MAX_BATCH_ROWS = 100
AS 'https://x.example/prod/distance';

CREATE OR REPLACE EXTERNAL FUNCTION describe(DOCUMENT OBJECT, "AT" TIMESTAMP_TZ)
RETURNS ARRAY
API_INTEGRATION = gateway
AS 'https://x.example/prod/describe';"""
    ).replace('"AT"', "AT")


def _no_annotation(x): ...
def _no_digits(x: Decimal) -> int: ...  # type: ignore[empty-body]
def _keyword(*, x: int) -> int: ...  # type: ignore[empty-body]
def _no_column(x: int) -> int: ...  # type: ignore[empty-body]
def _fine(x: int) -> int: ...  # type: ignore[empty-body]


@pytest.mark.parametrize(
    ("function", "options", "reason"),
    [
        (_no_annotation, {}, "has no annotation"),
        (_keyword, {}, "ordinary positional"),
        (_no_column, {"mode": "batch"}, "is a column"),
        (_fine, {"arguments": []}, "0 types were given"),
        (_fine, {"mode": "rows"}, "rows"),
        (_fine, {"speed": 1}, "speed"),
        (_fine, {"deadline": "soon"}, "invalid duration"),
        (_fine, {"on_error": "value"}, "need a VARIANT"),
        (_fine, {"returns": "GEOGRAPHY"}, "GEOGRAPHY"),
    ],
)
def test_what_cannot_be_declared_is_said_in_a_sentence(function, options, reason):
    svc = RemoteService("s")
    with pytest.raises(DeclarationInvalid, match=reason):
        svc.function(name="f", **options)(function)


def test_a_name_is_declared_once(svc):
    with pytest.raises(DeclarationInvalid, match="already"):
        svc.function(name="CITY")(_fine)
