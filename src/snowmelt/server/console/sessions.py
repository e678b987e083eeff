"""Sessions of the console: user, role and expiration of a login.

A session is an encrypted cookie that every service with the master key can read. A session ends 8
hours after the login, after an hour without a request, or at logout. It also ends when its user,
its key or the grant of its role is removed. A service stores logouts in memory until the session
would have expired.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
from dataclasses import dataclass

import msgspec
import sqlalchemy as sa

from snowmelt.catalog.model.records import ACCOUNTADMIN
from snowmelt.catalog.security import access_control, encryption_keys
from snowmelt.catalog.security.encryption_keys import ConsoleToken, KeyRing
from snowmelt.clock import Clock
from snowmelt.errors import AuthenticationFailed, NotFound, RoleNotGranted

SESSION_S = 8 * 3600.0
IDLE_S = 3600.0
RENEW_AFTER_S = 300.0
CODE_S = 60.0
OPEN_USER = ""


@dataclass(frozen=True, slots=True)
class Session:
    """A valid session. `user` is empty if the console needs no login on this machine."""

    token: ConsoleToken
    roles: tuple[str, ...]

    @property
    def user(self) -> str:
        """Name of the user."""
        return self.token.user

    @property
    def role(self) -> str:
        """The role whose privileges apply."""
        return self.token.role

    @property
    def csrf(self) -> str:
        """CSRF token that forms of this session must contain."""
        return hashlib.sha256(b"csrf\0" + self.token.session_id.encode()).hexdigest()

    def accepts_csrf(self, given: str) -> bool:
        """Return True if this is the CSRF token of the session."""
        return hmac.compare_digest(given.encode(), self.csrf.encode())


class Sessions:
    """Manager of sessions: creates, checks and ends them. Thread-safe."""

    def __init__(self, keyring: KeyRing, clock: Clock) -> None:
        self._keyring = keyring
        self._clock = clock
        self._lock = threading.Lock()
        # IDs of ended sessions and of used codes, with their times of expiration.
        self._ended: dict[str, float] = {}

    def begin(self, user: str, role: str, credential: str) -> ConsoleToken:
        """Return a new session."""
        now = self._now()
        return ConsoleToken(secrets.token_urlsafe(24), user, role, credential, now, now)

    def seal(self, token: ConsoleToken) -> str:
        """Return the cookie value of a session."""
        return encryption_keys.CONSOLE_SESSIONS.seal(self._keyring, token)

    def renew(self, session: Session) -> ConsoleToken | None:
        """Return the session with a new idle timeout. None if it was renewed within 5 minutes."""
        now = self._now()
        if now < session.token.seen_at + RENEW_AFTER_S:
            return None
        return msgspec.structs.replace(session.token, seen_at=now)

    def switch_role(self, session: Session, role: str) -> ConsoleToken:
        """Return the session with another role.

        Raises:
            RoleNotGranted: If the user does not have the role.
        """
        if role not in session.roles:
            raise RoleNotGranted(role=role, user=session.user)
        return msgspec.structs.replace(session.token, role=role)

    def end(self, token: ConsoleToken) -> None:
        """End a session."""
        self._remember(token.session_id, token.began_at + SESSION_S)

    def check(self, connection: sa.Connection, cookie: str, *, is_open: bool) -> Session | None:
        """Return the session of a cookie, or None if it is invalid or has ended.

        `is_open` allows sessions without a user.
        """
        token = encryption_keys.CONSOLE_SESSIONS.parse(self._keyring, cookie)
        now = self._now()
        if token is None or now >= token.began_at + SESSION_S or now >= token.seen_at + IDLE_S:
            return None
        if token.session_id in self._ended:
            return None
        if token.user == OPEN_USER:
            return Session(token, (ACCOUNTADMIN,)) if is_open else None
        try:
            roles = access_control.list_user_roles(connection, token.user)
            user = access_control.find_user(connection, token.user)
        except NotFound:
            return None
        keys = {
            key.access_key_id for key in encryption_keys.list_access_keys(connection, user.name)
        }
        if token.role not in roles or token.credential not in {*keys, *user.fingerprints}:
            return None
        return Session(token, roles)

    def issue_code(self, user: str, role: str, credential: str) -> str:
        """Return a code that can be redeemed for one session within a minute."""
        return encryption_keys.CONSOLE_CODES.seal(self._keyring, self.begin(user, role, credential))

    def redeem_code(self, code: str) -> ConsoleToken:
        """Create a session for a code.

        Raises:
            AuthenticationFailed: If the code is invalid, expired or already used.
        """
        token = encryption_keys.CONSOLE_CODES.parse(self._keyring, code)
        if token is None or self._now() >= token.began_at + CODE_S:
            raise AuthenticationFailed(
                reason="the code is unknown or older than a minute. Run `snowmelt console` again"
            )
        with self._lock:
            if token.session_id in self._ended:
                raise AuthenticationFailed(
                    reason="the code was used before. Run `snowmelt console` again"
                )
        self._remember(token.session_id, token.began_at + CODE_S)
        return self.begin(token.user, token.role, token.credential)

    def _remember(self, session_id: str, until: float) -> None:
        now = self._now()
        with self._lock:
            self._ended = {key: end for key, end in self._ended.items() if end > now}
            self._ended[session_id] = until

    def _now(self) -> float:
        return self._clock.now().timestamp()


def has_users(connection: sa.Connection) -> bool:
    """Return True if any user has a key. Without keys, the console on loopback needs no login."""
    users = access_control.list_users(connection)
    return any(user.fingerprints for user in users) or bool(
        encryption_keys.list_access_keys(connection)
    )
