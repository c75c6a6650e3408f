"""Conversations as text: commands, ----, what came of them.

A script is blocks separated by empty lines; a block is commands, a line ``----`` and the result.
Lines that start with # are for the reader. One connection and one vbucket (number 5); branches are
called a, b, c... (0xa, 0xb, ...). Commands:

    hold a@7 3..9 log b@5,a@0 bounds 2,3    the position the consumer starts with
    request [end N]                         ask for the stream
    accept b@5,a@0                          the producer's answers
    rollback N / refuse STATUS
    marker A B [flags] / marker             (a bare marker is the draft's)
    mutation N / deletion N / ...           items by name; commit P N, abort P N
    run A B                                 items A and B on the bulk road
    oso start / oso end
    state N / noop / end REASON / close / closed
    drop                                    the link goes; the next request resumes

Results: one line per event and per frame sent, then the state of the stream and its token. Run the
tests with HEADRACE_REWRITE_SCRIPTS=1 to accept new results, then read the diff.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from headrace.errors import HeadraceError
from headrace.history import (
    ZERO,
    Boundaries,
    BranchId,
    FailoverLog,
    ResumeToken,
    Seqno,
    SnapshotRange,
    VBucketId,
)
from headrace.protocol import events as e
from headrace.protocol.consumer import ConsumerConnection
from headrace.protocol.flow import counted_size
from headrace.protocol.handshake import ConsumerSettings
from headrace.protocol.talk import Position, StreamPlan
from headrace.wire import messages as m
from headrace.wire.codec import decode, encode
from headrace.wire.dialect import Dialect
from headrace.wire.frame import Frame, split_frames
from headrace.wire.message import ErrorReply, Message, Request
from headrace.wire.opcodes import (
    MarkerFlag,
    Opcode,
    Status,
    StreamEndReason,
    VBucketState,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

VBUCKET: Final = VBucketId(5)
SEPARATOR: Final = "----"


def connected(settings: ConsumerSettings, *, now: float = 0.0) -> ConsumerConnection:
    """A connection whose handshake a producer that has everything has answered."""
    connection = ConsumerConnection(settings, now=now, nonce="nonce")
    for _ in range(100):
        if connection.connected is not None:
            return connection
        (frame,) = split_frames(connection.take_output())
        features = frame.value if frame.opcode == Opcode.HELLO else b""
        reply = Frame(magic=0x81, opcode=frame.opcode, opaque=frame.opaque, value=features)
        connection.receive(reply.to_bytes(), now=now)
    raise AssertionError("the handshake does not end")


def settings_for(dialect: Dialect | None = None) -> ConsumerSettings:
    return ConsumerSettings(name="script", dialect=dialect, window=0)


def item(name: str, seqno: int, opaque: int, *more: int) -> Request:
    """An item by name; ``more`` is the prepare of a commit or an abort."""
    prepared = more[0] if more else 0
    made: dict[str, Request] = {
        "mutation": m.Mutation(by_seqno=seqno, key=b"key", value=b"{}"),
        "deletion": m.Deletion(by_seqno=seqno, delete_time=0, key=b"key"),
        "expiration": m.Expiration(by_seqno=seqno, delete_time=0, key=b"key"),
        "system": m.SystemEvent(by_seqno=seqno, event=0, version=0, key=b"name"),
        "prepare": m.Prepare(by_seqno=seqno, durability=1, key=b"key"),
        "commit": m.Commit(prepared_seqno=prepared, commit_seqno=seqno, key=b"key"),
        "abort": m.Abort(prepared_seqno=prepared, abort_seqno=seqno, key=b"key"),
        "advanced": m.SeqnoAdvanced(by_seqno=seqno),
    }
    return replace(made[name], opaque=opaque, vbucket=VBUCKET)


ITEMS: Final = (
    "mutation",
    "deletion",
    "expiration",
    "system",
    "prepare",
    "commit",
    "abort",
    "advanced",
)


def read_log(text: str) -> FailoverLog:
    pairs = (entry.split("@") for entry in text.split(","))
    return FailoverLog.of(*((int(uuid, 16), int(seqno)) for uuid, seqno in pairs))


def read_range(text: str) -> SnapshotRange:
    start, end = text.split("..")
    return SnapshotRange(Seqno(int(start)), Seqno(int(end)))


class Play:
    """One script being played."""

    def __init__(self, dialect: Dialect | None = None) -> None:
        self.dialect = dialect
        self.held = Position(ZERO, Boundaries())
        self.connection = connected(settings_for(dialect))
        self.lines: list[str] = []

    def run(self, command: str) -> list[str]:
        """What a command leads to, as lines."""
        self.lines = []
        name, *words = command.split()
        try:
            if name in ITEMS:
                self.take_item(name, *words)
            else:
                self.COMMANDS[name](self, *words)
        except HeadraceError as error:
            self.lines.append(f"{type(error).__name__}: {error}")
        self._tell_sent()
        return self.lines

    # -- commands -------------------------------------------------------------------------------

    def hold(self, at: str, snapshot: str, *words: str) -> None:
        branch, seqno = at.split("@")
        more = dict(zip(words[::2], words[1::2], strict=True))
        log = read_log(more["log"]) if "log" in more else None
        boundaries = Boundaries()
        for bound in more.get("bounds", "").split(","):
            if bound:
                on = log.branch_at(Seqno(int(bound))) if log else BranchId(int(branch, 16))
                boundaries = boundaries.recorded(Seqno(int(bound)), on)
        token = ResumeToken(
            BranchId(int(branch, 16)), Seqno(int(seqno)), read_range(snapshot), log=log
        )
        self.held = Position(token, boundaries)

    def request(self, *words: str) -> None:
        more = dict(zip(words[::2], words[1::2], strict=True))
        plan = StreamPlan(vbucket=VBUCKET, token=self.held.token, boundaries=self.held.boundaries)
        if "end" in more:
            plan = StreamPlan(
                vbucket=VBUCKET,
                token=self.held.token,
                boundaries=self.held.boundaries,
                end_seqno=Seqno(int(more["end"])),
            )
        self.connection.request_stream(plan)

    def accept(self, log: str) -> None:
        entries = tuple(m.FailoverEntry(entry.uuid, entry.seqno) for entry in read_log(log))
        self.feed(m.StreamRequestReply(opaque=self.opaque, failover_log=entries))

    def rollback(self, seqno: str) -> None:
        self.feed(m.RollbackReply(opaque=self.opaque, rollback_seqno=int(seqno)))

    def refuse(self, status: str) -> None:
        self.feed(ErrorReply(opaque=self.opaque, opcode=Opcode.STREAM_REQ, status=Status[status]))

    def marker(self, *words: str) -> None:
        if not words:
            self.feed(m.SnapshotMarker(opaque=self.opaque, vbucket=VBUCKET))
            return
        flags = sum(MarkerFlag[word.upper()] for word in words[2:]) or MarkerFlag.MEMORY
        self.feed(
            m.SnapshotMarker(
                opaque=self.opaque,
                vbucket=VBUCKET,
                start_seqno=int(words[0]),
                end_seqno=int(words[1]),
                flags=flags,
            )
        )

    def take_item(self, name: str, *words: str) -> None:
        *more, seqno = (int(word) for word in words)
        self.feed(item(name, seqno, self.opaque, *more))

    def take_run(self, first: str, last: str) -> None:
        progress = self.connection.advance(
            self.opaque, VBUCKET, Seqno(int(first)), Seqno(int(last)), now=0
        )
        events: list[e.Event] = []
        if progress is not None and progress.completed is not None:
            events.append(e.SnapshotCompleted(vbucket=VBUCKET, token=progress.token))
        self._tell(events)
        self._tell_state()

    def oso(self, word: str) -> None:
        flags = {"start": 1, "end": 2}[word]
        self.feed(m.OsoSnapshot(opaque=self.opaque, vbucket=VBUCKET, oso_flags=flags))

    def state(self, name: str) -> None:
        state = VBucketState[name.upper()]
        self.feed(m.SetVBucketState(opaque=self.opaque, vbucket=VBUCKET, state=state))

    def noop(self) -> None:
        self.feed(m.Noop(opaque=77))

    def end(self, reason: str) -> None:
        number = StreamEndReason[reason.upper()]
        self.feed(m.StreamEnd(opaque=self.opaque, vbucket=VBUCKET, reason=number))

    def close(self) -> None:
        self.connection.close_stream(VBUCKET)

    def closed(self) -> None:
        (opaque,) = self.connection._asked
        self.feed(m.CloseStreamReply(opaque=opaque))

    def drop(self) -> None:
        self.held = self.connection.position(VBUCKET)
        self.connection = connected(settings_for(self.dialect))
        bounds = ",".join(str(mark.seqno) for mark in self.held.boundaries) or "none"
        self.lines.append(f"resume {self._token(self.held.token)} bounds={bounds}")

    COMMANDS: Final[dict[str, Callable[..., None]]] = {
        "hold": hold,
        "request": request,
        "accept": accept,
        "rollback": rollback,
        "refuse": refuse,
        "marker": marker,
        "run": take_run,
        "oso": oso,
        "state": state,
        "noop": noop,
        "end": end,
        "close": close,
        "closed": closed,
        "drop": drop,
    }

    # -- results --------------------------------------------------------------------------------

    @property
    def opaque(self) -> int:
        return self.connection._known[VBUCKET, None].opaque

    def feed(self, message: Message) -> None:
        data = encode(message, self.connection.dialect)
        self._tell(self.connection.receive(data, now=0))
        self._tell_state()

    def _tell(self, events: list[e.Event]) -> None:
        self.lines += [line for event in events if (line := told(event))]

    def _tell_state(self) -> None:
        machine = self.connection._known[VBUCKET, None].machine
        if machine is not None:
            self.lines.append(f"{machine.state.name} {self._token(machine.token)}")

    def _token(self, token: ResumeToken) -> str:
        return f"branch={token.branch:x} seqno={token.seqno} snapshot={token.snapshot}"

    def _tell_sent(self) -> None:
        for frame in split_frames(self.connection.take_output()):
            message = decode(frame, self.connection.dialect)
            if isinstance(message, m.StreamRequest):
                snapshot = f"{message.snap_start_seqno}..{message.snap_end_seqno}"
                if message.snap_start_seqno is None:
                    snapshot = f"none, branch began at {message.high_seqno}"
                self.lines.append(
                    f"ask branch={message.vb_uuid:x} seqno={message.start_seqno} "
                    f"snapshot={snapshot}"
                )
            else:
                self.lines.append(f"send {type(message).__name__}")


def told(event: e.Event) -> str:
    """An event in a few words."""
    match event:
        case e.StreamOpened(log=log, branch_changed=changed):
            names = ",".join(f"{entry.uuid:x}@{entry.seqno}" for entry in log)
            return f"opened on {names}" + (", branch changed" if changed else "")
        case e.RolledBack(from_seqno=start, to_seqno=to, dead_branch=dead):
            return f"rolled back from {start} to {to}, dead branch {dead:x}"
        case e.SnapshotCompleted(token=token):
            return f"complete at {token.seqno}"
        case e.StreamEnded(reason=reason, advice=advice):
            return f"ended {StreamEndReason(reason).name}: {advice.name}"
        case e.StreamStuck(reason=reason, attempts=attempts):
            return f"stuck after {attempts}: {reason}"
        case e.StreamRefused(reason=reason, temporary=temporary):
            return f"refused: {reason}" + (" (temporary)" if temporary else "")
        case e.NotMyVBucket():
            return "not my vbucket"
        case e.StateAsked(state=state):
            return f"asked to become {VBucketState(state).name}"
    return ""


def read_script(path: Path) -> list[tuple[list[str], list[str], list[str]]]:
    """The blocks of a script: comment lines, commands, expected results."""
    blocks = []
    for text in path.read_text().strip().split("\n\n"):
        lines = text.splitlines()
        comments = [line for line in lines if line.startswith("#")]
        rest = [line for line in lines if not line.startswith("#")]
        cut = rest.index(SEPARATOR) if SEPARATOR in rest else len(rest)
        blocks.append((comments, rest[:cut], rest[cut + 1 :]))
    return blocks


def play_script(path: Path) -> str:
    """The script with the results it has now, one block for each command that has any."""
    play, out = Play(), []
    for comments, commands, _ in read_script(path):
        waiting = list(comments)
        for command in commands:
            waiting.append(command)
            if command.startswith("dialect "):
                play = Play(Dialect.named(command.removeprefix("dialect ")))
                continue
            results = play.run(command)
            if results:
                out.append("\n".join([*waiting, SEPARATOR, *results]))
                waiting = []
        if waiting:
            out.append("\n".join(waiting))
    return "\n\n".join(out) + "\n"


def size_of(message: Message, dialect: Dialect) -> int:
    """The counted size of a message."""
    (frame,) = split_frames(encode(message, dialect))
    return counted_size(frame.opcode, frame.size)
