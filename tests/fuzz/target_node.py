"""A live node's port against peers that are wrong in every way.

Junk, half frames, huge claims, wrong roles, replies to nothing, slow senders, almost-right
requests before and after OPEN, streams asked for and closed at random. For each attempt:

- the node answers with whole frames or closes, and says why in its log when it does;
- nothing is logged as a failure of its own (a trace, an error of the event loop);
- afterwards an honest client on its own connection reads what it wrote.
"""

from __future__ import annotations

import atexit
import json
import socket
import struct
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.wire import admin, kv, messages
from headrace.wire.codec import encode
from headrace.wire.dialect import Dialect
from headrace.wire.frame import FrameBuffer
from headrace.wire.opcodes import SEQNO_MAX, Feature, Magic, Opcode, OpenFlag
from tests.fuzz.mutations import mutated, pieces, resized, sound_frames
from tests.node.client import Client
from tests.soak.node_process import Process, Settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from headrace.wire.message import Request

PARTS_MAX: Final = 8
READ_SECONDS: Final = 0.002
"""How long a reader looks for an answer: attempts are many, and most answers come at once."""
CLOSE_SECONDS: Final = 20.0
VBUCKETS: Final = 4
BODY_CLAIMS: Final = (0, 1, 23, 24, 0xFFFF, 30 << 20, (30 << 20) + 1, 0x7FFFFFFF, 0xFFFFFFFF)
EDGES: Final = (0, 1, 2, 3, 10, 2**31, 2**32 - 1, 2**63, SEQNO_MAX - 1, SEQNO_MAX)
_HEAD: Final = struct.Struct(">BBHBBHIIQ")


class Log:
    """What the node's process writes: JSON lines; anything else is a failure."""

    def __init__(self, path: Path) -> None:
        """Begin at the beginning."""
        self._file = path.open(encoding="utf-8")
        self._rest = ""
        self.failures: list[str] = []
        self.closed: dict[str, str] = {}

    def read(self) -> None:
        """Take the lines that are new."""
        *lines, self._rest = (self._rest + self._file.read()).split("\n")
        for line in lines:
            facts = json.loads(line) if line.startswith("{") else {}
            if facts.get("level") not in ("info", "warning") or "trace" in facts:
                self.failures.append(line)
            elif facts.get("what") == "closing":
                self.closed[facts["peer"]] = facts["reason"]

    def reason(self, peer: str) -> str:
        """Why the connection of a peer was closed; "" when nobody says so in time."""
        deadline = time.monotonic() + CLOSE_SECONDS
        while True:
            self.read()
            if peer in self.closed or time.monotonic() > deadline:
                return self.closed.pop(peer, "")
            time.sleep(0.001)

    def close(self) -> None:
        """Read no more."""
        self._file.close()


class Lab:
    """One node process for all attempts, and an honest client."""

    def __init__(self) -> None:
        """Start both."""
        self._directory = tempfile.TemporaryDirectory(prefix="headrace-fuzz-")
        settings = Settings(vbuckets=VBUCKETS, log_format="json")
        self.process = Process(Path(self._directory.name), settings)
        atexit.register(self.close)
        self.log = Log(self.process.log)
        self.honest = Client(self.process.port)
        self.number = 0
        for number in range(50):
            self.honest.set(b"k%d" % number, b"value" * 20, vbucket=number % VBUCKETS)

    def close(self) -> None:
        """Stop both."""
        self.honest.close()
        self.log.close()
        self.process.kill()
        self._directory.cleanup()

    def check(self) -> None:
        """The node lives and had no failure of its own."""
        self.number += 1
        value = b"%d" % self.number
        self.honest.set(b"honest", value)
        assert self.honest.get(b"honest").value == value
        self.log.read()
        failures, self.log.failures = self.log.failures, []
        assert not failures, "\n".join(failures)
        assert self.process.is_alive


@cache
def lab() -> Lab:
    """The one lab, made when the first attempt needs it."""
    return Lab()


# -- what peers say ------------------------------------------------------------------------------


def junk(random: Random) -> bytes:
    """Bytes that mean nothing."""
    return random.randbytes(random.randint(1, 200))


def almost(random: Random) -> bytes:
    """A sound frame, bent."""
    _, data = random.choice(sound_frames())
    changed = mutated(random, data)
    return resized(changed) if random.random() < 0.8 else changed


def sound(random: Random) -> bytes:
    """A sound frame of somebody, rarely of the right role or dialect."""
    return random.choice(sound_frames())[1]


def claim(random: Random) -> bytes:
    """A header whose lengths promise anything."""
    return _HEAD.pack(
        random.choice([*Magic, random.randrange(256)]),
        random.choice([*Opcode, random.randrange(256)]),
        random.choice((0, 1, 250, 251, 0xFFFF)),
        random.choice((0, 4, 8, 48, 255)),
        random.randrange(256),
        random.choice((0, 1, VBUCKETS, 0xFFFF)),
        random.choice(BODY_CLAIMS),
        random.getrandbits(32),
        random.getrandbits(64),
    )


