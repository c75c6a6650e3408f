"""Can this bucket be followed? Each step of a connection by itself, so that the first that fails
names its reason.

    address -> name -> reach -> TLS -> login and bucket -> features -> dialect -> vbuckets ->
    collections -> clock

A step that fails ends the list: what comes after it cannot be known. Nothing is written and no
stream is opened.

Imports: errors, client, protocol, wire, cli.finding, cli.texts.
"""

from __future__ import annotations

import secrets
import selectors
import socket
import ssl
import time
from typing import TYPE_CHECKING, Any, Final

from headrace.cli.finding import Finding, failure, good, warning
from headrace.cli.texts import several
from headrace.client.access import access_of
from headrace.client.address import parse_address
from headrace.client.bucket import Bucket
from headrace.client.bulk import ObjectRoad
from headrace.client.dial import dial
from headrace.client.link import Link
from headrace.errors import ConnectionLost, HeadraceError, StatusError
from headrace.protocol import events as e
from headrace.protocol.consumer import ConsumerConnection
from headrace.protocol.handshake import ConsumerSettings, wanted_features
from headrace.wire.opcodes import Feature, Opcode, Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.client.access import Access
    from headrace.client.address import NodeAddress

CLOCK_SECONDS_MAX: Final = 2.0
CERTIFICATE_DAYS_MIN: Final = 14
DAY_SECONDS: Final = 86_400
NAMES_SHOWN: Final = 6


def examine(url: str, bucket: str | None, words: dict[str, Any]) -> Iterator[Finding]:
    """Check a source, one finding at a time; the first that fails is the last."""
    try:
        address = parse_address(url)
        access = access_of(address, **words)
    except HeadraceError as error:
        yield failure("address", str(error), "correct the URL or the options")
        return
    name = bucket or address.bucket
    yield good("address", f"{address}, {several(len(address.nodes), 'node')} named")
    if name is None:
        yield failure("bucket", "the URL names none", f"write {address}/BUCKET or give --bucket")
        return
    for node in address.nodes:
        findings = list(_reached(node, access))
        yield from findings
        if any(one.verdict.value == "fail" for one in findings):
            return
    try:
        opened = Bucket(address.nodes, access, name)
    except HeadraceError as error:
        yield _refused(error, access, name)
        return
    with opened:
        yield good("login", _login(access))
        yield good("bucket", f"{name}, uuid {opened.uuid or 'unknown'}")
        yield from _asked(opened)


def _reached(node: NodeAddress, access: Access) -> Iterator[Finding]:
    """Name, network and encryption of one node."""
    try:
        found = socket.getaddrinfo(node.host, node.port, type=socket.SOCK_STREAM)
    except OSError as error:
        advice = "check the spelling, or the name service of this machine"
        yield failure("name", f"{node.host} is unknown: {error.strerror}", advice)
        return
    addresses = sorted({str(one[4][0]) for one in found})
    yield good("name", f"{node.host} is {', '.join(addresses[:NAMES_SHOWN])}")
    began = time.monotonic()
    try:
        link = dial(node, access, small=True)
    except HeadraceError as error:
        yield failure("reach", str(error), "see headrace doctor -h for the options of a connection")
        return
    with link:
        yield good("reach", f"{node} in {1000 * (time.monotonic() - began):.1f} ms")
        yield _encryption(node, link)


def _encryption(node: NodeAddress, link: socket.socket) -> Finding:
    if not isinstance(link, ssl.SSLSocket):
        if node.host in ("localhost", "::1") or node.host.startswith("127."):
            return good("tls", "not used, and not needed on this machine")
        advice = "use couchbases:// where the network is not yours alone"
        return warning("tls", "not used: documents can be read on the way", advice)
    certificate = link.getpeercert() or {}
    ends = certificate.get("notAfter")
    found = f"{link.version()}, {(link.cipher() or ('',))[0]}"
    if not isinstance(ends, str):
        return warning("tls", f"{found}, certificate not checked", "leave --no-verify out")
    days = (ssl.cert_time_to_seconds(ends) - time.time()) / DAY_SECONDS
    found += f", certificate good for {days:,.0f} days"
    if days < CERTIFICATE_DAYS_MIN:
        return warning("tls", found, "renew the node's certificate")
    return good("tls", found)


def _refused(error: HeadraceError, access: Access, name: str) -> Finding:
    if isinstance(error, StatusError) and error.opcode == Opcode.SELECT_BUCKET:
        return failure("bucket", str(error), f"check the name {name!r} and the user's rights")
    if isinstance(error, StatusError):
        who = "give --user" if access.user is None else "check user and password"
        return failure("login", str(error), who)
    return failure("login", str(error), "is this a data node's port?")


