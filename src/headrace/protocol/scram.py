"""Login without input or output: SCRAM-SHA512/256/1 (RFC 5802) and PLAIN, both ends.

SCRAM proves on both sides that the other knows the password, without sending it:

    client first    n,,n=USER,r=CN                  CN, SN: nonces; s: salt, i: iterations
    server first    r=CN+SN,s=SALT,i=N
    client final    c=biws,r=CN+SN,p=PROOF          salted = PBKDF2(password, salt, N)
    server final    v=SIGNATURE                     stored = H(HMAC(salted, "Client Key"))

Rules:

* A server keeps salted keys (``Credential``), never passwords. For a user it does not know it
  answers with a salt derived from a secret and the name, so that a wrong user and a wrong password
  look the same and the same user always gets the same salt.
* A client checks the server's signature: a server that does not know the password is refused.
* Nonces, salts and the secret come in as arguments; keys are compared in constant time.
* PLAIN sends the password itself: a client uses it only on a link that is encrypted.
* Names and passwords are UTF-8 as given; no further preparation (SASLprep) is applied, as in
  released servers.

Spec: docs/protocol.md, "SASL".

Imports: errors.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import hmac
from dataclasses import dataclass
from typing import Final, NamedTuple

from headrace.errors import RemoteProtocolError

ITERATIONS: Final = 15_000
ITERATIONS_MAX: Final = 1_000_000
"""More than this is a peer that wants to keep us busy."""
ITERATIONS_MIN: Final = 1
KEYS_KEPT: Final = 64
"""Passwords under one salt whose keys a client keeps, as RFC 5802 section 5.1 allows: one for every
user of every node."""
SALT_SIZE: Final = 16
NONCE_SIZE_MAX: Final = 1_024
MESSAGE_SIZE_MAX: Final = 8_192
GS2_HEADER: Final = "n,,"
CHANNEL: Final = "biws"

PLAIN: Final = "PLAIN"
HASHES: Final[dict[str, str]] = {
    "SCRAM-SHA512": "sha512",
    "SCRAM-SHA256": "sha256",
    "SCRAM-SHA1": "sha1",
}
"""Mechanism -> hash, strongest first; the names are spelled as released servers spell them."""


def _hmac(hash_name: str, key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, hash_name)


def _hash(hash_name: str, data: bytes) -> bytes:
    return hashlib.new(hash_name, data).digest()


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(one ^ other for one, other in zip(left, right, strict=True))


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _unbase64(text: str, what: str) -> bytes:
    try:
        return base64.b64decode(text.encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise RemoteProtocolError(f"SCRAM {what} {text!r} is not base64") from error


def escape_name(name: str) -> str:
    """The user name as SCRAM writes it."""
    return name.replace("=", "=3D").replace(",", "=2C")


def unescape_name(text: str) -> str:
    """The user name SCRAM wrote; an equals sign outside ``=2C`` and ``=3D`` is an error."""
    if "=" in text.replace("=2C", "").replace("=3D", ""):
        raise RemoteProtocolError(f"SCRAM user name {text!r} has '=' outside =2C and =3D")
    return text.replace("=2C", ",").replace("=3D", "=")


def _attributes(message: str, *expected: str) -> list[str]:
    """The values of exactly these attributes in this order; extensions may follow."""
    parts = message.split(",")
    found = []
    for place, letter in enumerate(expected):
        if place >= len(parts) or not parts[place].startswith(f"{letter}="):
            raise RemoteProtocolError(f"SCRAM message lacks {letter}= at place {place + 1}")
        found.append(parts[place][2:])
    return found


def _text(payload: bytes) -> str:
    if len(payload) > MESSAGE_SIZE_MAX:
        raise RemoteProtocolError(
            f"SCRAM message of {len(payload)} bytes, limit {MESSAGE_SIZE_MAX}"
        )
    try:
        return payload.decode("utf-8")
    except UnicodeDecodeError as error:
        raise RemoteProtocolError("SCRAM message is not UTF-8") from error


@dataclass(frozen=True, slots=True)
class Credential:
    """What a server keeps of a password for one mechanism: enough to check, not to log in."""

    mechanism: str
    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    @classmethod
    def of(
        cls, mechanism: str, password: str, *, salt: bytes, iterations: int = ITERATIONS
    ) -> Credential:
        """Salt a password; costs ``iterations`` hashes."""
        keys = _keys(HASHES[mechanism], password, salt, iterations)
        return cls(mechanism, salt, iterations, _hash(HASHES[mechanism], keys.client), keys.server)

    def admits(self, password: str) -> bool:
        """Whether this is the password (PLAIN logins)."""
        hash_name = HASHES[self.mechanism]
        keys = _keys(hash_name, password, self.salt, self.iterations)
        return hmac.compare_digest(_hash(hash_name, keys.client), self.stored_key)


class _Keys(NamedTuple):
    client: bytes
    server: bytes


def _keys(hash_name: str, password: str, salt: bytes, iterations: int) -> _Keys:
    salted = hashlib.pbkdf2_hmac(hash_name, password.encode("utf-8"), salt, iterations)
    return _Keys(_hmac(hash_name, salted, b"Client Key"), _hmac(hash_name, salted, b"Server Key"))


@functools.lru_cache(maxsize=KEYS_KEPT)
def _kept_keys(hash_name: str, password: str, salt: bytes, iterations: int) -> _Keys:
    """The keys of a client who logs in again and again: salting takes longer than all the rest."""
    return _keys(hash_name, password, salt, iterations)


def impostor(
    mechanism: str, user: str, *, secret: bytes, iterations: int = ITERATIONS
) -> Credential:
    """The credential of a user who does not exist: no password fits, and the salt never changes.

    ``secret`` is the server's own; without it nobody can tell this salt from a real one.
    """
    seed = hmac.digest(secret, f"{mechanism} {user}".encode(), "sha512")
    size = hashlib.new(HASHES[mechanism]).digest_size
    # Random-looking keys: a proof for them would have to invert the hash.
    stored = hmac.digest(seed, b"stored", "sha512")[:size]
    return Credential(mechanism, seed[:SALT_SIZE], iterations, stored, stored)


class ScramClient:
    """The client's end: `first`, then `final` on the challenge, then `verify` on the signature."""

    __slots__ = ("_auth", "_bare", "_hash_name", "_nonce", "_password", "_server_key", "mechanism")

    def __init__(self, mechanism: str, user: str, password: str, *, nonce: str) -> None:
        """``nonce`` is fresh, printable and without commas; the caller draws it."""
        self.mechanism = mechanism
        self._hash_name = HASHES[mechanism]
        self._password = password
        self._nonce = nonce
        self._bare = f"n={escape_name(user)},r={nonce}"
        self._auth = b""
        self._server_key = b""

    def first(self) -> bytes:
        """The payload of SASL_AUTH."""
        return (GS2_HEADER + self._bare).encode("utf-8")

    def final(self, challenge: bytes) -> bytes:
        """The payload of SASL_STEP for the server's challenge."""
        server_first = _text(challenge)
        nonce, salt, count = _attributes(server_first, "r", "s", "i")
        if not nonce.startswith(self._nonce) or len(nonce) == len(self._nonce):
            raise RemoteProtocolError("SCRAM server did not add to our nonce")
        iterations = _iterations(count)
        keys = _kept_keys(self._hash_name, self._password, _unbase64(salt, "salt"), iterations)
        without_proof = f"c={CHANNEL},r={nonce}"
        self._auth = f"{self._bare},{server_first},{without_proof}".encode()
        self._server_key = keys.server
        stored = _hash(self._hash_name, keys.client)
        proof = _xor(keys.client, _hmac(self._hash_name, stored, self._auth))
        return f"{without_proof},p={_base64(proof)}".encode()

    def verify(self, signature: bytes) -> None:
        """Raise RemoteProtocolError unless the server has proved that it knows the password."""
        (found,) = _attributes(_text(signature), "v")
        expected = _hmac(self._hash_name, self._server_key, self._auth)
        if not self._auth or not hmac.compare_digest(_unbase64(found, "signature"), expected):
            raise RemoteProtocolError("SCRAM server signature is wrong: it does not know us")


