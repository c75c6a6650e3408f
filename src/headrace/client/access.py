"""How to get in: who we are, inside which encryption, how long to wait.

Imports: errors, client.address.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.errors import ConfigError
from headrace.wire.dialect import Dialect

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from headrace.client.address import Address

CONNECT_SECONDS: Final = 10.0
"""How long a connection may take from the first packet to the end of its handshake."""
ANSWER_SECONDS: Final = 30.0
"""How long a node may take to answer a question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """What to trust and what to show; files are PEM."""

    trust: str | None = None
    certificate: str | None = None
    key: str | None = None
    verify: bool = True

    def context(self) -> ssl.SSLContext:
        """Read the files; ConfigError names the one that cannot be read."""
        _check_file("trust_certificate", self.trust)
        _check_file("client_certificate", self.certificate)
        _check_file("client_key", self.key)
        if self.key and not self.certificate:
            raise ConfigError("client_key is given without client_certificate; give both")
        try:
            context = ssl.create_default_context(cafile=self.trust)
        except ssl.SSLError as error:
            raise ConfigError(f"trust_certificate {self.trust} is no PEM file: {error}") from error
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if self.certificate:
            try:
                context.load_cert_chain(self.certificate, self.key)
            except ssl.SSLError as error:
                raise ConfigError(
                    f"client_certificate {self.certificate} and its key do not fit together or "
                    f"are no PEM files: {error}"
                ) from error
        return context


def _check_file(option: str, path: str | None) -> None:
    if path is not None and not Path(path).is_file():
        raise ConfigError(f"{option} {path} is no file; give the path of a PEM file")


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Everything a connection to any node of the cluster needs to know."""

    user: str | None = None
    password: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    network: str = "auto"
    connect_seconds: float = CONNECT_SECONDS
    answer_seconds: float = ANSWER_SECONDS
    dialect: Dialect | None = None
    compression: bool = False
    tap: Callable[[socket.socket], socket.socket] | None = field(default=None, repr=False)
    """Put between us and every socket, to record what is said."""

    def __post_init__(self) -> None:
        """Refuse times that are none."""
        for name, seconds in (
            ("connect_seconds", self.connect_seconds),
            ("answer_seconds", self.answer_seconds),
        ):
            if not seconds > 0:
                raise ConfigError(f"{name} is {seconds}, allowed: more than 0")


def access_of(
    address: Address,
    *,
    user: str | None,
    password: str | None,
    tls: Tls | None = None,
    connect_seconds: float | None = None,
    dialect: Dialect | str | None = None,
) -> Access:
    """Join what the connection string says and what the caller says; the caller wins."""
    options = address.options
    if password is not None and user is None:
        raise ConfigError("a password is given without a user; give both")
    wanted = tls or Tls(
        trust=options.get("trust_certificate"),
        certificate=options.get("client_certificate"),
        key=options.get("client_key"),
        verify=options.get("tls_verify", "peer") == "peer",
    )
    if not address.tls and (wanted != Tls() or tls is not None):
        raise ConfigError(
            "certificates are given and the scheme is couchbase://, which is not encrypted; "
            "write couchbases://"
        )
    named = dialect if dialect is not None else options.get("dialect")
    seconds = connect_seconds or float(options.get("kv_connect_timeout", CONNECT_SECONDS))
    return Access(
        user=user,
        password=password or "",
        tls=wanted.context() if address.tls else None,
        network=options.get("network", "auto"),
        connect_seconds=seconds,
        dialect=Dialect.named(named) if isinstance(named, str) else named,
        compression=bool(options.get("compression", "")),
    )
