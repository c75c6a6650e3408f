"""Every lever and every trigger, as two tables: the script, the admin API, the command line and the
guide read them.

A lever is a method of `headrace.node.faults.Faults` with the same parameters. ``needs`` lists what
must be said: of each tuple, exactly one. A trigger says when; what it knows (a vbucket, a
connection) the lever need not repeat.

Imports: errors, node.fault_words.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from headrace.errors import ConfigError
from headrace.node import fault_words as words
from headrace.node.fault_words import Parameter, Phrase

if TYPE_CHECKING:
    from headrace.node.fault_words import Kind, Values


@dataclass(frozen=True, slots=True, kw_only=True)
class Lever:
    """One thing that can be done to a node.

    ``off_loop``: it may take long, so it runs on a worker thread.
    """

    name: str
    does: str
    allowed: str
    phrase: Phrase
    parameters: tuple[Parameter, ...]
    needs: tuple[tuple[str, ...], ...] = ()
    off_loop: bool = False

    @property
    def method(self) -> str:
        """Name of the method that does it."""
        return self.name.replace("-", "_")

    def by_name(self) -> dict[str, Parameter]:
        """Its parameters by name."""
        return {parameter.name: parameter for parameter in self.parameters}

    def check(self, values: Values) -> None:
        """ConfigError unless what must be said is said."""
        for choice in self.needs:
            said = [name for name in choice if name in values]
            if len(said) != 1:
                wanted = " or ".join(choice)
                found = " and ".join(said) or "nothing"
                raise ConfigError(f"{self.name} needs {wanted} and was given {found}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trigger:
    """One way to say when."""

    name: str
    when: str
    phrase: Phrase
    parameters: tuple[Parameter, ...] = ()
    needs: tuple[str, ...] = ()
    gives: tuple[str, ...] = ()
    """Parameters a lever takes over when it does not say them itself."""


def _of(name: str, kind: Kind, text: str) -> Parameter:
    return Parameter(name=name, kind=kind, help=text)


_BUCKET: Final = _of("bucket", words.BUCKET, "bucket; the default one, or the only one")
_VBUCKET: Final = _of("vbucket", words.VBUCKET, "vbucket")
_CONNECTION: Final = _of(
    "connection", words.CONNECTION, "connections: a number, or a change-stream name with *"
)
_PLACE: Final = ("vbucket {vbucket}", "of {bucket}")
_WHO: Final = "connection {connection}"

_LEVERS: Final = (
    Lever(
        name="failover",
        does="Lose everything above a seqno and begin a new branch there; its streams end.",
        allowed="on an existing vbucket, down to the seqno its history can still be rebuilt at, "
        "or 0",
        phrase=Phrase(head="fail over", groups=(*_PLACE, "to {seqno}", "losing {lose}")),
        parameters=(
            _VBUCKET,
            _of("seqno", words.SEQNO, "last seqno that is kept"),
            _of(
                "lose",
                words.SEQNO,
                "seqnos lost, counted from the high seqno (from the "
                "trigger's seqno in a step that has one)",
            ),
            _BUCKET,
        ),
        needs=(("vbucket",), ("seqno", "lose")),
    ),
    Lever(
        name="rollback",
        does="Answer the next stream requests that start above a seqno with ROLLBACK to it.",
        allowed="always; requests that start at or below the seqno pass and are not counted",
        phrase=Phrase(
            head="rollback",
            groups=(*_PLACE, "to {seqno}", "for {count} requests", _WHO),
        ),
        parameters=(
            _VBUCKET,
            _of("seqno", words.SEQNO, "seqno to roll back to"),
            _of("count", words.COUNT, "stream requests; one if not said"),
            _CONNECTION,
            _BUCKET,
        ),
        needs=(("vbucket",), ("seqno",)),
    ),
    Lever(
        name="purge",
        does="Compact and drop every tombstone: the purge seqno moves, who is behind it starts "
        "over.",
        allowed="on an existing vbucket, or on all; the tombstone at the high seqno stays",
        phrase=Phrase(head="purge", groups=(*_PLACE, "below {seqno}")),
        parameters=(
            _VBUCKET,
            _of("seqno", words.SEQNO, "drop only tombstones below this seqno"),
            _BUCKET,
        ),
        off_loop=True,
    ),
    Lever(
        name="drop-cursor",
        does="Drop the cursors of streams: they go back to the disk and return to memory.",
        allowed="for streams in memory whose connection allows cursors to be dropped",
        phrase=Phrase(head="drop cursor", groups=(*_PLACE, _WHO)),
        parameters=(_VBUCKET, _CONNECTION, _BUCKET),
    ),
    Lever(
        name="pause",
        does="Neither read from a connection nor send on it, for a time or until resumed.",
        allowed="for connections that are open",
        phrase=Phrase(head="pause", groups=(_WHO, "for {seconds}")),
        parameters=(_CONNECTION, _of("seconds", words.SECONDS, "how long; until resumed")),
        needs=(("connection",),),
    ),
    Lever(
        name="slow",
        does="Send no more than so many bytes per second on a connection.",
        allowed="for connections that are open",
        phrase=Phrase(head="slow", groups=(_WHO, "to {rate} bytes per second")),
        parameters=(_CONNECTION, _of("rate", words.RATE, "bytes per second")),
        needs=(("connection",), ("rate",)),
    ),
    Lever(
        name="resume",
        does="Undo pause and slow.",
        allowed="for connections that are open",
        phrase=Phrase(head="resume", groups=(_WHO,)),
        parameters=(_CONNECTION,),
        needs=(("connection",),),
    ),
    Lever(
        name="cut",
        does="Close a connection without a word: now, after so many bytes, or inside a frame.",
        allowed="for connections that are open",
        phrase=Phrase(
            head="cut",
            groups=(_WHO, "after {size} bytes"),
            flags=(("in the middle of a frame", "middle"),),
        ),
        parameters=(
            _CONNECTION,
            _of("size", words.SIZE, "bytes still sent; 0 if not said"),
            _of("middle", words.FLAG, "send half of the frame that is then due"),
        ),
        needs=(("connection",),),
    ),
    Lever(
        name="refuse",
        does="Answer the next requests of an opcode with a status.",
        allowed="always; frames that are replies or need no answer are not refused",
        phrase=Phrase(
            head="refuse",
            groups=(*_PLACE, "opcode {opcode}", "with {status}", "for {count} requests", _WHO),
        ),
        parameters=(
            _of("opcode", words.OPCODE, "opcode"),
            _of("status", words.STATUS, "status"),
            _of("count", words.COUNT, "requests; one if not said"),
            _VBUCKET,
            _CONNECTION,
            _BUCKET,
        ),
        needs=(("opcode",), ("status",)),
    ),
    Lever(
        name="delay-commits",
        does="Let every commit of a bucket wait before it is made; 0s ends it.",
        allowed="up to 10 seconds",
        phrase=Phrase(head="delay commits", groups=("of {bucket}", "by {seconds}")),
        parameters=(_of("seconds", words.SECONDS, "how long each commit waits"), _BUCKET),
        needs=(("seconds",),),
    ),
    Lever(
        name="stop-persistence",
        does="Keep changes in memory alone.",
        allowed="on a durable bucket",
        phrase=Phrase(head="stop persistence", groups=("of {bucket}",)),
        parameters=(_BUCKET,),
    ),
    Lever(
        name="start-persistence",
        does="Write to disk again.",
        allowed="on a durable bucket",
        phrase=Phrase(head="start persistence", groups=("of {bucket}",)),
        parameters=(_BUCKET,),
    ),
    Lever(
        name="crash",
        does="End the process without closing anything, at the next commit or a later one.",
        allowed="always; the process is gone afterwards",
        phrase=Phrase(
            head="crash",
            groups=("after {commits} commits", "of {bucket}"),
            flags=(("once durable", "durable"),),
        ),
        parameters=(
            _of("commits", words.COMMITS, "which commit from now on; 1 if not said, 0: at once"),
            _of("durable", words.FLAG, "after that commit is on disk instead of before"),
            _BUCKET,
        ),
    ),
    Lever(
        name="set-state",
        does="Give a vbucket a state; its streams end with STATE_CHANGED.",
        allowed="for every vbucket number of the bucket",
        phrase=Phrase(head="set state", groups=(*_PLACE, "to {state}")),
        parameters=(_VBUCKET, _of("state", words.STATE, "active, replica, pending, dead"), _BUCKET),
        needs=(("vbucket",), ("state",)),
    ),
    Lever(
        name="clear",
        does="Lift every fault that lasts, and forget every step that waits.",
        allowed="always",
        phrase=Phrase(head="clear"),
        parameters=(),
    ),
)
LEVERS: Final = {lever.name: lever for lever in _LEVERS}

_TRIGGERS: Final = (
    Trigger(name="now", when="at once", phrase=Phrase(head="now")),
    Trigger(
        name="seqno",
        when="when a vbucket's high seqno reaches a number, before the next request is answered",
        phrase=Phrase(
            head="at vbucket {vbucket}",
            groups=("of {bucket}", "seqno {seqno}"),
        ),
        parameters=(_VBUCKET, _of("seqno", words.SEQNO, "high seqno"), _BUCKET),
        needs=("seqno",),
        gives=("vbucket", "bucket"),
    ),
    Trigger(
        name="sent",
        when="when a stream of a vbucket has sent a seqno or a higher one",
        phrase=Phrase(
            head="at vbucket {vbucket}",
            groups=("of {bucket}", "sent {seqno}", "to {connection}"),
        ),
        parameters=(_VBUCKET, _of("seqno", words.SEQNO, "seqno sent"), _CONNECTION, _BUCKET),
        needs=("seqno",),
        gives=("vbucket", "bucket", "connection"),
    ),
    Trigger(
        name="commit",
        when="after the bucket's commit with that number, counted since the node started",
        phrase=Phrase(head="at commit {commits}", groups=("of {bucket}",)),
        parameters=(_of("commits", words.COUNT, "number of the commit"), _BUCKET),
        needs=("commits",),
        gives=("bucket",),
    ),
    Trigger(
        name="mutations",
        when="when so many mutations, deletions and expirations were sent to one connection",
        phrase=Phrase(head="after {count} mutations", groups=("to {connection}",)),
        parameters=(_of("count", words.COUNT, "changes sent"), _CONNECTION),
        needs=("count", "connection"),
        gives=("connection",),
    ),
    Trigger(
        name="time",
        when="after a time",
        phrase=Phrase(head="after {seconds}"),
        parameters=(_of("seconds", words.SECONDS, "how long"),),
        needs=("seconds",),
    ),
    Trigger(
        name="request",
        when="when the next request of an opcode comes, before it is answered",
        phrase=Phrase(head="next {opcode}", groups=(*_PLACE, "from {connection}")),
        parameters=(_of("opcode", words.OPCODE, "opcode"), _VBUCKET, _CONNECTION, _BUCKET),
        needs=("opcode",),
        gives=("opcode", "vbucket", "bucket", "connection"),
    ),
    Trigger(
        name="then",
        when="when the step before has fired, at once or after a time",
        phrase=Phrase(head="then", groups=("after {seconds}",)),
        parameters=(_of("seconds", words.SECONDS, "how long after"),),
    ),
)
TRIGGERS: Final = {trigger.name: trigger for trigger in _TRIGGERS}
