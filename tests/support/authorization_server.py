"""Authorization server for tests: issues tokens, and publishes the key that verifies them."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa

ISSUER = "https://idp.example.com/tenant"
AUDIENCE = "https://snowmelt.example.com"
KEY = rsa.generate_private_key(65537, 2048)


class AuthorisationServer:
    """Server that exchanges refresh tokens for access tokens, and publishes its keys."""

    def __init__(self) -> None:
        self.forms: list[dict[str, list[str]]] = []
        self.authorizations: list[str] = []
        self.failures = 0
        self.issued: list[str] = []
        idp = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                key = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(KEY.public_key()))
                self._answer(200, {"keys": [key | {"kid": "first", "use": "sig"}]})

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                idp.authorizations.append(self.headers["Authorization"])
                idp.forms.append(parse_qs(body))
                if idp.failures:
                    idp.failures -= 1
                    self._answer(503, {})
                else:
                    idp.issued.append(token())
                    self._answer(200, {"access_token": idp.issued[-1], "expires_in": 600})

            def _answer(self, status: int, message: object) -> None:
                body = json.dumps(message).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def token(key: Any = KEY, kid: str = "first", **claims: object) -> str:
    now = int(time.time())
    usual = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "sub": "Loader",
        "scp": ["session:role:loading"],
        "iat": now,
        "exp": now + 600,
    }
    return jwt.encode(usual | claims, key, algorithm="RS256", headers={"kid": kid})


def integration(idp: AuthorisationServer) -> str:
    """Return the statement that makes a service accept its tokens."""
    return (
        "CREATE OR REPLACE SECURITY INTEGRATION idp TYPE = EXTERNAL_OAUTH ENABLED = TRUE"
        f" EXTERNAL_OAUTH_TYPE = CUSTOM EXTERNAL_OAUTH_ISSUER = '{ISSUER}'"
        " EXTERNAL_OAUTH_TOKEN_USER_MAPPING_CLAIM = ('upn', 'sub')"
        " EXTERNAL_OAUTH_SNOWFLAKE_USER_MAPPING_ATTRIBUTE = 'LOGIN_NAME'"
        f" EXTERNAL_OAUTH_AUDIENCE_LIST = ('{AUDIENCE}')"
        f" EXTERNAL_OAUTH_JWS_KEYS_URL = '{idp.url}/keys'"
    )
