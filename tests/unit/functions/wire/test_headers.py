"""Headers are those of the published format, and their twins are exact."""

from __future__ import annotations

import pytest

from snowmelt.functions.errors import DeclarationInvalid
from snowmelt.functions.signature import FunctionArgument, FunctionSignature, parse_sql_type_text
from snowmelt.functions.wire import headers
from snowmelt.functions.wire.headers import (
    decode_header,
    encode_base64,
    make_request_headers,
    replace_illegal_characters,
    validate_custom_headers,
)

SEED = FunctionSignature(
    "ext_func",
    (FunctionArgument("n", parse_sql_type_text("INTEGER")),),
    parse_sql_type_text("VARCHAR"),
)


def test_the_published_example_is_sent_byte_for_byte():
    assert make_request_headers(SEED, "q", "b") == {
        "sf-external-function-format": "json",
        "sf-external-function-format-version": "1.0",
        "sf-external-function-current-query-id": "q",
        "sf-external-function-query-batch-id": "b",
        "sf-external-function-name": "ext_func",
        "sf-external-function-name-base64": "ZXh0X2Z1bmM=",
        "sf-external-function-signature": "(N NUMBER)",
        "sf-external-function-signature-base64": "KE4gTlVNQkVSKQ==",
        "sf-external-function-return-type": "VARCHAR(16777216)",
        "sf-external-function-return-type-base64": "VkFSQ0hBUigxNjc3NzIxNik=",
    }


def test_a_twin_seen_in_the_wild_is_ours():
    assert encode_base64("(B VARCHAR)") == "KEIgVkFSQ0hBUik="


def test_a_run_of_illegal_characters_is_one_blank():
    assert replace_illegal_characters("a\r\né💧b c") == "a b c"


def test_context_headers_carry_their_twin_and_custom_ones_do_not():
    sent = make_request_headers(
        SEED, "q", "b", custom={"volume-measure": "liters"}, context={"CURRENT_USER": "Zoë"}
    )
    assert sent["sf-custom-volume-measure"] == "liters"
    assert sent["sf-context-current-user"] == "Zo "
    assert decode_header(sent, "sf-context-current-user") == "Zoë"
    assert "sf-custom-volume-measure-base64" not in sent


def test_a_broken_twin_leaves_the_plain_value():
    assert (
        decode_header(
            {headers.FUNCTION_NAME: "f", headers.FUNCTION_NAME + headers.BASE64_SUFFIX: "***"},
            headers.FUNCTION_NAME,
        )
        == "f"
    )


@pytest.mark.parametrize(
    "custom",
    [{"a_b": "x"}, {"a b": "x"}, {"a": "x  y"}, {"a": "x\ny"}, {"a": "x" * 8192}, {"": "x"}],
)
def test_custom_headers_that_cannot_be_sent_are_refused(custom):
    with pytest.raises(DeclarationInvalid):
        validate_custom_headers(custom)
