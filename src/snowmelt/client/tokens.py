"""Key-pair tokens: JWT, RS256, signed with the user's private key (specification of v1, §1.3)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

from snowmelt.errors import ConfigurationError

if TYPE_CHECKING:
    from snowmelt.clock import Clock

_LIFETIME_S = 59 * 60
_RENEWED_AFTER_S = 54 * 60
# Of 512 bits, in base64: whatever is shorter may be shown.
_SHORTEST_KEY = 400
# Digests of keys whose numbers were found to belong together: to find it takes longer than all else
# that a client does when it begins.
_sound: set[bytes] = set()


class Tokens(Protocol):
    """What the transport puts into `Authorization`, and of which kind it says that it is."""

    kind: str

    def current(self) -> str:
        """Return a token that is valid now."""

    def replace(self, refused: str) -> str:
        """Return another token than the one that the service refused."""


class KeyPairTokens:
    """Tokens of one user; thread-safe."""

    kind = "KEYPAIR_JWT"

    def __init__(self, account: str, user: str, key: RSAPrivateKey, clock: Clock) -> None:
        self._subject = f"{account.upper()}.{user.upper()}"
        self._issuer = f"{self._subject}.{fingerprint(key)}"
        self._key = key
        self._clock = clock
        self._lock = threading.Lock()
        self._token = ""
        self._renew_at = clock.monotonic()

    def current(self) -> str:
        """Return the present token, a new one when it is 54 minutes old."""
        with self._lock:
            if self._clock.monotonic() >= self._renew_at:
                self._sign()
            return self._token

    def replace(self, refused: str) -> str:
        """Return a new token, unless another thread has replaced `refused` already."""
        with self._lock:
            if self._token == refused:
                self._sign()
            return self._token

    def _sign(self) -> None:
        issued_at = int(self._clock.now().timestamp())
        claims = {
            "iss": self._issuer,
            "sub": self._subject,
            "iat": issued_at,
            "exp": issued_at + _LIFETIME_S,
        }
        # The header is exactly {"alg": "RS256"}: None removes pyjwt's own "typ".
        self._token = jwt.encode(claims, self._key, algorithm="RS256", headers={"typ": None})
        self._renew_at = self._clock.monotonic() + _RENEWED_AFTER_S


def fingerprint(key: RSAPrivateKey) -> str:
    """Return `SHA256:` and the base64 SHA-256 of the public key in DER, as the catalog keeps it."""
    public = key.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return "SHA256:" + base64.b64encode(hashlib.sha256(public).digest()).decode()


def load_private_key(source: str | bytes | Path) -> RSAPrivateKey:
    """Return the RSA key of a PEM text, a bare base64 PKCS#8 text, or a file of either.

    A text is taken as a path when it names a file.

    Raises:
        ConfigurationError: No such file, or not an RSA key without a passphrase.
    """
    data, what = _key_bytes(source)
    digest = hashlib.sha256(data).digest()
    known = digest in _sound
    try:
        if b"-----BEGIN" in data:
            key = serialization.load_pem_private_key(
                data, password=None, unsafe_skip_rsa_key_validation=known
            )
        else:
            der = base64.b64decode(b"".join(data.split()), validate=True)
            key = serialization.load_der_private_key(
                der, password=None, unsafe_skip_rsa_key_validation=known
            )
    except TypeError as error:
        reason = (
            f"{what} has a passphrase; give the key without it (`openssl pkcs8 -topk8 -nocrypt`)"
        )
        raise ConfigurationError(setting="private_key", reason=reason) from error
    except (ValueError, UnsupportedAlgorithm, binascii.Error) as error:
        reason = f"{what} is neither a key in PEM or base64 PKCS#8 form nor the path of one"
        if b"PUBLIC KEY-----" in data:
            reason = f"{what} is a public key; the client signs with the private one"
        raise ConfigurationError(setting="private_key", reason=reason) from error
    if not isinstance(key, RSAPrivateKey):
        raise ConfigurationError(setting="private_key", reason="it is not an RSA key")
    _sound.add(digest)
    return key


def _key_bytes(source: str | bytes | Path) -> tuple[bytes, str]:
    """Return what is given or in the file, and what to call it in an error."""
    if isinstance(source, bytes):
        return source, "it"
    if isinstance(source, str) and ("\n" in source or "-----BEGIN" in source):
        return source.encode(), "it"
    try:
        return Path(source).read_bytes(), f"file {source}"
    except OSError as error:
        if isinstance(source, Path):
            reason = f"{source} cannot be read: {error.strerror}"
            raise ConfigurationError(setting="private_key", reason=reason) from error
        return source.encode(), _what(source)
    except ValueError:  # a NUL in it: no path
        return str(source).encode(), "it"


def _what(text: str) -> str:
    """Return a text that is too short for a key in an error, as a misspelt path is."""
    return repr(text) if len(text) < _SHORTEST_KEY else "it"