def _iterations(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise RemoteProtocolError(f"SCRAM iteration count {text!r} is not a number")
    if not ITERATIONS_MIN <= int(text) <= ITERATIONS_MAX:
        raise RemoteProtocolError(
            f"SCRAM iteration count {text}, allowed {ITERATIONS_MIN}..{ITERATIONS_MAX}"
        )
    return int(text)


class ScramServer:
    """The server's end: `open` reads who it is, `challenge` asks, `final` checks."""

    __slots__ = ("_auth", "_client_bare", "_client_nonce", "_credential", "_nonce", "user")

    def __init__(self, client_first: bytes) -> None:
        """Read the client's first message; ``user`` is whom to look up."""
        text = _text(client_first)
        if not text.startswith(GS2_HEADER):
            # "y,," and "p=..." ask for channel binding, an authzid for another's rights.
            raise RemoteProtocolError(f"SCRAM message does not start with {GS2_HEADER!r}")
        self._client_bare = text[len(GS2_HEADER) :]
        name, self._client_nonce = _attributes(self._client_bare, "n", "r")
        if not 0 < len(self._client_nonce) <= NONCE_SIZE_MAX:
            raise RemoteProtocolError(
                f"SCRAM nonce of {len(self._client_nonce)} characters, allowed 1..{NONCE_SIZE_MAX}"
            )
        self.user = unescape_name(name)
        self._credential: Credential | None = None
        self._nonce = ""
        self._auth = ""

    def challenge(self, credential: Credential, *, nonce: str) -> bytes:
        """The payload to answer with AUTH_CONTINUE; an unknown user gets an `impostor`."""
        self._credential = credential
        self._nonce = self._client_nonce + nonce
        server_first = f"r={self._nonce},s={_base64(credential.salt)},i={credential.iterations}"
        self._auth = f"{self._client_bare},{server_first}"
        return server_first.encode("utf-8")

    def final(self, client_final: bytes) -> bytes | None:
        """The signature to answer with SUCCESS, or None: answer AUTH_ERROR, whatever was wrong."""
        credential = self._credential
        assert credential is not None, "challenge comes before final"
        text = _text(client_final)
        channel, nonce, *_ = _attributes(text, "c", "r")
        without_proof, found, proof_text = text.rpartition(",p=")
        if not found:
            raise RemoteProtocolError("SCRAM message lacks p= at its end")
        if channel != CHANNEL or nonce != self._nonce:
            return None
        hash_name = HASHES[credential.mechanism]
        auth = f"{self._auth},{without_proof}".encode()
        signature = _hmac(hash_name, credential.stored_key, auth)
        proof = _unbase64(proof_text, "proof")
        if len(proof) != len(signature):
            return None
        if not hmac.compare_digest(_hash(hash_name, _xor(proof, signature)), credential.stored_key):
            return None
        return f"v={_base64(_hmac(hash_name, credential.server_key, auth))}".encode()


class PlainLogin(NamedTuple):
    """Who says to be who with PLAIN."""

    user: str
    password: str


def plain_payload(user: str, password: str) -> bytes:
    """The payload of SASL_AUTH with PLAIN."""
    return b"\0".join((b"", user.encode("utf-8"), password.encode("utf-8")))


def read_plain(payload: bytes) -> PlainLogin:
    """The user and password of a PLAIN payload; an authzid other than the user is refused."""
    parts = _text(payload).split("\0")
    if len(parts) != 3:
        raise RemoteProtocolError(f"PLAIN payload has {len(parts)} parts, expected 3")
    authzid, user, password = parts
    if authzid not in ("", user):
        raise RemoteProtocolError("PLAIN payload asks for the rights of another user")
    return PlainLogin(user, password)


def choose(offered: str, *, encrypted: bool) -> str | None:
    """The strongest mechanism of a server's list that this link allows; None if there is none."""
    names = offered.split()
    allowed: list[str] = [*HASHES, PLAIN] if encrypted else list(HASHES)
    for mechanism in allowed:
        if mechanism in names:
            return mechanism
    return None