def reply_to_nothing(random: Random) -> bytes:
    """A reply, or a request only servers send."""
    magic = random.choice((Magic.REPLY, Magic.ALT_REPLY, Magic.SERVER_REQUEST, Magic.SERVER_REPLY))
    value = random.randbytes(random.choice((0, 8, 16)))
    opcode, status = random.choice(list(Opcode)), random.choice((0, 1, 0x23, 0x86))
    return _HEAD.pack(magic, opcode, 0, 0, 0, status, len(value), 1, 0) + value


def request(random: Random) -> bytes:
    """A sound request with numbers from the edges."""
    number, edge = random.choice((0, 1, VBUCKETS, 1023, 0xFFFF)), random.choice
    made: list[Request] = [
        messages.Open(key=random.choice((b"", b"x", b"fuzz", b"n" * 201)), flags=edge(EDGES[:6])),
        messages.Open(key=b"fuzz%d" % random.randrange(4), flags=OpenFlag.PRODUCER),
        messages.StreamRequest(
            vbucket=number,
            flags=random.choice((0, 0, 0, 1, 2, 4, 0x40, 0xFF)),
            start_seqno=edge(EDGES),
            end_seqno=edge(EDGES),
            vb_uuid=edge(EDGES),
            snap_start_seqno=edge(EDGES),
            snap_end_seqno=edge(EDGES),
        ),
        messages.StreamRequest(
            vbucket=random.randrange(VBUCKETS),
            flags=0,
            start_seqno=0,
            end_seqno=random.choice((5, SEQNO_MAX)),
            vb_uuid=0,
            snap_start_seqno=0,
            snap_end_seqno=0,
        ),
        messages.CloseStream(vbucket=number),
        messages.GetFailoverLog(vbucket=number),
        messages.BufferAck(ack_bytes=edge((0, 1, 2**31, 2**32 - 1))),
        messages.Control(
            key=random.choice((b"connection_buffer_size", b"enable_noop", b"set_priority", b"x")),
            value=random.choice((b"", b"0", b"1", b"true", b"-1", b"high", b"9" * 30, b"\xff")),
        ),
        messages.Noop(),
        messages.StreamEnd(vbucket=number, reason=0),
        kv.Get(key=b"k1", vbucket=number),
        kv.Set(key=b"f%d" % random.randrange(9), value=b"v" * edge((0, 1, 9999)), vbucket=number),
        kv.Delete(key=b"k%d" % random.randrange(50), vbucket=number),
        admin.Hello(key=b"fuzz", features=tuple(random.sample(list(Feature), 3))),
        admin.Stat(key=random.choice((b"", b"dcp", b"vbucket-details", b"failovers", b"\xff"))),
        admin.SelectBucket(key=random.choice((b"default", b"none", b""))),
        admin.SeqnoPersistence(vbucket=number, seqno=0),
        admin.ObserveSeqno(vbucket=number, vb_uuid=edge(EDGES)),
    ]
    return encode(random.choice(made), Dialect.DCP_7, historic=True)


PARTS: Final[tuple[Callable[[Random], bytes], ...]] = (
    junk,
    almost,
    almost,
    sound,
    claim,
    reply_to_nothing,
    *(request,) * 6,
)


# -- one attempt ---------------------------------------------------------------------------------


def attempt(random: Random) -> None:
    """One peer says something; then an honest one must find everything as it was."""
    place = lab()
    data = b"".join(conversation(random))
    if random.random() < 0.2:
        data = data[: random.randrange(len(data) + 1)]
    slow = random.random() < 0.1
    with socket.create_connection(("127.0.0.1", place.process.port), CLOSE_SECONDS) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = "{}:{}".format(*link.getsockname())
        reader = Reader(link)
        with suppress(ConnectionError):
            for piece in (
                [data[at : at + 1] for at in range(len(data))] if slow else pieces(random, data)
            ):
                link.sendall(piece)
                if random.random() < (0.02 if slow else 0.5):
                    reader.read()
        reader.read()
    if reader.closed:
        assert place.log.reason(peer), f"{peer} was closed and the log does not say why"
    place.check()


def conversation(random: Random) -> list[bytes]:
    """What a peer says: rude from the start, or polite and then wrong now and then."""
    count = random.randint(1, PARTS_MAX)
    if random.random() < 0.4:
        return [random.choice(PARTS)(random) for _ in range(count)]
    opening = messages.Open(key=b"fuzz%d" % random.randrange(4), flags=OpenFlag.PRODUCER)
    said = [encode(opening, Dialect.DCP_7)] if random.random() < 0.8 else []
    said += (request(random) for _ in range(count))
    if random.random() < 0.5:
        said.insert(random.randint(0, len(said)), random.choice(PARTS)(random))
    return said


class Reader:
    """Reads what the node says: whole frames, whatever was asked."""

    def __init__(self, link: socket.socket) -> None:
        """Nothing read yet."""
        self._link = link
        self._frames = FrameBuffer()
        self.closed = False

    def read(self) -> None:
        """Take what is there."""
        self._link.settimeout(READ_SECONDS)
        try:
            while not self.closed:
                data = self._link.recv(1 << 16)
                self.closed = not data
                self._frames.feed(data)
                for frame in self._frames:
                    assert frame.magic in (Magic.REPLY, Magic.REQUEST, Magic.ALT_REQUEST), frame
        except TimeoutError:
            pass
        except ConnectionError:
            self.closed = True
        finally:
            self._link.settimeout(CLOSE_SECONDS)
