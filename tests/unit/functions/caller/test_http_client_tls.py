"""A service's certificate is one that the integration trusts, or nothing is sent."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fixtures.http import OK, At, ask, asking
from snowmelt.functions.errors import DeclarationInvalid, TlsUntrusted
from support.raw_service import RawService, reply


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    """Return the paths of a key and of a certificate for 127.0.0.1 that vouches for itself."""
    folder = tmp_path_factory.mktemp("tls")
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "a test")])
    now = dt.datetime.now(dt.UTC)
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    form = serialization.Encoding.PEM
    private = key.private_bytes(
        form, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "key.pem").write_bytes(private)
    (folder / "certificate.pem").write_bytes(made.public_bytes(form))
    return folder / "key.pem", folder / "certificate.pem"


@pytest.fixture
def secure(certificate):
    key, public = certificate
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(public, key)
    with RawService(OK, tls=context) as service:
        yield service


def test_the_certificates_of_an_integration_are_trusted(with_client, secure, certificate):
    async def work(client):
        return [
            (await ask(client, secure, body=b"x" * 300_000, ca_file=str(certificate[1]))).body
            for _ in range(3)
        ]

    assert with_client(work) == [b"hello"] * 3
    assert secure.connections == 1


def test_a_certificate_that_nobody_vouches_for_is_refused_for_good(with_client, secure):
    with pytest.raises(TlsUntrusted, match="not trusted") as refused:
        with_client(asking(secure))
    assert not refused.value.retryable


class PlainService(RawService):
    async def converse(self, reader, writer):
        writer.write(self.answers[0])
        await reader.read()


def test_a_service_without_tls_is_told_from_one_that_is_away(with_client):
    with PlainService(reply(400)) as service, pytest.raises(TlsUntrusted, match="no TLS"):
        with_client(asking(At(service.url.replace("http:", "https:"))))


@pytest.mark.parametrize("text", [None, "no certificate"])
def test_a_file_that_holds_no_certificate_is_told(with_client, secure, tmp_path, text):
    path = tmp_path / "ca.pem"
    if text is not None:
        path.write_text(text)
    with pytest.raises(DeclarationInvalid, match=r"ca\.pem cannot be read"):
        with_client(asking(secure, ca_file=str(path)))
