"""Kinds of objects with their privileges, built-in roles, and public key parsing."""

from __future__ import annotations

import base64
from typing import Literal

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from snowmelt.errors import InvalidPublicKey

ACCOUNTADMIN = "ACCOUNTADMIN"
PUBLIC = "PUBLIC"
BUILT_IN_ROLES = (ACCOUNTADMIN, PUBLIC)

ObjectKind = Literal[
    "DATABASE", "SCHEMA", "TABLE", "BUCKET", "FUNCTION", "TRANSLATOR", "INTEGRATION"
]

PRIVILEGES: dict[ObjectKind, tuple[str, ...]] = {
    "DATABASE": ("OWNERSHIP", "USAGE", "CREATE SCHEMA"),
    "SCHEMA": ("OWNERSHIP", "USAGE", "CREATE TABLE", "CREATE FUNCTION", "CREATE PIPE"),
    "TABLE": ("OWNERSHIP", "INSERT", "SELECT", "EVOLVE SCHEMA"),
    "BUCKET": ("OWNERSHIP", "READ", "WRITE"),
    "FUNCTION": ("OWNERSHIP", "USAGE"),
    "TRANSLATOR": ("OWNERSHIP", "USAGE"),
    "INTEGRATION": ("OWNERSHIP", "USAGE"),
}

_MIN_KEY_BITS = 2048


def public_key_to_der(text: str) -> bytes:
    """Return the DER of an RSA key that is PEM or base64 of DER.

    Raises:
        InvalidPublicKey: It cannot be read, is not RSA or too short.
    """
    try:
        if "-----BEGIN" in text:
            key = serialization.load_pem_public_key(text.encode())
        else:
            key = serialization.load_der_public_key(base64.b64decode("".join(text.split())))
    except ValueError as error:
        raise InvalidPublicKey(reason="it is neither PEM nor base64 of DER") from error
    if not isinstance(key, rsa.RSAPublicKey):
        raise InvalidPublicKey(reason="it is not an RSA key")
    if key.key_size < _MIN_KEY_BITS:
        raise InvalidPublicKey(reason=f"{key.key_size} bits are too few; use 2048 or more")
    return key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
