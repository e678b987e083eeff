"""`snowmelt cert`: a local certificate authority, for development and closed networks."""

from __future__ import annotations

import argparse
import datetime as dt
import ipaddress
import os
from pathlib import Path
from typing import TYPE_CHECKING

from snowmelt.cli.command_context import load_settings
from snowmelt.clock import SystemClock
from snowmelt.errors import OutputRefused, UserError
from snowmelt.storage.overwrite_protection import check_output_outside_deployment

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

NAME = "cert"
SUMMARY = "create a local certificate authority and a certificate for the service"
EXAMPLES = """examples:
  snowmelt cert
  snowmelt cert --out certs --host lake.example --host 10.0.0.5
  snowmelt serve --tls-cert certs/server.pem --tls-key certs/server.key

Clients trust the authority with ca_file="certs/ca.pem" for snowmelt.Client, AWS_CA_BUNDLE for the AWS
CLI and boto3, SSL_CERT_FILE for most others. Repeating the command renews the certificate and keeps the
authority. `kill -HUP` makes a running service use the new certificate.
"""
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")
_AUTHORITY_VALIDITY_DAYS, _SERVER_VALIDITY_DAYS = 3650, 397
_MAX_CLOCK_SKEW = dt.timedelta(minutes=5)


class AuthorityUnreadable(UserError):
    """Cannot read {path} as {what}. Move the file away to create a new authority."""

    code = "authority_broken"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", metavar="DIR", type=Path, default=Path("certs"), help="folder (default: certs)"
    )
    parser.add_argument(
        "--host",
        metavar="NAME",
        action="append",
        default=[],
        help="further name or address of the service; repeatable",
    )


def run(options: argparse.Namespace) -> int:
    """Write ca.pem, ca.key, server.pem and server.key."""
    folder: Path = options.out
    check_output_outside_deployment(
        "--out", str(folder), reserved=load_settings(options).list_reserved_paths()
    )
    folder.mkdir(parents=True, exist_ok=True)
    now = SystemClock().now()
    _check_overwrite(folder)
    hosts = tuple(dict.fromkeys((*_LOCAL_HOSTS, *options.host)))
    authority, key = _load_or_create_authority(folder, now)
    _write_server_certificate(folder, authority, key, hosts, now)
    print(f"Authority: {folder / 'ca.pem'} (give it to clients; keep ca.key secret)")
    print(
        f"Certificate for {', '.join(hosts)}, {_SERVER_VALIDITY_DAYS} days: {folder / 'server.pem'}"
    )
    print(f"snowmelt serve --tls-cert {folder / 'server.pem'} --tls-key {folder / 'server.key'}")
    return 0


def _check_overwrite(folder: Path) -> None:
    """Reject a folder whose certificates or keys were not written by an earlier run.

    Raises:
        OutputRefused: If a file that would be replaced does not belong to the folder's authority.
    """
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    def refused(name: str, reason: str) -> OutputRefused:
        remedy = "Name another folder, or move the file away"
        return OutputRefused(
            option="--out", path=repr(str(folder / name)), reason=f"{reason}. {remedy}"
        )

    pairs = (("ca.pem", "ca.key"), ("server.pem", "server.key"))
    for one, other in (*pairs, *((other, one) for one, other in pairs)):
        if (folder / one).exists() and not (folder / other).exists():
            raise refused(one, f"the file already exists without its {other}")
    if not (folder / "server.pem").exists():
        return
    if not (folder / "ca.pem").exists():
        raise refused("server.pem", "the file already exists without an authority (ca.pem)")
    try:
        authority = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    except ValueError:
        return  # `_load_or_create_authority` reports the error
    try:
        shown = x509.load_pem_x509_certificate((folder / "server.pem").read_bytes())
        shown.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        raise refused(
            "server.pem", "the file already exists, and this folder's authority did not issue it"
        ) from None


def _load_or_create_authority(
    folder: Path, now: dt.datetime
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    """Load the folder's authority, or create it if it is missing."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    certificate_path, key_path = folder / "ca.pem", folder / "ca.key"
    if certificate_path.exists() and key_path.exists():
        try:
            known = x509.load_pem_x509_certificate(certificate_path.read_bytes())
        except ValueError:
            raise AuthorityUnreadable(path=certificate_path, what="a certificate") from None
        try:
            key = serialization.load_pem_private_key(key_path.read_bytes(), None)
        except (ValueError, TypeError):
            raise AuthorityUnreadable(path=key_path, what="the key of the authority") from None
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise AuthorityUnreadable(path=key_path, what="the key of the authority")
        return known, key
    new = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Snowmelt local authority")])
    builder = _make_certificate_builder(new, now, _AUTHORITY_VALIDITY_DAYS, is_authority=True)
    identifier = x509.SubjectKeyIdentifier.from_public_key(new.public_key())
    certificate = (
        builder.subject_name(name)
        .issuer_name(name)
        .add_extension(identifier, critical=False)
        .sign(new, hashes.SHA256())
    )
    _write_certificate_and_key(certificate_path, certificate, key_path, new)
    return certificate, new


def _write_server_certificate(
    folder: Path,
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    hosts: tuple[str, ...],
    now: dt.datetime,
) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[-1])])
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    names: list[x509.GeneralName] = []
    for host in hosts:
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
    certificate = (
        _make_certificate_builder(key, now, _SERVER_VALIDITY_DAYS, is_authority=False)
        .subject_name(name)
        .issuer_name(authority.subject)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(issuer, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    _write_certificate_and_key(folder / "server.pem", certificate, folder / "server.key", key)


def _make_certificate_builder(
    key: ec.EllipticCurvePrivateKey, now: dt.datetime, validity_days: int, *, is_authority: bool
) -> x509.CertificateBuilder:
    from cryptography import x509

    usage = x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    constraints = x509.BasicConstraints(ca=is_authority, path_length=0 if is_authority else None)
    return (
        x509.CertificateBuilder()
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # Backdate the certificate to allow for clock skew.
        .not_valid_before(now - _MAX_CLOCK_SKEW)
        .not_valid_after(now + dt.timedelta(days=validity_days))
        .add_extension(constraints, critical=True)
        .add_extension(usage, critical=True)
    )


def _write_certificate_and_key(
    certificate_path: Path,
    certificate: x509.Certificate,
    key_path: Path,
    key: ec.EllipticCurvePrivateKey,
) -> None:
    """Write both files atomically. Only the owner can read the key."""
    from cryptography.hazmat.primitives import serialization

    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    _replace_file(key_path, pem, 0o600)
    _replace_file(certificate_path, certificate.public_bytes(serialization.Encoding.PEM), 0o644)


def _replace_file(path: Path, data: bytes, mode: int) -> None:
    from snowmelt.storage.local_store import create_durable_file, open_folder

    new = path.with_name(path.name + ".new")
    with open_folder(path.parent) as folder:
        new.unlink(missing_ok=True)
        create_durable_file(new, data, mode=mode)
        new.replace(path)
        os.fsync(folder)
