"""`snowmelt cert`."""

from __future__ import annotations

import ssl
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography import x509

if TYPE_CHECKING:
    from unit.cli.conftest import Finished


def names_of(path: Path) -> list[Any]:
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(each.value) for each in found]


def test_an_authority_and_a_certificate_for_this_machine_and_others(
    snowmelt: Callable[..., Finished], tmp_path: Path
) -> None:
    made = snowmelt("cert", "--host", "lake.example", "--host", "10.0.0.5")
    assert made.returncode == 0, made.stderr
    certs = tmp_path / "certs"
    assert "snowmelt serve --tls-cert certs/server.pem --tls-key certs/server.key" in made.stdout
    assert names_of(certs / "server.pem") == [
        "localhost",
        "127.0.0.1",
        "::1",
        "lake.example",
        "10.0.0.5",
    ]
    for name in ("ca.key", "server.key"):
        assert stat.S_IMODE((certs / name).stat().st_mode) == 0o600
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
        certs / "server.pem", certs / "server.key"
    )


def test_a_second_time_the_authority_stays_and_the_certificate_is_new(
    snowmelt: Callable[..., Finished], tmp_path: Path
) -> None:
    snowmelt("cert")
    certs = tmp_path / "certs"
    authority, server = (certs / "ca.pem").read_bytes(), (certs / "server.pem").read_bytes()
    assert snowmelt("cert").returncode == 0
    assert (certs / "ca.pem").read_bytes() == authority
    assert (certs / "server.pem").read_bytes() != server
    issuer = x509.load_pem_x509_certificate(authority)
    x509.load_pem_x509_certificate((certs / "server.pem").read_bytes()).verify_directly_issued_by(
        issuer
    )


def test_an_authority_that_cannot_be_read_is_not_overwritten(
    snowmelt: Callable[..., Finished], tmp_path: Path
) -> None:
    snowmelt("cert")
    (tmp_path / "certs/ca.key").write_text("spoilt")
    refused = snowmelt("cert")
    assert (refused.returncode, refused.stderr) == (
        1,
        "snowmelt: Cannot read certs/ca.key as the key of the authority. Move the file away to create a new authority.\n",
    )
