"""Sessions: who is logged in at a page, for how long, and how often a login may fail.

A session is a random name in a cookie that scripts cannot read and other sites cannot send, and a
second random word that every request that changes something must carry in a header: a page of
somebody else knows neither. Failed logins are counted together, whoever makes them: behind loopback
every guess comes from the same machine.

Imports: node.users.
"""

from __future__ import annotations

import hmac
import secrets
from collections import OrderedDict, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.node.users import User

COOKIE: Final = "headrace_session"
SESSIONS_MAX: Final = 64
IDLE_SECONDS_MAX: Final = 3_600.0
AGE_SECONDS_MAX: Final = 12 * 3_600.0
FAILURES_MAX: Final = 10
FAILURE_SECONDS: Final = 60.0
"""So many failed logins in so many seconds, then none is tried."""
SECRET_BYTES: Final = 24


@dataclass(slots=True)
class Session:
    """One login."""

    user: User
    token: str
    """What changing requests carry in the header X-CSRF-Token."""
    made_at: float
    used_at: float

    def carries(self, token: str) -> bool:
        """Whether this is the session's token."""
        return hmac.compare_digest(token.encode("utf-8", "replace"), self.token.encode())


class Sessions:
    """Every login of one page; ``now`` gives monotonic seconds."""

    def __init__(self, now: Callable[[], float]) -> None:
        """Nobody is logged in."""
        self._now = now
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._failures: deque[float] = deque(maxlen=FAILURES_MAX)

    def open(self, user: User) -> tuple[str, Session]:
        """A new session and its name; the oldest is forgotten when there are too many."""
        while len(self._sessions) >= SESSIONS_MAX:
            self._sessions.popitem(last=False)
        name = secrets.token_urlsafe(SECRET_BYTES)
        now = self._now()
        session = Session(user, secrets.token_urlsafe(SECRET_BYTES), now, now)
        self._sessions[name] = session
        return name, session

    def find(self, name: str) -> Session | None:
        """The session of that name, if it is neither unknown nor too old."""
        session = self._sessions.get(name)
        if session is None:
            return None
        now = self._now()
        if now - session.used_at > IDLE_SECONDS_MAX or now - session.made_at > AGE_SECONDS_MAX:
            del self._sessions[name]
            return None
        session.used_at = now
        return session

    def close(self, name: str) -> None:
        """Forget a session; an unknown one is no mistake."""
        self._sessions.pop(name, None)

    @property
    def may_try(self) -> bool:
        """Whether another login may be tried now."""
        full = len(self._failures) == FAILURES_MAX
        return not full or self._now() - self._failures[0] > FAILURE_SECONDS

    def failed(self) -> None:
        """A login was refused."""
        self._failures.append(self._now())


def cookie_value(header: str, name: str = COOKIE) -> str:
    """The value of a cookie in the header Cookie, "" if it is not there."""
    for part in header.split(";"):
        key, _, value = part.strip().partition("=")
        if key == name:
            return value
    return ""
