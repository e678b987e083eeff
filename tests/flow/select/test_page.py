"""The code of the page on S3 Select runs as it is written there."""

from __future__ import annotations

import boto3
import httpx

from fixtures.s3 import REGION
from support.docs_pages import blocks


def run(block):
    names = {}
    exec(block, names)
    if "answer" in names:
        names["answer"]["Payload"].close()  # a program that ends closes what the page does not
    names["s3"].close()


def test_the_code_of_the_page_runs(s3, bucket, monkeypatch, capsys):
    for name, value in s3.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)  # it would keep another test's keys
    instead = {"http://127.0.0.1:9000": s3.url, "us-east-1": REGION, "demo-data": bucket}
    first, presigned, _spark, many = blocks("how-to/query-objects.md", "python", instead)
    run(first)
    assert capsys.readouterr().out == '{"name":"Ada","age":"36"}\n{"name":"Grace","age":"85"}\n'
    run(presigned)
    address = capsys.readouterr().out.strip()
    curl = next(
        block for block in blocks("how-to/query-objects.md", "sh", {}) if "request.xml" in block
    )
    request = curl.split("<<'XML'\n")[1].split("\nXML\n")[0]
    answer = httpx.post(address, content=request, headers={"Accept": "text/csv"}, trust_env=False)
    assert (answer.status_code, answer.text) == (200, "Ada\nGrace\n")
    run(many)
    assert capsys.readouterr().out == "3\n\n"