def _login(access: Access) -> str:
    return "not asked for" if access.user is None else f"as {access.user}"


def _asked(bucket: Bucket) -> Iterator[Finding]:
    """What a bucket says about itself."""
    node = bucket.cluster_map.nodes[0]
    for check in (_features, _dialect):
        try:
            yield check(bucket, node)
        except HeadraceError as error:
            advice = "the user needs the right to stream: data reader, or data DCP reader"
            yield failure("streams", str(error), advice)
            return
    yield _vbuckets(bucket)
    yield _collections(bucket)
    yield _clock(bucket)


def _features(bucket: Bucket, node: NodeAddress) -> Finding:
    with bucket.kv(node) as link:
        granted = link.features
    asked = wanted_features(ConsumerSettings(name="doctor"))
    names = {int(feature): feature.name.lower() for feature in Feature}
    agreed = ", ".join(names.get(one, f"{one:#x}") for one in asked if one in granted)
    refused = ", ".join(names.get(one, f"{one:#x}") for one in asked if one not in granted)
    found = f"agreed {agreed}"
    return good("features", f"{found}; not there: {refused}" if refused else found)


def _dialect(bucket: Bucket, node: NodeAddress) -> Finding:
    told = _opened(bucket, node)
    refused = ", ".join(one.key for one in told.refused)
    found = f"{told.dialect.value}, spoken {told.dialect.era}"
    return good("dialect", f"{found}; controls refused: {refused}" if refused else found)


def _opened(bucket: Bucket, node: NodeAddress) -> e.Connected:
    """Open a connection for change streams, as far as its handshake goes."""
    access = bucket.access
    settings = ConsumerSettings(
        name=f"headrace-doctor:{secrets.token_hex(6)}",
        user=access.user,
        password=access.password,
        bucket=bucket.name,
        encrypted=access.tls is not None,
        dialect=access.dialect,
    )
    now = time.monotonic()
    connection = ConsumerConnection(settings, now=now, nonce=secrets.token_urlsafe(24))
    link = Link(dial(node, access, small=True), node, ObjectRoad(connection), opened_at=now)
    deadline = now + access.connect_seconds
    try:
        link.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(link.socket, selectors.EVENT_READ)
            while time.monotonic() < deadline:
                selector.select(max(0.0, deadline - time.monotonic()))
                for taken in link.pump(now=time.monotonic()):
                    for piece in taken.pieces:
                        if isinstance(piece, e.Connected):
                            return piece
                link.flush()
                if link.lost is not None:
                    raise link.lost
    finally:
        link.close()
    raise ConnectionLost(f"{node} did not finish the handshake in {access.connect_seconds:g} s")


def _vbuckets(bucket: Bucket) -> Finding:
    found = bucket.cluster_map
    homeless = [vb for vb in range(found.vbuckets) if found.node_of(vb) is None]
    seqnos = sum(bucket.seqnos().values())
    text = f"{found.vbuckets} on {several(len(found.nodes), 'node')}, {seqnos:,} seqnos altogether"
    if homeless:
        advice = "fail the lost node over, or wait until it is back"
        return warning("vbuckets", f"{text}; {len(homeless)} have no active node", advice)
    return good("vbuckets", text)


def _collections(bucket: Bucket) -> Finding:
    try:
        manifest = bucket.manifest()
    except StatusError as error:
        if error.status in (Status.UNKNOWN_COMMAND, Status.NOT_SUPPORTED):
            return good("collections", "a server from before collections")
        return warning("collections", str(error), "the default collection can be followed")
    names = sorted(f"{scope}.{name}" for scope, name in manifest.collections)
    shown = ", ".join(names[:NAMES_SHOWN]) + (" ..." if len(names) > NAMES_SHOWN else "")
    return good("collections", f"{len(names)} in {len(manifest.scopes)} scope(s): {shown}")


def _clock(bucket: Bucket) -> Finding:
    """How far the nodes' clocks are from ours: expiry and starting by time depend on them."""
    worst = 0.0
    for node in bucket.cluster_map.nodes:
        with bucket.kv(node) as link:
            before = time.time()
            said = link.stats().get("time", "")
            after = time.time()
        if not said.isdecimal():
            return good("clock", f"{node} does not tell its time")
        # A node tells whole seconds: a time within the second it names is no difference.
        low, high = int(said) - after, int(said) + 1 - before
        apart = 0.0 if low <= 0 <= high else min(abs(low), abs(high))
        worst = max(worst, apart)
    if worst > CLOCK_SECONDS_MAX:
        advice = "set the clocks by NTP: expiry and --since TIME follow the nodes' clocks"
        return warning("clock", f"{worst:.0f} s apart", advice)
    return good("clock", "the same as here, to the second")
