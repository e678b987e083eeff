"""Connections that come while a certificate is read again are shown the old one or the new one."""

from __future__ import annotations

import itertools
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest

from snowmelt.cli.main import main
from snowmelt.server.listener import TlsCertificate


@pytest.fixture
def folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    assert main(["cert", "--out", str(tmp_path)]) == 0
    capsys.readouterr()
    return tmp_path


def serial_shown(certificate: TlsCertificate, folder: Path, host: str) -> Any:
    """Shake hands in memory; a client names no host in its greeting where it is an address."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    trusting = ssl.create_default_context(cafile=folder / "ca.pem")
    client = trusting.wrap_bio(to_client, to_server, server_hostname=host)
    server = certificate.context.wrap_bio(to_server, to_client, server_side=True)
    for end in (client, server, client, server):
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
    shown = client.getpeercert()
    assert shown is not None
    return shown["serialNumber"]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_a_certificate_that_was_read_again_is_shown_whoever_is_asked_for(
    folder: Path, host: str
) -> None:
    certificate = TlsCertificate(folder / "server.pem", folder / "server.key")
    first = serial_shown(certificate, folder, host)
    assert main(["cert", "--out", str(folder)]) == 0
    assert serial_shown(certificate, folder, host) == first
    certificate.reload()
    assert serial_shown(certificate, folder, host) != first


@pytest.mark.slow
def test_no_connection_fails_while_certificates_change(folder: Path) -> None:
    files = [folder / "server.pem", folder / "server.key"]
    certificate = TlsCertificate(*files)
    pairs = [[file.read_bytes() for file in files]]
    assert main(["cert", "--out", str(folder)]) == 0
    pairs.append([file.read_bytes() for file in files])
    over = threading.Event()

    def renew() -> None:
        for pair in itertools.cycle(pairs):
            for file, content in zip(files, pair, strict=True):
                file.write_bytes(content)
            certificate.reload()
            if over.is_set():
                break

    renewing = threading.Thread(target=renew)
    renewing.start()
    try:
        shown = {serial_shown(certificate, folder, "localhost") for _ in range(60)}
    finally:
        over.set()
        renewing.join()
    assert len(shown) <= len(pairs)
