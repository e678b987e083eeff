"""Request bodies in every form that clients send, and invalid bodies."""

from __future__ import annotations

import base64
import hashlib
import http.client
import socket
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError

from fixtures.s3 import S3Process
from snowmelt import sigv4
from snowmelt.buckets import checksums
from support.select_wire import until

DATA = bytes(range(256)) * 1200


class _Auth(S3SigV4Auth):  # type: ignore[misc]  # botocore has no types
    """Signs any value of x-amz-content-sha256."""

    def payload(self, request: Any) -> Any:
        return request.headers["X-Amz-Content-SHA256"]

    def _modify_request_before_signing(self, request: Any) -> None:
        mode = request.headers["X-Amz-Content-SHA256"]
        super()._modify_request_before_signing(request)
        del request.headers["X-Amz-Content-SHA256"]
        request.headers["X-Amz-Content-SHA256"] = mode


def send(
    s3: S3Process,
    method: str,
    path: str,
    body: Any,
    mode: str,
    headers: dict[str, str] | None = None,
) -> tuple[int, bytes, dict[str, Any]]:
    """Sign and send a request. `body` may be a function of the signature and time."""
    key = s3.keys["admin"]
    request = AWSRequest(method, s3.url + path, headers=dict(headers or {}))
    request.headers["X-Amz-Content-SHA256"] = mode
    auth = _Auth(Credentials(key.access_key_id, key.secret), "s3", "us-east-1")
    auth.add_auth(request)
    signature = request.headers["Authorization"].rpartition("=")[2]
    stamp = request.headers.get("X-Amz-Date") or request.context["timestamp"]
    content = body(key.secret, stamp, signature) if callable(body) else body
    connection = http.client.HTTPConnection("127.0.0.1", s3.port)
    try:
        connection.request(method, path, body=content, headers=dict(request.headers.items()))
        answer = connection.getresponse()
        return answer.status, answer.read(), dict(answer.headers)
    finally:
        connection.close()


def checksum(algorithm: str, data: bytes = DATA) -> str:
    hashing = checksums.new_hasher(algorithm)
    hashing.update(data)
    return checksums.to_checksum(algorithm, hashing).value


def pieces(data: bytes = DATA, size: int = 65_536) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)] + [b""]


def unsigned(trailers: Any) -> bytes:
    body = b""
    for piece in pieces():
        body += b"%x\r\n" % len(piece) + piece + (b"\r\n" if piece else b"")
    return body + "".join(f"{n}:{v}\r\n" for n, v in trailers.items()).encode() + b"\r\n"


def signed(trailers: dict[Any, Any], *, spoil: bool = False) -> Callable[[Any, Any, Any], bytes]:
    def body(secret: Any, stamp: Any, seed: Any) -> bytes:
        scope = f"{stamp[:8]}/us-east-1/s3/aws4_request"
        key = sigv4.derive_signing_key(secret, scope)
        previous, out = seed, b""
        for piece in pieces():
            text = (
                f"AWS4-HMAC-SHA256-PAYLOAD\n{stamp}\n{scope}\n{previous}\n"
                f"{hashlib.sha256().hexdigest()}\n{hashlib.sha256(piece).hexdigest()}"
            )
            previous = sigv4.sign_text(key, text)
            out += f"{len(piece):x};chunk-signature={previous}\r\n".encode()
            out += piece + (b"\r\n" if piece else b"")
        if trailers:
            lines = "".join(f"{n}:{v}\n" for n, v in trailers.items())
            digest = hashlib.sha256(lines.encode()).hexdigest()
            text = f"AWS4-HMAC-SHA256-TRAILER\n{stamp}\n{scope}\n{previous}\n{digest}"
            out += lines.replace("\n", "\r\n").encode()
            out += f"x-amz-trailer-signature:{sigv4.sign_text(key, text)}\r\n".encode()
        out += b"\r\n"
        return out.replace(b"\x00\x01\x02", b"\x00\x01\x03", 1) if spoil else out

    return body


CHUNKED = {"x-amz-decoded-content-length": str(len(DATA)), "content-encoding": "aws-chunked"}


