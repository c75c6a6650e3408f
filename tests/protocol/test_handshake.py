"""The opening of a connection against producers that have everything, little, or nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from headrace.errors import ConfigError, RemoteProtocolError, StatusError
from headrace.protocol.events import Connected, RefusedControl
from headrace.protocol.handshake import (
    ConsumerSettings,
    Handshake,
    refusal_text,
    wanted_controls,
    wanted_features,
    wanted_flags,
)
from headrace.protocol.scram import Credential, ScramServer, impostor, read_plain
from headrace.wire import admin
from headrace.wire import messages as m
from headrace.wire.dialect import Dialect
from headrace.wire.message import ErrorReply, Reply, Request
from headrace.wire.opcodes import Feature, Opcode, OpenFlag, Status

if TYPE_CHECKING:
    from collections.abc import Mapping

EVERYTHING: Final = tuple(int(feature) for feature in Feature)
PASSWORD: Final = "pencil"  # noqa: S105 - of a server that lives in this file
OPCODES: Final[dict[type[Request], Opcode]] = {
    admin.Hello: Opcode.HELLO,
    admin.SaslListMechs: Opcode.SASL_LIST_MECHS,
    admin.SaslAuth: Opcode.SASL_AUTH,
    admin.SaslStep: Opcode.SASL_STEP,
    admin.SelectBucket: Opcode.SELECT_BUCKET,
    m.Open: Opcode.OPEN,
    m.Control: Opcode.CONTROL,
}


class Server:
    """A producer that answers a handshake; ``refuses`` maps a request's name to a status.

    The name is the opcode's, or ``CONTROL key``, or ``OPEN 0x21``.
    """

    def __init__(
        self,
        *,
        features: tuple[int, ...] = EVERYTHING,
        mechanisms: str = "SCRAM-SHA512 SCRAM-SHA256 SCRAM-SHA1 PLAIN",
        refuses: Mapping[str, int] | None = None,
        user: str = "user",
    ) -> None:
        self.features = features
        self.mechanisms = mechanisms
        self.refuses = refuses or {}
        self.user = user
        self.seen: list[str] = []
        self.requests: list[Request] = []
        self.scram: ScramServer | None = None

    def names(self, request: Request) -> list[str]:
        name = OPCODES[type(request)].name
        if isinstance(request, m.Control):
            return [f"{name} {request.key.decode()}", name]
        if isinstance(request, m.Open):
            return [f"{name} {request.flags:#x}", name]
        return [name]

    def answer(self, request: Request) -> Reply:
        names = self.names(request)
        self.seen.append(names[0])
        self.requests.append(request)
        for name in names:
            if name in self.refuses:
                return ErrorReply(
                    opaque=request.opaque, opcode=OPCODES[type(request)], status=self.refuses[name]
                )
        return self.accept(request)

    def accept(self, request: Request) -> Reply:
        opaque = request.opaque
        match request:
            case admin.Hello(features=asked):
                return admin.HelloReply(
                    opaque=opaque, features=tuple(n for n in asked if n in self.features)
                )
            case admin.SaslListMechs():
                return admin.SaslListMechsReply(opaque=opaque, value=self.mechanisms.encode())
            case admin.SaslAuth(key=b"PLAIN"):
                login = read_plain(request.value)
                good = login == (self.user, PASSWORD)
                return admin.SaslAuthReply(opaque=opaque) if good else self.denied(request)
            case admin.SaslAuth():
                return self.challenge(request)
            case admin.SaslStep():
                assert self.scram is not None
                signature = self.scram.final(request.value)
                if signature is None:
                    return self.denied(request)
                return admin.SaslStepReply(opaque=opaque, value=signature)
            case admin.SelectBucket():
                return admin.SelectBucketReply(opaque=opaque)
            case m.Open():
                return m.OpenReply(opaque=opaque)
        assert isinstance(request, m.Control)
        return m.ControlReply(opaque=opaque)

    def challenge(self, request: admin.SaslAuth) -> Reply:
        self.scram = ScramServer(request.value)
        mechanism = request.key.decode()
        if self.scram.user == self.user:
            known = Credential.of(mechanism, PASSWORD, salt=b"salt" * 4, iterations=10)
        else:
            known = impostor(mechanism, self.scram.user, secret=b"secret", iterations=10)
        return admin.SaslAuthReply(
            opaque=request.opaque,
            status=Status.AUTH_CONTINUE,
            value=self.scram.challenge(known, nonce="server"),
        )

    def denied(self, request: Request) -> Reply:
        return ErrorReply(
            opaque=request.opaque, opcode=OPCODES[type(request)], status=Status.AUTH_ERROR
        )


def settings(**more: object) -> ConsumerSettings:
    wanted: dict[str, object] = {
        "name": "test",
        "user": "user",
        "password": PASSWORD,
        "bucket": "default",
        **more,
    }
    return ConsumerSettings(**wanted)  # type: ignore[arg-type]


def shake(server: Server, wanted: ConsumerSettings) -> Connected:
    handshake = Handshake(wanted, nonce="client")
    for _ in range(60):
        request = handshake.request
        if request is None:
            assert handshake.connected is not None
            assert handshake.connected.dialect is handshake.dialect
            return handshake.connected
        handshake.receive(server.answer(request))
    raise AssertionError("the handshake does not end")


def test_a_producer_that_has_everything_is_asked_in_the_documented_order() -> None:
    server = Server()
    connected = shake(server, settings())
    assert server.seen == [
        "HELLO",
        "SASL_LIST_MECHS",
        "SASL_AUTH",
        "SASL_STEP",
        "SELECT_BUCKET",
        "OPEN 0x21",
        "CONTROL enable_noop",
        "CONTROL set_noop_interval",
        "CONTROL connection_buffer_size",
        "CONTROL supports_cursor_dropping",
        "CONTROL send_stream_end_on_client_close_stream",
        "CONTROL enable_expiry_opcode",
    ]
    assert connected.dialect is Dialect.DCP_7
    assert connected.refused == ()
    assert ("set_noop_interval", "20") in connected.controls


def test_every_request_has_its_own_opaque() -> None:
    server = Server()
    shake(server, settings())
    opaques = [request.opaque for request in server.requests]
    assert len(set(opaques)) == len(opaques)


def test_without_user_and_bucket_there_is_no_login_and_no_selection() -> None:
    server = Server()
    shake(server, settings(user=None, bucket=None))
    assert server.seen[:2] == ["HELLO", "OPEN 0x21"]


def test_what_an_old_server_refuses_is_absent_and_the_rest_stays() -> None:
    """As a real consumer node does with an older source that refuses three controls."""
    refused = {
        "CONTROL supports_cursor_dropping": Status.EINVAL,
        "CONTROL send_stream_end_on_client_close_stream": Status.NOT_SUPPORTED,
        "CONTROL enable_expiry_opcode": Status.EINVAL,
    }
    connected = shake(Server(refuses=refused), settings())
    assert connected.refused == tuple(
        RefusedControl(name.removeprefix("CONTROL "), "true", status)
        for name, status in refused.items()
    )
    assert [key for key, _ in connected.controls] == [
        "enable_noop",
        "set_noop_interval",
        "connection_buffer_size",
    ]


@pytest.mark.parametrize(
    ("features", "dialect", "flags"),
    [
        (EVERYTHING, Dialect.DCP_7, 0x21),
        ((Feature.COLLECTIONS, Feature.XATTR), Dialect.DCP_7, 0x21),
        ((Feature.SYNC_REPLICATION, Feature.XATTR), Dialect.DCP_7, 0x21),
        ((Feature.XATTR, Feature.JSON), Dialect.DCP_5, 0x21),
        ((Feature.TCP_NODELAY,), Dialect.DCP_3, 0x01),
        ((), Dialect.DCP_3, 0x01),
    ],
)
def test_the_features_granted_prove_the_dialect(
    features: tuple[int, ...], dialect: Dialect, flags: int
) -> None:
    server = Server(features=features)
    assert shake(server, settings()).dialect is dialect
    assert f"OPEN {flags:#x}" in server.seen


def test_a_server_without_hello_is_spoken_to_in_dcp_3() -> None:
    connected = shake(Server(refuses={"HELLO": Status.UNKNOWN_COMMAND}), settings())
    assert (connected.dialect, connected.features) == (Dialect.DCP_3, frozenset())


def test_an_open_that_refuses_our_flags_is_asked_again_in_the_older_dialect() -> None:
    server = Server(refuses={"OPEN 0x21": Status.EINVAL})
    assert shake(server, settings()).dialect is Dialect.DCP_3
    assert [name for name in server.seen if name.startswith("OPEN")] == ["OPEN 0x21", "OPEN 0x1"]


def test_a_server_without_control_speaks_the_draft() -> None:
    server = Server(features=(), refuses={"CONTROL": Status.UNKNOWN_COMMAND})
    connected = shake(server, settings())
    assert connected.dialect is Dialect.UPR_DRAFT
    assert connected.controls == ()
    assert sum(name.startswith("CONTROL") for name in server.seen) == 1, "one was enough"


@pytest.mark.parametrize("dialect", Dialect)
def test_a_dialect_that_is_named_is_not_searched_for(dialect: Dialect) -> None:
    server = Server(features=EVERYTHING)
    assert shake(server, settings(dialect=dialect)).dialect is dialect
    controls = sum(name.startswith("CONTROL") for name in server.seen)
    assert (controls == 0) is (dialect is Dialect.UPR_DRAFT)


def test_a_named_dialect_does_not_give_way_when_open_is_refused() -> None:
    server = Server(refuses={"OPEN": Status.EINVAL})
    with pytest.raises(StatusError, match="connection 'test' was refused: OPEN answered EINVAL"):
        shake(server, settings(dialect=Dialect.DCP_7))
    assert server.seen.count("OPEN 0x21") == 1


def test_an_open_refused_twice_ends_the_handshake() -> None:
    with pytest.raises(StatusError) as caught:
        shake(Server(refuses={"OPEN": Status.EINVAL}), settings())
    assert (caught.value.status, caught.value.opcode) == (Status.EINVAL, Opcode.OPEN)


@pytest.mark.parametrize("status", [Status.KEY_ENOENT, Status.EACCESS])
def test_a_bucket_that_is_refused_ends_the_handshake(status: Status) -> None:
    with pytest.raises(StatusError, match="bucket 'default' was refused") as caught:
        shake(Server(refuses={"SELECT_BUCKET": status}), settings())
    assert caught.value.status == status


def test_a_server_older_than_bucket_selection_is_taken_as_it_is() -> None:
    shake(Server(refuses={"SELECT_BUCKET": Status.UNKNOWN_COMMAND}), settings())


# -- login ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mechanisms", "used"),
    [
        ("SCRAM-SHA512 SCRAM-SHA256 SCRAM-SHA1 PLAIN", b"SCRAM-SHA512"),
        ("PLAIN SCRAM-SHA1 SCRAM-SHA256", b"SCRAM-SHA256"),
        ("SCRAM-SHA1", b"SCRAM-SHA1"),
    ],
)
def test_the_strongest_scram_on_the_list_logs_in(mechanisms: str, used: bytes) -> None:
    server = Server(mechanisms=mechanisms)
    shake(server, settings())
    assert [r.key for r in server.requests if isinstance(r, admin.SaslAuth)] == [used]


def test_a_server_that_lists_nothing_is_tried_with_the_strongest() -> None:
    server = Server(refuses={"SASL_LIST_MECHS": Status.UNKNOWN_COMMAND})
    shake(server, settings())
    assert [r.key for r in server.requests if isinstance(r, admin.SaslAuth)] == [b"SCRAM-SHA512"]


def test_a_password_is_not_sent_over_a_link_that_shows_it() -> None:
    server = Server(mechanisms="PLAIN")
    with pytest.raises(ConfigError, match="PLAIN would show the password"):
        shake(server, settings())
    assert server.seen == ["HELLO", "SASL_LIST_MECHS"]


def test_plain_is_used_on_an_encrypted_link_that_offers_nothing_better() -> None:
    server = Server(mechanisms="PLAIN")
    shake(server, settings(encrypted=True))
    assert [r.key for r in server.requests if isinstance(r, admin.SaslAuth)] == [b"PLAIN"]


@pytest.mark.parametrize("wrong", [{"password": "pen"}, {"user": "nobody"}])
@pytest.mark.parametrize(("mechanisms", "encrypted"), [("SCRAM-SHA256", False), ("PLAIN", True)])
def test_a_wrong_user_and_a_wrong_password_are_refused_alike(
    wrong: dict[str, object], mechanisms: str, encrypted: bool
) -> None:
    with pytest.raises(StatusError, match="login was refused") as caught:
        shake(Server(mechanisms=mechanisms), settings(encrypted=encrypted, **wrong))
    assert caught.value.status == Status.AUTH_ERROR


class Impostor(Server):
    """A server that says yes without knowing the password."""

    def __init__(self, *, at_once: bool = False, another: bool = False) -> None:
        super().__init__()
        self.at_once = at_once
        self.another = another

    def accept(self, request: Request) -> Reply:
        if isinstance(request, admin.SaslAuth) and self.at_once:
            return admin.SaslAuthReply(opaque=request.opaque)
        if isinstance(request, admin.SaslStep):
            status = Status.AUTH_CONTINUE if self.another else Status.SUCCESS
            return admin.SaslStepReply(opaque=request.opaque, status=status, value=b"v=AAAA")
        return super().accept(request)


@pytest.mark.parametrize(
    ("server", "complaint"),
    [
        (Impostor(), "signature is wrong"),
        (Impostor(at_once=True), "answered without a challenge"),
        (Impostor(another=True), "asks for another step"),
    ],
)
def test_a_server_that_does_not_know_the_password_is_left(server: Server, complaint: str) -> None:
    with pytest.raises(RemoteProtocolError, match=complaint):
        shake(server, settings())


# -- what is asked for ----------------------------------------------------------------------------


def test_unordered_execution_is_never_asked_for() -> None:
    everything = settings(snappy=True, clustermap_push=True, stream_ids=True)
    assert Feature.UNORDERED not in wanted_features(everything)


def test_features_follow_the_settings() -> None:
    plain = set(wanted_features(settings(collections=False)))
    assert not plain & {Feature.COLLECTIONS, Feature.SNAPPY, Feature.DUPLEX}
    rich = set(wanted_features(settings(snappy=True, clustermap_push=True)))
    assert rich >= {
        Feature.COLLECTIONS,
        Feature.SNAPPY,
        Feature.DUPLEX,
        Feature.CLUSTERMAP_CHANGE,
    }


def test_open_flags_follow_the_settings_and_the_dialect() -> None:
    wanted = settings(xattrs=True, no_value=True)
    assert wanted_flags(wanted, Dialect.DCP_7) == (
        OpenFlag.PRODUCER
        | OpenFlag.INCLUDE_XATTRS
        | OpenFlag.NO_VALUE
        | OpenFlag.INCLUDE_DELETE_TIMES
    )
    assert wanted_flags(wanted, Dialect.DCP_3) == OpenFlag.PRODUCER


def test_controls_follow_the_settings() -> None:
    wanted = settings(
        snappy=True,
        sync_writes=True,
        out_of_order=True,
        purge_seqnos=True,
        change_streams=True,
        window=0,
        priority="high",
        expirations=False,
        noop_interval_seconds=7,
        controls=(("backfill_order", "sequential"),),
    )
    controls = dict(wanted_controls(wanted, frozenset({Feature.SNAPPY})))
    assert controls == {
        "enable_noop": "true",
        "set_noop_interval": "7",
        "set_priority": "high",
        "supports_cursor_dropping": "true",
        "send_stream_end_on_client_close_stream": "true",
        "force_value_compression": "true",
        "enable_sync_writes": "true",
        "enable_out_of_order_snapshots": "true_with_seqno_advanced",
        "change_streams": "true",
        "max_marker_version": "2.2",
        "backfill_order": "sequential",
    }
    assert "force_value_compression" not in dict(wanted_controls(wanted, frozenset()))


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        ({"name": ""}, r"name of 0 bytes, allowed 1\.\.200"),
        ({"name": "x" * 201}, r"name of 201 bytes"),
        ({"window": -1}, "window of -1 bytes"),
        ({"window": 1 << 32}, "window of 4294967296 bytes"),
        ({"noop_interval_seconds": 0.5}, "whole seconds from 1"),
        ({"noop_interval_seconds": 1.5}, "whole seconds from 1"),
        ({"stream_ids": True, "sync_writes": True}, "exclude each other"),
    ],
)
def test_settings_no_producer_accepts_are_refused(more: dict[str, object], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        settings(**more)


def test_a_password_does_not_show_in_a_printed_setting() -> None:
    assert PASSWORD not in repr(settings())


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (b"", "OPEN answered EINVAL (0x04)"),
        (b"junk", "OPEN answered EINVAL (0x04)"),
        (b"[1]", "OPEN answered EINVAL (0x04)"),
        (b'{"error":1}', "OPEN answered EINVAL (0x04)"),
        (b'{"error":{"context":"too long"}}', "OPEN answered EINVAL (0x04), too long"),
        (b"\xff\xfe", "OPEN answered EINVAL (0x04)"),
    ],
)
def test_a_refusal_is_told_with_the_servers_words_if_it_has_any(value: bytes, text: str) -> None:
    assert refusal_text(ErrorReply(opcode=Opcode.OPEN, status=Status.EINVAL, value=value)) == text


def test_numbers_without_names_are_told_as_numbers() -> None:
    assert refusal_text(ErrorReply(opcode=0xEE, status=0x7777)) == (
        "0xee answered unknown (0x7777)"
    )
