"""Answers that come later, and how answers become bytes."""

from __future__ import annotations

import json

from headrace.node.refusal import Refusal
from headrace.node.replies import Answer, Later, pack_refusal, pack_reply
from headrace.wire import kv
from headrace.wire.codec import decode
from headrace.wire.dialect import Dialect
from headrace.wire.frame import Frame, one_frame
from headrace.wire.opcodes import Opcode, Status

REQUEST = Frame(magic=0x80, opcode=Opcode.GETQ, opaque=77, key=b"k")


def test_a_reply_has_the_opcode_and_opaque_of_its_request() -> None:
    data = pack_reply(kv.GetReply(flags=1, value=b"v", cas=5), REQUEST, Dialect.DCP_7)
    message = decode(one_frame(data), Dialect.DCP_7)
    assert message == kv.GetReply(flags=1, value=b"v", cas=5, opaque=77, quiet=True)


def test_an_everyday_refusal_has_no_body() -> None:
    frame = one_frame(pack_refusal(Refusal(Status.KEY_ENOENT, "why"), REQUEST, json_datatype=True))
    assert (frame.status, frame.value, frame.datatype) == (Status.KEY_ENOENT, b"", 0)


def test_a_refusal_explains_itself() -> None:
    refusal = Refusal(Status.UNKNOWN_COLLECTION, "why", manifest_uid=0x1F)
    for knows_json in (True, False):
        frame = one_frame(pack_refusal(refusal, REQUEST, json_datatype=knows_json))
        assert json.loads(frame.value) == {"error": {"context": "why"}, "manifest_uid": "1f"}
        assert frame.datatype == int(knows_json)


def test_the_first_of_two_resolutions_counts() -> None:
    seen: list[Answer] = []
    later = Later()
    later.then(seen.append)
    later.resolve(b"one")
    later.resolve(b"two")
    assert seen == [b"one"]


def test_who_asks_after_the_answer_is_told_at_once() -> None:
    seen: list[Answer] = []
    later = Later()
    later.resolve(b"early")
    later.then(seen.append)
    assert seen == [b"early"]


def test_nobody_is_told_once_nobody_waits() -> None:
    seen: list[Answer] = []
    abandoned: list[bool] = []
    later = Later()
    later.abandon = lambda: abandoned.append(True)
    later.then(seen.append)
    later.forget()
    later.resolve(b"late")
    assert (seen, abandoned) == ([], [True])
