"""Key pair of a backup: the public key encrypts secrets, and only the private key decrypts them.

An encrypted ("sealed") key consists of the ephemeral public key, a nonce, and AES-256-GCM
ciphertext under a key derived from the X25519 exchange. The purpose is authenticated, so one sealed
key cannot replace another.
"""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from snowmelt.backup.manifests import BackupDamaged, BackupRejected
from snowmelt.catalog.security.encryption_keys import encode_key_pair
from snowmelt.storage.local_store import create_durable_file

# File of the public key in the folder of the master key.
PUBLIC_KEY_FILE = "backup.pub"

_KEY_BYTES = 32
_NONCE_BYTES = 12
_INFO = b"snowmelt backup key"


def create_key_pair(private_path: Path, public_path: Path) -> str:
    """Write a new key pair to two files, and return its fingerprint.

    Raises:
        BackupRejected: If one of the files exists.
    """
    for path in (private_path, public_path):
        if path.exists():
            raise BackupRejected(
                reason=f"{path} already exists, and existing points may require it. To use another key, "
                "move both files"
            )
    key = X25519PrivateKey.generate()
    private, public = encode_key_pair(key)
    create_durable_file(private_path, private)
    create_durable_file(public_path, public)
    return compute_fingerprint(key.public_key())


def load_public_key(path: Path) -> X25519PublicKey:
    """Read a public key from a PEM file.

    Raises:
        BackupRejected: If the file is missing or not an X25519 public key.
    """
    if not path.exists():
        raise BackupRejected(
            reason=f"there is no public key at {path}. Create a key pair with "
            "`snowmelt backup new-key FILE`, or give --public-key"
        )
    try:
        key = serialization.load_pem_public_key(path.read_bytes())
    except ValueError as error:
        raise BackupRejected(reason=f"{path} is not a public key in PEM") from error
    if not isinstance(key, X25519PublicKey):
        raise BackupRejected(
            reason=f"{path} is not an X25519 key. Use a key created by `snowmelt backup new-key`"
        )
    return key


def load_private_key(path: Path) -> X25519PrivateKey:
    """Read a private key from a PEM file.

    Raises:
        BackupRejected: If the file is missing or not an X25519 private key.
    """
    if not path.exists():
        raise BackupRejected(reason=f"there is no private key at {path}")
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except ValueError as error:
        raise BackupRejected(reason=f"{path} is not a private key in PEM") from error
    if not isinstance(key, X25519PrivateKey):
        raise BackupRejected(
            reason=f"{path} is not an X25519 key. Use a key created by `snowmelt backup new-key`"
        )
    return key


def compute_fingerprint(key: X25519PublicKey) -> str:
    """Return a short text that identifies a key pair."""
    return hashlib.sha256(_to_bytes(key)).hexdigest()[:16]


def seal_key(recipient: X25519PublicKey, key: bytes, purpose: str) -> bytes:
    """Encrypt a key for the owner of the private key."""
    ephemeral = X25519PrivateKey.generate()
    sender = _to_bytes(ephemeral.public_key())
    cipher = AESGCM(_derive(ephemeral.exchange(recipient), sender, _to_bytes(recipient)))
    nonce = secrets.token_bytes(_NONCE_BYTES)
    return sender + nonce + cipher.encrypt(nonce, key, purpose.encode())


def open_key(owner: X25519PrivateKey, sealed: bytes, purpose: str) -> bytes:
    """Decrypt a sealed key.

    Raises:
        BackupDamaged: If the key was sealed for another key pair or purpose, or was modified.
    """
    sender, nonce = sealed[:_KEY_BYTES], sealed[_KEY_BYTES : _KEY_BYTES + _NONCE_BYTES]
    try:
        shared = owner.exchange(X25519PublicKey.from_public_bytes(sender))
        cipher = AESGCM(_derive(shared, sender, _to_bytes(owner.public_key())))
        return cipher.decrypt(nonce, sealed[_KEY_BYTES + _NONCE_BYTES :], purpose.encode())
    except (InvalidTag, ValueError) as error:
        raise BackupDamaged(
            reason=f"the private key does not open the sealed key of {purpose}"
        ) from error


def _to_bytes(key: X25519PublicKey) -> bytes:
    return key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)


def _derive(shared: bytes, sender: bytes, recipient: bytes) -> bytes:
    info = _INFO + sender + recipient
    return HKDF(algorithm=SHA256(), length=_KEY_BYTES, salt=None, info=info).derive(shared)