@pytest.mark.parametrize("algorithm", checksums.CHECKSUM_ALGORITHMS)
@pytest.mark.parametrize("sign", [True, False])
def test_trailing_checksums_are_verified(
    s3: S3Process, bucket: str, algorithm: str, sign: bool
) -> None:
    name = f"x-amz-checksum-{algorithm.lower()}"
    headers = CHUNKED | {"x-amz-trailer": name}
    mode = (
        "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
        if sign
        else ("STREAMING-UNSIGNED-PAYLOAD-TRAILER")
    )
    make = signed if sign else unsigned
    right = {name: checksum(algorithm)}
    status, body, told = send(s3, "PUT", f"/{bucket}/k", make(right), mode, headers)
    assert (status, body) == (200, b"")
    assert told[name] == right[name]
    found = s3.client().get_object(Bucket=bucket, Key="k", ChecksumMode="ENABLED")
    assert found["Body"].read() == DATA
    assert "ContentEncoding" not in found
    wrong = {name: checksum(algorithm, b"other")}
    status, body, _ = send(s3, "PUT", f"/{bucket}/k2", make(wrong), mode, headers)
    assert (status, b"<Code>BadDigest</Code>" in body) == (400, True)
    status, body, _ = send(s3, "PUT", f"/{bucket}/k2", make({}), mode, headers)
    assert status in {400, 403}
    with pytest.raises(ClientError):
        s3.client().head_object(Bucket=bucket, Key="k2")


def test_signed_chunks_are_verified(s3: S3Process, bucket: str) -> None:
    mode = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
    status, body, _ = send(s3, "PUT", f"/{bucket}/k", signed({}), mode, CHUNKED)
    assert (status, body) == (200, b"")
    assert s3.client().get_object(Bucket=bucket, Key="k")["Body"].read() == DATA
    status, body, _ = send(s3, "PUT", f"/{bucket}/x", signed({}, spoil=True), mode, CHUNKED)
    assert (status, b"SignatureDoesNotMatch" in body) == (403, True)
    wrong = CHUNKED | {"x-amz-decoded-content-length": "5"}
    status, body, _ = send(s3, "PUT", f"/{bucket}/x", signed({}), mode, wrong)
    assert (status, b"IncompleteBody" in body) == (400, True)


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"content-md5": base64.b64encode(hashlib.md5(DATA).digest()).decode()}, None),
        ({"content-md5": base64.b64encode(b"0" * 16).decode()}, b"BadDigest"),
        ({"content-md5": "nonsense"}, b"InvalidDigest"),
        ({"x-amz-checksum-crc32": base64.b64encode(b"0000").decode()}, b"BadDigest"),
        ({"x-amz-checksum-crc32c": checksum("CRC32C")}, None),
        ({"x-amz-checksum-crc64nvme": checksum("CRC64NVME")}, None),
        ({"x-amz-checksum-crc64nvme": checksum("CRC32")}, b"InvalidRequest"),
        ({"x-amz-checksum-crc32": "AAAAAA==", "x-amz-checksum-sha1": "x"}, b"InvalidRequest"),
        ({"x-amz-sdk-checksum-algorithm": "MD4"}, b"InvalidRequest"),
    ],
)
def test_digests_in_headers_are_verified(
    s3: S3Process, bucket: str, headers: dict[str, str], code: bytes | None
) -> None:
    digest = hashlib.sha256(DATA).hexdigest()
    for mode in (digest, "UNSIGNED-PAYLOAD"):
        status, body, _ = send(s3, "PUT", f"/{bucket}/k", DATA, mode, headers)
        assert status == (400 if code else 200)
        assert (code or b"") in body


