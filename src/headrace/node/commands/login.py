"""Who is there: HELLO, SASL, SELECT_BUCKET, and what a client learns before it works.

* HELLO grants what the node really does and starts over each time. Combinations that contradict
  themselves are EINVAL, as in released servers.
* PLAIN shows the password to whoever listens, so it is offered inside TLS and on loopback only.
* A failed login looks the same whether the user or the password was wrong.

Imports: errors, protocol.scram, wire, node.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from headrace.errors import RemoteProtocolError
from headrace.node.command import Command
from headrace.node.config import FAILED_LOGINS_MAX, VERSION
from headrace.node.error_map import error_map
from headrace.node.logs import note
from headrace.node.refusal import Refusal
from headrace.node.replies import Later
from headrace.node.users import Role
from headrace.protocol.scram import HASHES, PLAIN, ScramServer, read_plain
from headrace.wire import admin
from headrace.wire.opcodes import Datatype, Feature, Opcode, Status

if TYPE_CHECKING:
    from headrace.node.session import Session
    from headrace.wire.message import Reply

GRANTED: Final = frozenset(
    {
        Feature.TCP_NODELAY,
        Feature.MUTATION_SEQNO,
        Feature.XATTR,
        Feature.XERROR,
        Feature.SELECT_BUCKET,
        Feature.SNAPPY,
        Feature.JSON,
        Feature.DUPLEX,
        Feature.CLUSTERMAP_CHANGE,
        Feature.ALT_REQUEST,
        Feature.SYNC_REPLICATION,
        Feature.COLLECTIONS,
        Feature.SNAPPY_EVERYWHERE,
        Feature.PRESERVE_TTL,
        Feature.VATTR,
        Feature.SUBDOC_CREATE_AS_DELETED,
        Feature.SUBDOC_MACRO,
        Feature.SUBDOC_REPLACE_BODY,
        Feature.CONFIG_WITH_KNOWN_VERSION,
        Feature.DEDUPE_NMVB_CLUSTERMAP,
        Feature.CLUSTERMAP_CHANGE_BRIEF,
    }
)
"""Features the node has; TCP delay, unordered execution, tracing and units it has not."""
NEEDS: Final = {
    Feature.CLUSTERMAP_CHANGE: Feature.DUPLEX,
    Feature.CLUSTERMAP_CHANGE_BRIEF: Feature.DUPLEX,
    Feature.VATTR: Feature.XATTR,
}
AGENT_SIZE_MAX: Final = 250


def hello(session: Session, message: admin.Hello) -> admin.HelloReply:
    """Grant what was asked for and is there."""
    if len(message.key) > AGENT_SIZE_MAX:
        raise Refusal(Status.EINVAL, f"agent of {len(message.key)} bytes, limit {AGENT_SIZE_MAX}")
    asked = dict.fromkeys(message.features)
    if Feature.TCP_NODELAY in asked and Feature.TCP_DELAY in asked:
        raise Refusal(Status.EINVAL, "tcp-nodelay and tcp-delay exclude each other")
    for feature, needed in NEEDS.items():
        if feature in asked and needed not in asked:
            raise Refusal(
                Status.EINVAL, f"feature {feature.name.lower()} needs {needed.name.lower()}"
            )
    granted = tuple(feature for feature in asked if feature in GRANTED)
    session.negotiate(granted)
    session.agent = message.key.decode("utf-8", "replace")
    note("hello", logging.DEBUG, connection=session.number, agent=session.agent)
    return admin.HelloReply(features=granted)


# -- SASL ----------------------------------------------------------------------------------------


def mechanisms(session: Session) -> tuple[str, ...]:
    """The mechanisms this peer may use, strongest first."""
    if session.node.users is None:
        return ()
    return (*HASHES, PLAIN) if session.encrypted or session.loopback else tuple(HASHES)


def sasl_list_mechs(session: Session, message: admin.SaslListMechs) -> admin.SaslListMechsReply:  # noqa: ARG001
    """Name the mechanisms."""
    return admin.SaslListMechsReply(value=" ".join(mechanisms(session)).encode())


def sasl_auth(session: Session, message: admin.SaslAuth) -> Reply | Later:
    """Begin a login; whoever was logged in is not any more."""
    _check_before_open(session)
    session.user = None
    session.login = None
    mechanism = message.key.decode("ascii", "replace")
    if mechanism not in mechanisms(session):
        raise _failed(session, f"mechanism {mechanism!r} is not offered here")
    try:
        if mechanism == PLAIN:
            return _plain(session, message.value)
        return _challenge(session, mechanism, message.value)
    except RemoteProtocolError as error:
        raise _failed(session, str(error)) from error


def _challenge(session: Session, mechanism: str, payload: bytes) -> Later:
    users = session.node.users
    assert users is not None
    server = ScramServer(payload)
    later = Later()

    def challenged(credential: object) -> None:
        if isinstance(credential, BaseException):
            later.resolve(_failed(session, str(credential)))
            return
        challenge = server.challenge(credential, nonce=users.nonce())  # type: ignore[arg-type]
        session.login = (mechanism, server)
        later.resolve(admin.SaslAuthReply(status=Status.AUTH_CONTINUE, value=challenge))

    # Salting a password the first time is slow on purpose: not on the event loop.
    session.link.off_loop(lambda: users.credential(mechanism, server.user), challenged)
    return later


def sasl_step(session: Session, message: admin.SaslStep) -> Reply:
    """Check the proof."""
    if session.login is None:
        raise Refusal(Status.EINVAL, "SASL_STEP without SASL_AUTH")
    mechanism, server = session.login
    session.login = None
    if message.key and message.key.decode("ascii", "replace") != mechanism:
        raise _failed(session, "the mechanism changed during the login")
    try:
        signature = server.final(message.value)
    except RemoteProtocolError as error:
        raise _failed(session, str(error)) from error
    if signature is None:
        raise _failed(session, "wrong user or password", user=server.user)
    _logged_in(session, server.user)
    return admin.SaslStepReply(value=signature)


def _plain(session: Session, payload: bytes) -> Later:
    users = session.node.users
    assert users is not None
    login = read_plain(payload)
    later = Later()

    def checked(admitted: object) -> None:
        if admitted is True:
            _logged_in(session, login.user)
            later.resolve(admin.SaslAuthReply())
        else:
            later.resolve(_failed(session, "wrong user or password", user=login.user))

    session.link.off_loop(lambda: users.admits(login.user, login.password), checked)
    return later


def _logged_in(session: Session, name: str) -> None:
    users = session.node.users
    assert users is not None
    user = users.find(name)
    assert user is not None, "an unknown user has no password that fits"
    session.log_in(user)


def _failed(session: Session, why: str, *, user: str = "") -> Refusal:
    session.failed_logins += 1
    session.node.counters.failed_logins += 1
    note(
        "login_failed",
        logging.WARNING,
        connection=session.number,
        peer=session.peer,
        user=user,
        reason=why,
    )
    enough = session.failed_logins >= FAILED_LOGINS_MAX
    # What was wrong goes to the log alone: a guesser learns nothing from the reply.
    return Refusal(Status.AUTH_ERROR, "too many failed logins" if enough else "", close=enough)


def _check_before_open(session: Session) -> None:
    if session.producer is not None:
        raise Refusal(Status.EINVAL, "SASL on a change-stream connection; log in before OPEN")


# -- buckets and maps ----------------------------------------------------------------------------


def select_bucket(session: Session, message: admin.SelectBucket) -> admin.SelectBucketReply:
    """Work on a bucket."""
    if session.producer is not None:
        raise Refusal(Status.EINVAL, "SELECT_BUCKET on a change-stream connection")
    name = message.key.decode("utf-8", "replace")
    host = session.node.hosts.get(name)
    if session.role == Role.NONE or (session.user and not session.user.may_use(name)):
        raise Refusal(Status.EACCESS, "no access to this bucket, or there is no such bucket")
    if host is None:
        raise Refusal(Status.KEY_ENOENT, f"there is no bucket {name!r}")
    session.select(host, asked=True)
    return admin.SelectBucketReply()


def list_buckets(session: Session, message: admin.ListBuckets) -> admin.ListBucketsReply:  # noqa: ARG001
    """Name the buckets this user may use."""
    names = [
        name for name in session.node.hosts if session.user is None or session.user.may_use(name)
    ]
    return admin.ListBucketsReply(value=" ".join(names).encode())


def get_cluster_config(
    session: Session, message: admin.GetClusterConfig
) -> admin.GetClusterConfigReply:
    """Send the map of the selected bucket; of the nodes alone to who has yet to select one."""
    host = session.selected
    if not session.bucket_selected and session.has(Feature.SELECT_BUCKET):
        host = None
    version = session.node.map_version(host)
    datatype = Datatype.JSON if session.has(Feature.JSON) else 0
    known = (message.known_epoch or 0, message.known_revision or 0)
    if message.known_epoch is not None and known >= (version.epoch, version.revision):
        return admin.GetClusterConfigReply()
    session.map_sent = version
    return admin.GetClusterConfigReply(
        value=session.node.map_of(host, session.address), datatype=datatype
    )


def get_error_map(session: Session, message: admin.GetErrorMap) -> admin.GetErrorMapReply:
    """Send the meaning of each status."""
    if message.version == 0:
        raise Refusal(Status.EINVAL, "error map version 0; the first is 1")
    datatype = Datatype.JSON if session.has(Feature.JSON) else 0
    return admin.GetErrorMapReply(value=error_map(message.version), datatype=datatype)


# -- small things --------------------------------------------------------------------------------


def version(session: Session, message: admin.Version) -> admin.VersionReply:  # noqa: ARG001
    """Name our version."""
    return admin.VersionReply(value=VERSION.encode())


def noop(session: Session, message: admin.KvNoop) -> admin.KvNoopReply:  # noqa: ARG001
    """Do nothing; everything before it is answered."""
    return admin.KvNoopReply()


def quit_(session: Session, message: admin.Quit) -> admin.QuitReply | None:
    """Close the connection once the reply is sent."""
    session.closing = "the peer quit"
    return None if message.quiet else admin.QuitReply()


ROWS: Final = (
    Command(opcode=Opcode.HELLO, function=hello),
    Command(opcode=Opcode.SASL_LIST_MECHS, function=sasl_list_mechs),
    Command(opcode=Opcode.SASL_AUTH, function=sasl_auth),
    Command(opcode=Opcode.SASL_STEP, function=sasl_step),
    Command(opcode=Opcode.SELECT_BUCKET, function=select_bucket),
    Command(opcode=Opcode.LIST_BUCKETS, function=list_buckets, role=Role.READ),
    Command(opcode=Opcode.GET_CLUSTER_CONFIG, function=get_cluster_config, role=Role.READ),
    Command(opcode=Opcode.GET_ERROR_MAP, function=get_error_map),
    Command(opcode=Opcode.VERSION, function=version),
    Command(opcode=Opcode.KV_NOOP, function=noop),
    Command(opcode=Opcode.QUIT, function=quit_),
    Command(opcode=Opcode.QUITQ, function=quit_),
)
