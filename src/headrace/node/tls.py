"""TLS: contexts for given certificates, and certificates of our own for development.

A certificate of our own is for loopback and lasts as long as the node: its key is written to a
directory that only the owner may read. Clients must be told to trust it (`headrace serve` prints
how). Making one needs the package ``cryptography`` (extra ``tls``); serving given files needs
nothing.

A node that was given an authority for client certificates asks clients for one. Showing none is
allowed, a password serves as well; one the authority did not sign ends the handshake.

Imports: errors, node.config.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import ssl
from typing import TYPE_CHECKING, Final

from headrace.errors import ConfigError
from headrace.node.config import TlsFiles

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

DAYS_VALID: Final = 30
NAMES: Final = ("localhost",)
ADDRESSES: Final = ("127.0.0.1", "::1")


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """The server's side of TLS 1.2 and later with these files; ConfigError says what is wrong."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(files.certificate, files.key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"TLS files {files.certificate} and {files.key} cannot be used: {error}"
        ) from error
    if files.client_authority is not None:
        try:
            context.load_verify_locations(files.client_authority)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(
                f"the authority for client certificates, {files.client_authority}, cannot be "
                f"used: {error}"
            ) from error
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def common_name(certificate: Mapping[str, object] | None) -> str | None:
    """The name a verified client certificate is for; None without one."""
    subject = (certificate or {}).get("subject", ())
    assert isinstance(subject, tuple)
    return next((text for part in subject for key, text in part if key == "commonName"), None)


def make_certificate(directory: Path, *, host: str = "127.0.0.1") -> TlsFiles:
    """A new self-signed certificate for this machine in ``directory``."""
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID
    except ImportError as error:
        raise ConfigError(
            "a self-signed certificate needs the package cryptography: "
            "pip install 'headrace[tls]', or give --tls-cert and --tls-key"
        ) from error
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "headrace")])
    addresses = {ipaddress.ip_address(address) for address in ADDRESSES}
    names = set(NAMES)
    try:
        addresses.add(ipaddress.ip_address(host))
    except ValueError:
        names.add(host)
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=DAYS_VALID))
        .add_extension(
            x509.SubjectAlternativeName(
                [x509.DNSName(text) for text in sorted(names)]
                + [x509.IPAddress(address) for address in sorted(addresses, key=str)]
            ),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    files = TlsFiles(certificate=directory / "certificate.pem", key=directory / "key.pem")
    files.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    files.key.unlink(missing_ok=True)
    descriptor = os.open(files.key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(private)
    return files