def test_another_body_than_the_signed_one_is_refused(s3: S3Process, bucket: str) -> None:
    status, body, _ = send(s3, "PUT", f"/{bucket}/k", DATA, hashlib.sha256(b"").hexdigest())
    assert (status, b"XAmzContentSHA256Mismatch" in body) == (400, True)
    listed = b"<Delete><Object><Key>a</Key></Object></Delete>"
    status, body, _ = send(
        s3, "POST", f"/{bucket}?delete=", listed, hashlib.sha256(b"").hexdigest()
    )
    assert (status, b"XAmzContentSHA256Mismatch" in body) == (400, True)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<",
        b"<Delete>",
        b"<Other/>",
        b"<Delete/>",
        b"\xff\xfe",
        b"<Delete><Object/></Delete>",
        b'<!DOCTYPE x [<!ENTITY a "b">]><Delete>&a;</Delete>',
    ],
)
def test_broken_xml_is_refused_and_the_next_request_works(
    s3: S3Process, bucket: str, body: bytes
) -> None:
    status, answer, _ = send(s3, "POST", f"/{bucket}?delete=", body, "UNSIGNED-PAYLOAD")
    assert status in {200, 400}
    assert b"MalformedXML" in answer or b"<Error>" in answer
    assert s3.client().list_objects_v2(Bucket=bucket)["KeyCount"] == 0


def test_an_object_over_5_gib_is_refused_before_it_comes(s3: S3Process, bucket: str) -> None:
    with socket.create_connection(("127.0.0.1", s3.port)) as raw:
        url = s3.client(signature_version="s3v4").generate_presigned_url(
            "put_object", {"Bucket": bucket, "Key": "k"}
        )
        path = url.partition(f":{s3.port}")[2]
        raw.sendall(
            f"PUT {path} HTTP/1.1\r\nHost: 127.0.0.1:{s3.port}\r\n"
            f"Content-Length: {6 * 1024**3}\r\nExpect: 100-continue\r\n\r\n".encode()
        )
        answer = raw.recv(65_536)
    assert b" 400 " in answer.splitlines()[0]
    assert b"connection: close" in answer.lower()


def test_an_endless_head_ends_the_connection(s3: S3Process) -> None:
    with socket.create_connection(("127.0.0.1", s3.port)) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nX-Long: ")
        with pytest.raises(OSError, match=r"reset|Broken"):
            raw.sendall(b"x" * 100_000_000)
    assert s3.client().list_buckets()["ResponseMetadata"]["HTTPStatusCode"] == 200


def test_a_client_that_goes_away_leaves_nothing(s3: S3Process, bucket: str) -> None:
    objects = s3.service.data_dir / "objects"
    before = {path for path in objects.rglob("*") if path.is_file()}
    url = s3.client(signature_version="s3v4").generate_presigned_url(
        "put_object", {"Bucket": bucket, "Key": "k"}
    )
    path = url.partition(f":{s3.port}")[2]
    with socket.create_connection(("127.0.0.1", s3.port)) as raw:
        raw.sendall(
            f"PUT {path} HTTP/1.1\r\nHost: 127.0.0.1:{s3.port}\r\n"
            "Content-Length: 5000000\r\n\r\n".encode()
        )
        raw.sendall(b"x" * 3_000_000)

    def is_gone() -> bool:
        return {path for path in objects.rglob("*") if path.is_file()} <= before

    assert until(is_gone)
    assert s3.client().list_objects_v2(Bucket=bucket)["KeyCount"] == 0


def test_large_objects_pass_in_little_memory(s3: S3Process, bucket: str) -> None:
    def peak() -> int:
        lines = Path(f"/proc/{s3.pid}/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1])

    client = s3.client()
    client.put_object(Bucket=bucket, Key="small", Body=DATA)
    before = peak()
    block = bytes(range(256)) * 4096
    data = block * 300
    url = s3.client(signature_version="s3v4").generate_presigned_url(
        "put_object", {"Bucket": bucket, "Key": "k"}
    )
    connection = http.client.HTTPConnection("127.0.0.1", s3.port)
    connection.request("PUT", url.partition(f":{s3.port}")[2], body=data)
    assert connection.getresponse().read() == b""
    connection.close()
    value = 0
    for chunk in client.get_object(Bucket=bucket, Key="k")["Body"].iter_chunks(1 << 20):
        value = zlib.crc32(chunk, value)
    assert value == zlib.crc32(data)
    client.copy_object(Bucket=bucket, Key="c", CopySource={"Bucket": bucket, "Key": "k"})
    assert peak() - before < 64 * 1024
    client.delete_object(Bucket=bucket, Key="k")
    client.delete_object(Bucket=bucket, Key="c")
