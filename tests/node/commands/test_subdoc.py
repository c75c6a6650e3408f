"""Sub-document commands over a socket: paths, xattrs, macros, document flags."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from headrace.wire import kv
from headrace.wire.opcodes import Feature, Opcode, Status, SubdocDocFlag, SubdocFlag
from headrace.wire.subdoc import (
    PathSpec,
    SubdocMultiLookup,
    SubdocMultiLookupReply,
    SubdocMultiMutation,
    SubdocMultiMutationReply,
    SubdocReply,
    SubdocRequest,
)

if TYPE_CHECKING:
    from tests.node.client import Client

DOCUMENT = b'{"a": {"b": [1, 2.50, "x"]}, "n": 7 ,"big": 1e400}'
XATTR = SubdocFlag.XATTR_PATH
PARENTS = SubdocFlag.MKDIR_P


def one(operation: Opcode, path: bytes, value: bytes = b"", **fields: object) -> SubdocRequest:
    return SubdocRequest(
        operation=operation,
        key=b"doc",
        path=path,
        value=value,
        **fields,  # type: ignore[arg-type]
    )


def look(*specs: PathSpec, key: bytes = b"doc", flags: int | None = None) -> SubdocMultiLookup:
    return SubdocMultiLookup(key=key, specs=specs, doc_flags=flags)


def change(*specs: PathSpec, key: bytes = b"doc", flags: int | None = None) -> SubdocMultiMutation:
    return SubdocMultiMutation(key=key, specs=specs, doc_flags=flags)


def read(path: bytes, flags: int = 0) -> PathSpec:
    return PathSpec(opcode=Opcode.SUBDOC_GET, path=path, flags=flags)


def upsert(path: bytes, value: bytes, flags: int = 0) -> PathSpec:
    return PathSpec(opcode=Opcode.SUBDOC_DICT_UPSERT, path=path, value=value, flags=flags)


@pytest.fixture(autouse=True)
def document(client: Client) -> None:
    client.send(kv.Delete(key=b"doc"))
    client.receive()
    client.set(b"doc", DOCUMENT, flags=0x0200_0006)


@pytest.mark.parametrize(
    ("operation", "path", "expected"),
    [
        (Opcode.SUBDOC_GET, b"a.b[1]", b"2.50"),
        (Opcode.SUBDOC_GET, b"a.b[-1]", b'"x"'),
        (Opcode.SUBDOC_GET, b"a", b'{"b": [1, 2.50, "x"]}'),
        (Opcode.SUBDOC_EXISTS, b"n", b""),
        (Opcode.SUBDOC_GET_COUNT, b"a.b", b"3"),
        (Opcode.SUBDOC_GET_COUNT, b"", b"3"),
    ],
)
def test_one_path_is_read_as_it_was_written(
    client: Client, operation: Opcode, path: bytes, expected: bytes
) -> None:
    assert client.ask(one(operation, path), SubdocReply).value == expected


@pytest.mark.parametrize(
    ("operation", "path", "status"),
    [
        (Opcode.SUBDOC_GET, b"zz", Status.SUBDOC_PATH_ENOENT),
        (Opcode.SUBDOC_EXISTS, b"a.c", Status.SUBDOC_PATH_ENOENT),
        (Opcode.SUBDOC_GET, b"n.x", Status.SUBDOC_PATH_MISMATCH),
        (Opcode.SUBDOC_GET, b"a[0]", Status.SUBDOC_PATH_MISMATCH),
        (Opcode.SUBDOC_GET, b"a..b", Status.SUBDOC_PATH_EINVAL),
        (Opcode.SUBDOC_GET, b"", Status.SUBDOC_PATH_EINVAL),
        (Opcode.SUBDOC_GET, b"a" * 1025, Status.SUBDOC_PATH_E2BIG),
        (Opcode.SUBDOC_GET_COUNT, b"n", Status.SUBDOC_PATH_MISMATCH),
    ],
)
def test_a_path_that_leads_nowhere_says_why(
    client: Client, operation: Opcode, path: bytes, status: Status
) -> None:
    assert client.status(one(operation, path)) == status


def test_a_missing_document_and_one_that_is_no_json(client: Client) -> None:
    missing = SubdocRequest(operation=Opcode.SUBDOC_GET, key=b"missing", path=b"a")
    assert client.status(missing) == Status.KEY_ENOENT
    client.set(b"doc", b"no json")
    assert client.status(one(Opcode.SUBDOC_GET, b"a")) == Status.SUBDOC_DOC_NOTJSON


def test_a_change_leaves_every_other_byte_alone(client: Client) -> None:
    client.ask(one(Opcode.SUBDOC_REPLACE, b"a.b[0]", b"10"), SubdocReply)
    found = client.get(b"doc")
    assert found.value == DOCUMENT.replace(b"[1,", b"[10,")
    assert found.flags == 0x0200_0006


@pytest.mark.parametrize(
    ("operation", "path", "value", "flags", "status"),
    [
        (Opcode.SUBDOC_DICT_ADD, b"n", b"1", 0, Status.SUBDOC_PATH_EEXISTS),
        (Opcode.SUBDOC_DICT_ADD, b"m", b"1", 0, Status.SUCCESS),
        (Opcode.SUBDOC_DICT_UPSERT, b"x.y", b"1", 0, Status.SUBDOC_PATH_ENOENT),
        (Opcode.SUBDOC_DICT_UPSERT, b"x.y", b"1", PARENTS, Status.SUCCESS),
        (Opcode.SUBDOC_DICT_UPSERT, b"m", b"{not json", 0, Status.SUBDOC_VALUE_CANTINSERT),
        (Opcode.SUBDOC_DICT_UPSERT, b"a.b[0]", b"1", 0, Status.SUBDOC_PATH_EINVAL),
        (Opcode.SUBDOC_REPLACE, b"zz", b"1", 0, Status.SUBDOC_PATH_ENOENT),
        (Opcode.SUBDOC_DELETE, b"zz", b"", 0, Status.SUBDOC_PATH_ENOENT),
        (Opcode.SUBDOC_DELETE, b"a.b[0]", b"", 0, Status.SUCCESS),
        (Opcode.SUBDOC_ARRAY_PUSH_LAST, b"a.b", b"3,4", 0, Status.SUCCESS),
        (Opcode.SUBDOC_ARRAY_PUSH_LAST, b"n", b"3", 0, Status.SUBDOC_PATH_MISMATCH),
        (Opcode.SUBDOC_ARRAY_PUSH_FIRST, b"l.m", b"3", PARENTS, Status.SUCCESS),
        (Opcode.SUBDOC_ARRAY_INSERT, b"a.b[3]", b"9", 0, Status.SUCCESS),
        (Opcode.SUBDOC_ARRAY_INSERT, b"a.b[5]", b"9", 0, Status.SUBDOC_PATH_ENOENT),
        (Opcode.SUBDOC_ARRAY_ADD_UNIQUE, b"a.b", b'"x"', 0, Status.SUBDOC_PATH_EEXISTS),
        (Opcode.SUBDOC_ARRAY_ADD_UNIQUE, b"a.b", b'"y"', 0, Status.SUCCESS),
        (Opcode.SUBDOC_ARRAY_ADD_UNIQUE, b"a.b", b"{}", 0, Status.SUBDOC_VALUE_CANTINSERT),
        (Opcode.SUBDOC_COUNTER, b"n", b"0", 0, Status.SUBDOC_DELTA_EINVAL),
        (Opcode.SUBDOC_COUNTER, b"a", b"1", 0, Status.SUBDOC_PATH_MISMATCH),
        (Opcode.SUBDOC_DICT_UPSERT, b"m", b"1", 0x80, Status.EINVAL),
    ],
)
def test_each_change_has_its_status(
    client: Client, operation: Opcode, path: bytes, value: bytes, flags: int, status: Status
) -> None:
    assert client.status(one(operation, path, value, path_flags=flags)) == status
    if status == Status.SUCCESS:
        json.loads(client.get(b"doc").value)
    else:
        assert client.get(b"doc").value == DOCUMENT


def test_a_counter_returns_its_number_and_its_token(client: Client) -> None:
    client.hello(Feature.MUTATION_SEQNO)
    reply = client.ask(one(Opcode.SUBDOC_COUNTER, b"n", b"-10"), SubdocReply)
    assert reply.value == b"-3"
    assert reply.seqno is not None


def test_a_lookup_answers_each_path_for_itself(client: Client) -> None:
    whole = PathSpec(opcode=Opcode.GET)
    reply = client.ask(look(read(b"n"), read(b"zz"), whole), SubdocMultiLookupReply)
    assert reply.status == Status.SUBDOC_MULTI_PATH_FAILURE
    assert [(result.status, result.value) for result in reply.results] == [
        (0, b"7"),
        (Status.SUBDOC_PATH_ENOENT, b""),
        (0, DOCUMENT),
    ]


def test_a_mutation_is_all_or_none(client: Client) -> None:
    failing = change(upsert(b"new", b"1"), upsert(b"x.y", b"1"))
    reply = client.ask(failing, SubdocMultiMutationReply)
    assert reply.status == Status.SUBDOC_MULTI_PATH_FAILURE
    assert [(result.index, result.status) for result in reply.results] == [
        (1, Status.SUBDOC_PATH_ENOENT)
    ]
    assert client.get(b"doc").value == DOCUMENT


def test_a_mutation_of_several_paths_returns_what_counts(client: Client) -> None:
    counter = PathSpec(opcode=Opcode.SUBDOC_COUNTER, path=b"n", value=b"1")
    reply = client.ask(change(upsert(b"m", b"1"), counter), SubdocMultiMutationReply)
    assert reply.status == Status.SUCCESS
    assert [(result.index, result.value) for result in reply.results] == [(1, b"8")]


def test_the_cas_is_compared(client: Client) -> None:
    request = one(Opcode.SUBDOC_REPLACE, b"n", b"1", cas=12345)
    assert client.status(request) == Status.KEY_EEXISTS


def test_xattrs_are_kept_beside_the_document_and_survive_a_set(client: Client) -> None:
    client.ask(change(upsert(b"_sync.rev", b'"1-a"', XATTR | PARENTS)), SubdocMultiMutationReply)
    assert client.get(b"doc").value == DOCUMENT
    client.set(b"doc", b"{}")
    request = look(read(b"_sync.rev", XATTR), read(b"$XTOC", XATTR))
    reply = client.ask(request, SubdocMultiLookupReply)
    assert [result.value for result in reply.results] == [b'"1-a"', b'["_sync"]']
    assert client.get(b"doc").value == b"{}"


def test_system_xattrs_outlive_the_document_and_user_xattrs_do_not(client: Client) -> None:
    both = change(upsert(b"_sys", b"1", XATTR), upsert(b"user", b"2", XATTR))
    client.ask(both, SubdocMultiMutationReply)
    client.ask(kv.Delete(key=b"doc"), kv.DeleteReply)
    request = look(read(b"_sys", XATTR), read(b"user", XATTR))
    assert client.status(request) == Status.KEY_ENOENT
    reply = client.ask(
        look(*request.specs, flags=SubdocDocFlag.ACCESS_DELETED), SubdocMultiLookupReply
    )
    assert reply.status == Status.SUBDOC_MULTI_PATH_FAILURE_DELETED
    assert [result.value for result in reply.results] == [b"1", b""]


def test_the_virtual_xattr_tells_what_the_node_knows(client: Client) -> None:
    client.ask(kv.Touch(key=b"doc", expiration=2**31), kv.TouchReply)
    reply = client.ask(
        look(
            read(b"$document.flags", XATTR),
            read(b"$document.exptime", XATTR),
            read(b"$document", XATTR),
            read(b"$nonsense", XATTR),
        ),
        SubdocMultiLookupReply,
    )
    flags, expiry, whole, nonsense = reply.results
    assert (flags.value, expiry.value) == (str(0x0200_0006).encode(), str(2**31).encode())
    assert int(json.loads(whole.value)["CAS"], 16) == client.get(b"doc").cas
    assert nonsense.status == Status.SUBDOC_XATTR_UNKNOWN_VATTR
    cannot = change(upsert(b"$document.flags", b"1", XATTR))
    failed = client.ask(cannot, SubdocMultiMutationReply).results[0]
    assert failed.status == Status.SUBDOC_XATTR_CANT_MODIFY_VATTR


def test_macros_become_what_this_change_was_given(client: Client) -> None:
    client.hello(Feature.MUTATION_SEQNO)
    flags = XATTR | PARENTS | SubdocFlag.EXPAND_MACROS
    request = change(
        upsert(b"_m.cas", b'"${Mutation.CAS}"', flags),
        upsert(b"_m.seqno", b'"${Mutation.seqno}"', flags),
        upsert(b"_m.crc", b'"${Mutation.value_crc32c}"', flags),
        upsert(b"_m.before", b'"${$document.CAS}"', flags),
    )
    before = client.get(b"doc").cas
    reply = client.ask(request, SubdocMultiMutationReply)
    found = client.ask(look(read(b"_m", XATTR)), SubdocMultiLookupReply).results[0].value
    made = json.loads(found)
    assert int.from_bytes(bytes.fromhex(made["cas"][2:]), "little") == reply.cas
    assert int(made["seqno"], 16) == reply.seqno
    assert int(made["before"], 16) == before
    unknown = change(upsert(b"_m", b'"${Mutation.nonsense}"', flags))
    failed = client.ask(unknown, SubdocMultiMutationReply).results[0]
    assert failed.status == Status.SUBDOC_XATTR_UNKNOWN_MACRO


def test_xattr_paths_come_first(client: Client) -> None:
    wrong = look(read(b"n"), read(b"_x", XATTR))
    assert client.status(wrong) == Status.SUBDOC_INVALID_XATTR_ORDER


def test_document_flags_make_insist_and_exclude(client: Client) -> None:
    client.send(kv.Delete(key=b"made"))
    client.receive()
    make = change(upsert(b"a.b", b"1"), key=b"made", flags=SubdocDocFlag.MKDOC)
    add = change(upsert(b"a", b"1"), key=b"made", flags=SubdocDocFlag.ADD)
    assert client.status(change(upsert(b"a", b"1"), key=b"made")) == Status.KEY_ENOENT
    assert client.status(make) == Status.SUCCESS
    assert client.get(b"made").value == b'{"a":{"b":1}}'
    assert client.status(add) == Status.KEY_EEXISTS
    both = SubdocDocFlag.MKDOC | SubdocDocFlag.ADD
    assert client.status(change(upsert(b"a", b"1"), key=b"made", flags=both)) == Status.EINVAL


def test_an_array_is_made_when_the_path_says_so(client: Client) -> None:
    client.send(kv.Delete(key=b"array"))
    client.receive()
    push = PathSpec(opcode=Opcode.SUBDOC_ARRAY_PUSH_LAST, path=b"", value=b"1,2")
    client.ask(change(push, key=b"array", flags=SubdocDocFlag.MKDOC), SubdocMultiMutationReply)
    assert client.get(b"array").value == b"[1,2]"


def test_a_document_can_be_made_deleted_and_be_revived(client: Client) -> None:
    client.send(kv.Delete(key=b"ghost"))
    client.receive()
    flags = SubdocDocFlag.MKDOC | SubdocDocFlag.CREATE_AS_DELETED | SubdocDocFlag.ACCESS_DELETED
    stage = change(upsert(b"txn", b'{"id":1}', XATTR), key=b"ghost", flags=flags)
    assert client.status(stage) == Status.SUBDOC_SUCCESS_DELETED
    assert client.status(kv.Get(key=b"ghost")) == Status.KEY_ENOENT
    seen = look(read(b"txn.id", XATTR), key=b"ghost", flags=SubdocDocFlag.ACCESS_DELETED)
    assert client.ask(seen, SubdocMultiLookupReply).results[0].value == b"1"
    revive = SubdocDocFlag.REVIVE_DOCUMENT | SubdocDocFlag.ACCESS_DELETED
    whole = PathSpec(opcode=Opcode.SET, value=b'{"x":1}')
    client.ask(change(whole, key=b"ghost", flags=revive), SubdocMultiMutationReply)
    assert client.get(b"ghost").value == b'{"x":1}'


def test_the_whole_document_can_be_set_and_deleted_with_its_xattrs(client: Client) -> None:
    whole = PathSpec(opcode=Opcode.SET, value=b"not json")
    client.ask(change(upsert(b"_x", b"1", XATTR), whole), SubdocMultiMutationReply)
    assert client.get(b"doc").value == b"not json"
    gone = PathSpec(opcode=Opcode.DELETE)
    client.ask(change(gone), SubdocMultiMutationReply)
    assert client.status(kv.Get(key=b"doc")) == Status.KEY_ENOENT


def test_more_than_sixteen_paths_are_refused(client: Client) -> None:
    raw = bytes.fromhex("c5000001") + b"n"
    request = client.encode(look(read(b"n")))
    body = b"doc" + raw * 17
    frame = request[:8] + len(body).to_bytes(4, "big") + request[12:24] + body
    client.send_bytes(frame)
    assert client.receive_frame().status == Status.EINVAL
