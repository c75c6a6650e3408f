"""Open a socket to a node, or say in one sentence why not and what to try.

Rules
- Bounded: name lookup aside, nothing here waits longer than it was told to.
- A peer that does not speak our protocol is looked at once more, with one line of HTTP, to name
  what it is: people mix up 8091 and 11210 more often than anything else.

Imports: errors, client.address.
"""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from headrace.client.address import PORT, TLS_PORT, NodeAddress
from headrace.errors import CannotConnect

if TYPE_CHECKING:
    from headrace.client.access import Access

PROBE_SECONDS: Final = 2.0
PROBE: Final = b"GET / HTTP/1.0\r\n\r\n"
RECEIVE_BUFFER_SIZE: Final = 4 << 20
"""What we ask the kernel to hold for us; it may give less."""
TLS_RECORD: Final = (b"\x15\x03", b"\x16\x03")

_WHERE: Final = f"data nodes listen at {PORT}, inside TLS at {TLS_PORT}"


def dial(node: NodeAddress, access: Access, *, small: bool = False) -> socket.socket:
    """A connected socket that times out; CannotConnect says why there is none.

    ``small``: a connection for questions, which needs no large receive buffer.
    """
    link = _dial(node, access.tls, access.connect_seconds, small)
    return link if access.tap is None else access.tap(link)


def _dial(
    node: NodeAddress, tls: ssl.SSLContext | None, seconds: float, small: bool
) -> socket.socket:
    try:
        link = socket.create_connection((node.host, node.port), timeout=seconds)
    except OSError as error:
        raise CannotConnect(connect_sentence(node, error, seconds)) from error
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if not small:
        with suppress(OSError):
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_SIZE)
    if tls is None:
        return link
    try:
        return tls.wrap_socket(link, server_hostname=node.host)
    except OSError as error:
        link.close()
        raise CannotConnect(tls_sentence(node, error, seconds)) from error


def connect_sentence(node: NodeAddress, error: OSError, seconds: float) -> str:
    """Why no connection came about."""
    if isinstance(error, socket.gaierror):
        return f"host {node.host!r} is unknown ({error.strerror}); check its spelling"
    if isinstance(error, ConnectionRefusedError):
        return f"nothing listens at {node}; is the node running, and is this its port ({_WHERE})?"
    if isinstance(error, TimeoutError):
        return (
            f"{node} did not answer within {seconds:g} s; check the address, the network between "
            "and its firewalls"
        )
    return f"{node} cannot be reached: {error.strerror or error}"


def tls_sentence(node: NodeAddress, error: OSError, seconds: float) -> str:
    """Why no encrypted connection came about."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return (
            f"the certificate of {node} is not trusted: {error.verify_message.rstrip('.')}; give "
            "the authority that signed it as trust_certificate, or check the host's name"
        )
    if isinstance(error, TimeoutError):
        return (
            f"{node} accepted the connection and said nothing within {seconds:g} s: it does not "
            f"speak TLS; use couchbase:// or the TLS port ({_WHERE})"
        )
    reason = getattr(error, "reason", None) or error.strerror or str(error)
    if reason in ("WRONG_VERSION_NUMBER", "UNEXPECTED_EOF_WHILE_READING") or not isinstance(
        error, ssl.SSLError
    ):
        return f"{node} does not speak TLS ({reason}); use couchbase:// or the TLS port ({_WHERE})"
    return f"{node} refused the TLS handshake ({reason}); check the client certificate"


def handshake_sentence(
    node: NodeAddress, *, said: bytes, encrypted: bool, what: str, probe: bool = True
) -> str:
    """Why a connection that stands led to nothing; ``said`` is what the peer sent, if anything."""
    if said[:2] in TLS_RECORD and not encrypted:
        return f"{node} speaks TLS; use couchbases:// ({_WHERE})"
    if not said and probe and not encrypted:
        said = _probe(node)
    if said.startswith(b"HTTP/"):
        line = said.split(b"\r\n", 1)[0][:60].decode("latin-1")
        return f"{node} speaks HTTP ({line}), not the binary protocol; {_WHERE}"
    if said[:2] in TLS_RECORD and not encrypted:
        return f"{node} speaks TLS; use couchbases:// ({_WHERE})"
    return f"{node} {what}; is it a data node ({_WHERE})?"


def _probe(node: NodeAddress) -> bytes:
    """What a peer that said nothing says to a line of HTTP."""
    try:
        with socket.create_connection((node.host, node.port), timeout=PROBE_SECONDS) as link:
            link.settimeout(PROBE_SECONDS)
            link.sendall(PROBE)
            return link.recv(256)
    except OSError:
        return b""
