"""How a consumer opens a connection: a script of requests, each awaiting its reply.

    HELLO, login, SELECT_BUCKET, OPEN, one CONTROL per property

Rules:

* What a producer refuses is absent and the script goes on: HELLO features, bucket selection on
  servers that have none, every control. Only a refused login, bucket or OPEN ends it, with
  StatusError.
* Login takes the strongest SCRAM the server lists. PLAIN, which sends the password, is used only
  when the owner says that the link is encrypted.
* The dialect is found from newest to oldest: by the features granted (`FEATURE_DIALECTS`), one
  step down when OPEN refuses the flags that go with it, to the draft when CONTROL is an unknown
  command. A 20-byte marker means different things in upr-2014 and dcp-3 and nothing tells the two
  apart: upr-2014 must be named by the owner. A dialect that is named is not searched for.
* A consumer of xattrs or collections enables noop first: producers refuse its streams otherwise.
  With collections it always asks for delete times: a real server drops the connection at the first
  deletion without.

The script is a generator: it yields requests and is sent replies; it knows no bytes.

Spec: docs/protocol.md, "Opening a connection".

Imports: errors, protocol.events, protocol.scram, wire.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from headrace.errors import ConfigError, RemoteProtocolError, StatusError
from headrace.protocol import scram
from headrace.protocol.events import Connected, RefusedControl
from headrace.protocol.flow import NOOP_INTERVAL_SECONDS, WINDOW_MAX
from headrace.wire import admin
from headrace.wire import messages as m
from headrace.wire.dialect import Dialect
from headrace.wire.message import ErrorReply, Reply
from headrace.wire.opcodes import Feature, Opcode, OpenFlag, Status

if TYPE_CHECKING:
    from collections.abc import Generator

    from headrace.wire.message import Request

NAME_SIZE_MAX: Final = 200
WINDOW: Final = 20 * 1024 * 1024
AGENT: Final = "headrace"

FEATURE_DIALECTS: Final[tuple[tuple[Feature, Dialect], ...]] = (
    (Feature.COLLECTIONS, Dialect.DCP_7),
    (Feature.SYNC_REPLICATION, Dialect.DCP_7),
    (Feature.XATTR, Dialect.DCP_5),
)
"""A granted feature -> the dialect it proves, newest first; with none of them it is dcp-3."""
RICH_DIALECTS: Final = frozenset({Dialect.DCP_5, Dialect.DCP_7})
"""Dialects whose OPEN knows more flags than PRODUCER."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """What a consumer wants of a connection; what a producer cannot give is left out.

    ``name`` is the connection's name at the producer: a second one of the same name ends the
    first. ``window`` is the flow-control window in bytes, 0 for none. ``encrypted`` says that the
    link hides what is sent. ``controls`` are sent after ours, as they are.
    """

    name: str
    user: str | None = None
    password: str = field(default="", repr=False)
    bucket: str | None = None
    encrypted: bool = False
    dialect: Dialect | None = None
    agent: str = AGENT
    collections: bool = True
    xattrs: bool = False
    no_value: bool = False
    snappy: bool = False
    expirations: bool = True
    sync_writes: bool = False
    stream_ids: bool = False
    out_of_order: bool = False
    purge_seqnos: bool = False
    change_streams: bool = False
    clustermap_push: bool = False
    noop_interval_seconds: float = NOOP_INTERVAL_SECONDS
    window: int = WINDOW
    priority: str | None = None
    controls: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        """Refuse what no producer would accept."""
        size = len(self.name.encode("utf-8"))
        if not 0 < size <= NAME_SIZE_MAX:
            raise ConfigError(f"connection name of {size} bytes, allowed 1..{NAME_SIZE_MAX}")
        if not 0 <= self.window <= WINDOW_MAX:
            raise ConfigError(f"window of {self.window} bytes, allowed 0..{WINDOW_MAX}")
        if self.noop_interval_seconds < 1 or self.noop_interval_seconds % 1:
            raise ConfigError(
                f"noop interval of {self.noop_interval_seconds} s, allowed whole seconds from 1: "
                "older producers read nothing else"
            )
        if self.stream_ids and self.sync_writes:
            raise ConfigError("stream_ids and sync_writes exclude each other at the producer")


def wanted_features(settings: ConsumerSettings) -> tuple[int, ...]:
    """The HELLO features to ask for; never unordered execution, which producers forbid."""
    asked = {
        Feature.TCP_NODELAY: True,
        Feature.XATTR: True,
        Feature.XERROR: True,
        Feature.SELECT_BUCKET: True,
        Feature.SNAPPY: settings.snappy,
        Feature.JSON: True,
        Feature.DUPLEX: settings.clustermap_push,
        Feature.CLUSTERMAP_CHANGE: settings.clustermap_push,
        Feature.ALT_REQUEST: settings.stream_ids,
        Feature.SYNC_REPLICATION: True,
        Feature.COLLECTIONS: settings.collections,
    }
    return tuple(int(feature) for feature, wanted in asked.items() if wanted)


def wanted_flags(settings: ConsumerSettings, dialect: Dialect) -> OpenFlag:
    """The flags of OPEN in a dialect."""
    flags = OpenFlag.PRODUCER
    if dialect not in RICH_DIALECTS:
        return flags
    flags |= OpenFlag.INCLUDE_DELETE_TIMES
    if settings.xattrs:
        flags |= OpenFlag.INCLUDE_XATTRS
    if settings.no_value:
        flags |= OpenFlag.NO_VALUE
    return flags


def wanted_controls(
    settings: ConsumerSettings, features: frozenset[int]
) -> tuple[tuple[str, str], ...]:
    """The properties to set, in order; noop first, since streams depend on it."""
    rows = (
        ("enable_noop", "true", True),
        ("set_noop_interval", str(int(settings.noop_interval_seconds)), True),
        ("connection_buffer_size", str(settings.window), settings.window > 0),
        ("set_priority", settings.priority or "", settings.priority is not None),
        ("supports_cursor_dropping", "true", True),
        ("send_stream_end_on_client_close_stream", "true", True),
        ("enable_expiry_opcode", "true", settings.expirations),
        ("force_value_compression", "true", settings.snappy and Feature.SNAPPY in features),
        ("enable_stream_id", "true", settings.stream_ids),
        ("enable_sync_writes", "true", settings.sync_writes),
        (
            "enable_out_of_order_snapshots",
            "true_with_seqno_advanced",
            settings.out_of_order,
        ),
        ("change_streams", "true", settings.change_streams),
        ("max_marker_version", "2.2", settings.purge_seqnos),
    )
    return (*((key, value) for key, value, wanted in rows if wanted), *settings.controls)


class Handshake:
    """The script, one request at a time: `request` is what to send, `receive` takes its reply."""

    __slots__ = ("_opaque", "_script", "connected", "dialect", "request")

    def __init__(self, settings: ConsumerSettings, *, nonce: str) -> None:
        """Stand before the first request; ``nonce`` is fresh for this login."""
        self.dialect = settings.dialect or Dialect.DCP_7
        self.connected: Connected | None = None
        self._opaque = 1
        self._script = self._run(settings, nonce)
        self.request: Request | None = next(self._script)

    def receive(self, reply: Reply) -> None:
        """Take the reply to ``request`` and move on: another request, or ``connected``."""
        try:
            self.request = self._script.send(reply)
        except StopIteration as done:
            self.request, self.connected = None, done.value

    def _number(self) -> int:
        """The opaque of the next request; replies are matched by it."""
        self._opaque += 1
        return self._opaque

    def _run(self, settings: ConsumerSettings, nonce: str) -> Generator[Request, Reply, Connected]:
        features = yield from self._hello(settings)
        if settings.dialect is None:
            self.dialect = _proven_dialect(features)
        if settings.user is not None:
            yield from self._login(settings, nonce)
        if settings.bucket is not None:
            yield from self._select_bucket(settings.bucket)
        yield from self._open(settings)
        accepted, refused = yield from self._set_controls(settings, features)
        return Connected(
            dialect=self.dialect, features=features, controls=accepted, refused=refused
        )

    def _hello(self, settings: ConsumerSettings) -> Generator[Request, Reply, frozenset[int]]:
        reply = yield admin.Hello(
            opaque=self._number(),
            key=settings.agent.encode("utf-8"),
            features=wanted_features(settings),
        )
        return frozenset(reply.features) if isinstance(reply, admin.HelloReply) else frozenset()

    def _login(self, settings: ConsumerSettings, nonce: str) -> Generator[Request, Reply, None]:
        reply = yield admin.SaslListMechs(opaque=self._number())
        offered = (
            reply.value.decode("ascii", "replace")
            if isinstance(reply, admin.SaslListMechsReply)
            else " ".join((*scram.HASHES, scram.PLAIN))
        )
        mechanism = scram.choose(offered, encrypted=settings.encrypted)
        user, password = settings.user or "", settings.password
        if mechanism is None:
            raise ConfigError(
                f"the server offers {offered!r}; without encryption only SCRAM is used, "
                "because PLAIN would show the password"
            )
        if mechanism == scram.PLAIN:
            payload = scram.plain_payload(user, password)
            yield from self._ask(
                admin.SaslAuth(opaque=self._number(), key=mechanism.encode(), value=payload)
            )
            return
        yield from self._scram(scram.ScramClient(mechanism, user, password, nonce=nonce))

    def _scram(self, client: scram.ScramClient) -> Generator[Request, Reply, None]:
        key = client.mechanism.encode()
        reply = yield from self._ask(
            admin.SaslAuth(opaque=self._number(), key=key, value=client.first())
        )
        if not isinstance(reply, admin.SaslAuthReply) or reply.status != Status.AUTH_CONTINUE:
            raise RemoteProtocolError(
                f"{client.mechanism} login answered without a challenge", fatal=True
            )
        reply = yield from self._ask(
            admin.SaslStep(opaque=self._number(), key=key, value=client.final(reply.value))
        )
        if not isinstance(reply, admin.SaslStepReply) or reply.status != Status.SUCCESS:
            raise RemoteProtocolError(f"{client.mechanism} login asks for another step", fatal=True)
        client.verify(reply.value)

    def _select_bucket(self, bucket: str) -> Generator[Request, Reply, None]:
        reply = yield admin.SelectBucket(opaque=self._number(), key=bucket.encode("utf-8"))
        # A server older than bucket selection has put us into the bucket of our user.
        if isinstance(reply, ErrorReply) and reply.status != Status.UNKNOWN_COMMAND:
            raise refusal(reply, f"bucket {bucket!r} was refused")

    def _open(self, settings: ConsumerSettings) -> Generator[Request, Reply, None]:
        def ask() -> m.Open:
            return m.Open(
                opaque=self._number(),
                flags=wanted_flags(settings, self.dialect),
                key=settings.name.encode("utf-8"),
            )

        reply = yield ask()
        searching = settings.dialect is None and self.dialect in RICH_DIALECTS
        if isinstance(reply, ErrorReply) and reply.status == Status.EINVAL and searching:
            self.dialect = Dialect.DCP_3
            reply = yield ask()
        if isinstance(reply, ErrorReply):
            raise refusal(reply, f"connection {settings.name!r} was refused")

    def _set_controls(
        self, settings: ConsumerSettings, features: frozenset[int]
    ) -> Generator[Request, Reply, tuple[tuple[tuple[str, str], ...], tuple[RefusedControl, ...]]]:
        accepted: list[tuple[str, str]] = []
        refused: list[RefusedControl] = []
        for key, value in wanted_controls(settings, features):
            if self.dialect is Dialect.UPR_DRAFT:  # it has no CONTROL at all
                break
            reply = yield m.Control(
                opaque=self._number(), key=key.encode("utf-8"), value=value.encode("utf-8")
            )
            if not isinstance(reply, ErrorReply):
                accepted.append((key, value))
                continue
            refused.append(RefusedControl(key, value, reply.status))
            if reply.status == Status.UNKNOWN_COMMAND and settings.dialect is None:
                self.dialect = Dialect.UPR_DRAFT
        return tuple(accepted), tuple(refused)

    def _ask(self, request: Request) -> Generator[Request, Reply, Reply]:
        """Send a login request; a refusal ends the script."""
        reply = yield request
        if isinstance(reply, ErrorReply):
            raise refusal(reply, "login was refused")
        return reply


def _proven_dialect(features: frozenset[int]) -> Dialect:
    for feature, dialect in FEATURE_DIALECTS:
        if feature in features:
            return dialect
    return Dialect.DCP_3


def refusal(reply: ErrorReply, what: str, vbucket: int | None = None) -> StatusError:
    """The error for a refused request, with the server's own words if it sent any."""
    return StatusError(
        f"{what}: {refusal_text(reply)}", status=reply.status, opcode=reply.opcode, vbucket=vbucket
    )


def refusal_text(reply: ErrorReply) -> str:
    """The status by name and, if the body is an error context, what it says."""
    try:
        name = Status(reply.status).name
    except ValueError:
        name = "unknown"
    try:
        opcode = Opcode(reply.opcode).name
    except ValueError:
        opcode = f"0x{reply.opcode:02x}"
    text = f"{opcode} answered {name} (0x{reply.status:02x})"
    context = _error_context(reply.value)
    return f"{text}, {context}" if context else text


def _error_context(value: bytes) -> str:
    """The context of a JSON error body; "" for any other body, which is legal and ignored."""
    try:
        body = json.loads(value)
    except ValueError:
        return ""
    error = body.get("error") if isinstance(body, dict) else None
    context = error.get("context") if isinstance(error, dict) else None
    return context if isinstance(context, str) else ""
