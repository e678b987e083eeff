"""Signatures as AWS's documentation of signature version 4 shows them."""

from __future__ import annotations

import datetime as dt

from snowmelt.client.stage import S3Credentials, encode_url_path, sign_headers

SHA256 = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072"
AT = dt.datetime(2013, 5, 24, tzinfo=dt.UTC)
SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"


def test_the_documented_put_gets_the_documented_signature():
    credentials = S3Credentials("AKIAIOSFODNN7EXAMPLE", SECRET, "", "us-east-1")
    headers = {
        "host": "examplebucket.s3.amazonaws.com",
        "date": "Fri, 24 May 2013 00:00:00 GMT",
        "x-amz-storage-class": "REDUCED_REDUNDANCY",
    }
    path = encode_url_path("test$file.text")
    given = sign_headers("PUT", path, headers, SHA256, credentials, AT)
    assert given["authorization"].endswith(
        "Signature=98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"
    )
    assert path == "/test%24file.text"


def test_nothing_secret_is_printed():
    credentials = S3Credentials("KEY", "the secret", "the token", "r")
    assert "the" not in repr(credentials)
