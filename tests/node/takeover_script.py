"""The producer's side of a takeover as text: commands, ----, what came of them.

The format is that of `tests.protocol.scripting`; the commands are

    write NAME...       a client writes documents to vbucket 0
    request [takeover]  the consumer asks for the stream; `as NAME` asks on another connection
    pull [as NAME]      what the producer sends now, frame by frame
    marked              the consumer answers a marker
    changed             the consumer answers a change of state
    refuse OPCODE N     it answers with a status instead
    wait SECONDS        time passes
    drop                the link goes

Results: one line per frame, then the states of the stream and of the producer's copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.wire.message import ErrorReply, Reply
from headrace.wire.messages import (
    SetVBucketState,
    SetVBucketStateReply,
    SnapshotMarkerReply,
    StreamRequestReply,
)
from headrace.wire.opcodes import Opcode, Status, StreamFlag, VBucketState
from tests.node.stream_kit import Host, Peer, describe, put

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.wire.message import Message

OPAQUE: Final = 0x1000
MAIN: Final = "main"


def frame_line(message: Message) -> str:
    """One frame in short."""
    if isinstance(message, SetVBucketState):
        return f"state {VBucketState(message.state).name.lower()}"
    return describe(message)


class Stage:
    """A producer's copy of vbucket 0, its writers, and its consumers."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self.peers: dict[str, Peer] = {}
        self.lines: list[str] = []

    def run(self, command: str) -> list[str]:
        """What one command made."""
        word, *arguments = command.split()
        who = MAIN
        if "as" in arguments:
            at = arguments.index("as")
            who = arguments[at + 1]
            del arguments[at : at + 2]
        self.lines = []
        COMMANDS[word](self, self._peer(who), arguments)
        return [*self.lines, self._states(who)]

    def _peer(self, who: str) -> Peer:
        if who not in self.peers:
            self.peers[who] = Peer(self.host, name=who.encode())
        return self.peers[who]

    def _states(self, who: str) -> str:
        streams = self.peers[who].producer.streams.values()
        states = ",".join(stream.state.name for stream in streams) or "none"
        copy = self.host.bucket.vbucket(0)
        return f"= stream {states}, copy {copy.state.name} at {copy.high_seqno}"

    def write(self, _: Peer, names: list[str]) -> None:
        copy = self.host.bucket.vbucket(0)
        for name in names:
            if copy.state is not VBucketState.ACTIVE:
                self.lines.append(f"{name}: NOT_MY_VBUCKET")
            elif self.host.held and self.host.held[-1][1]:
                self.lines.append(f"{name}: ETMPFAIL")
            else:
                put(copy, name)
                self.lines.append(f"{name}: stored at {copy.high_seqno}")

    def request(self, peer: Peer, arguments: list[str]) -> None:
        flags = StreamFlag.TAKEOVER if "takeover" in arguments else 0
        reply = peer.request(0, flags=flags, opaque=OPAQUE)
        accepted = isinstance(reply, StreamRequestReply)
        self.lines.append("accepted" if accepted else Status(reply.status).name)

    def pull(self, peer: Peer, _: list[str]) -> None:
        self.lines += [frame_line(message) for message in peer.drain()] or ["nothing"]

    def answer(self, peer: Peer, reply: Reply) -> None:
        assert peer.tell(reply) == []
        if peer.producer.closed_reason is not None:
            self.lines.append(f"closed: {peer.producer.closed_reason}")

    def refuse(self, peer: Peer, arguments: list[str]) -> None:
        opcode, status = Opcode[arguments[0]], Status[arguments[1]]
        self.answer(peer, ErrorReply(opcode=opcode, status=status, opaque=OPAQUE))

    def wait(self, peer: Peer, arguments: list[str]) -> None:
        peer.tick(float(arguments[0]))

    def drop(self, peer: Peer, _: list[str]) -> None:
        peer.producer.close()


COMMANDS: Final[dict[str, Callable[[Stage, Peer, list[str]], None]]] = {
    "write": Stage.write,
    "request": Stage.request,
    "pull": Stage.pull,
    "marked": lambda stage, peer, _: stage.answer(peer, SnapshotMarkerReply(opaque=OPAQUE)),
    "changed": lambda stage, peer, _: stage.answer(peer, SetVBucketStateReply(opaque=OPAQUE)),
    "refuse": Stage.refuse,
    "wait": Stage.wait,
    "drop": Stage.drop,
}


def play(text: str, host: Host) -> str:
    """The script again, with the results that were found."""
    stage = Stage(host)
    blocks = []
    for block in text.strip().split("\n\n"):
        commands = block.split("\n----\n")[0].split("\n")
        if all(line.startswith("#") for line in commands):
            blocks.append(block)
            continue
        found = []
        for line in commands:
            if line and not line.startswith("#"):
                found += stage.run(line)
        blocks.append("\n".join([*commands, "----", *found]))
    return "\n\n".join(blocks) + "\n"
