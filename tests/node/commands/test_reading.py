"""GET, GETK, GAT, TOUCH, GET_LOCKED, UNLOCK, GET_META, GET_RANDOM_KEY over a socket."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from headrace.wire import admin, kv
from headrace.wire.opcodes import Feature, Status

if TYPE_CHECKING:
    from tests.node.client import Client

LOCKED_CAS = 0xFFFF_FFFF_FFFF_FFFF


def test_getk_repeats_the_key(client: Client) -> None:
    client.set(b"getk", b"v")
    assert client.ask(kv.GetK(key=b"getk"), kv.GetKReply).key == b"getk"


def test_quiet_reads_leave_out_misses_and_say_hits(client: Client) -> None:
    client.set(b"hit", b"v")
    client.send(
        kv.Get(key=b"miss", quiet=True),
        kv.Get(key=b"hit", quiet=True),
        kv.GetK(key=b"miss", quiet=True),
        kv.GetK(key=b"hit", quiet=True),
        admin.KvNoop(),
    )
    kinds = [type(client.receive()) for _ in range(3)]
    assert kinds == [kv.GetReply, kv.GetKReply, admin.KvNoopReply]


def test_touch_changes_the_expiry_and_the_cas(client: Client) -> None:
    cas = client.set(b"touch", b"v").cas
    touched = client.ask(kv.Touch(key=b"touch", expiration=100), kv.TouchReply)
    assert touched.cas != cas
    meta = client.ask(kv.GetMeta(key=b"touch"), kv.GetMetaReply)
    assert 0 <= meta.expiration - int(time.time()) <= 100
    assert client.status(kv.Touch(key=b"no-touch", expiration=1)) == Status.KEY_ENOENT


def test_gat_reads_and_touches(client: Client) -> None:
    client.set(b"gat", b"v", flags=5)
    found = client.ask(kv.Gat(key=b"gat", expiration=100), kv.GatReply)
    assert (found.value, found.flags) == (b"v", 5)
    client.send(kv.Gat(key=b"no-gat", expiration=1, quiet=True), admin.KvNoop())
    assert isinstance(client.receive(), admin.KvNoopReply)


def test_a_document_whose_time_has_come_is_a_tombstone(client: Client) -> None:
    client.set(b"late", b"v", expiration=int(time.time()) - 10)
    assert client.status(kv.Get(key=b"late")) == Status.KEY_ENOENT
    assert client.ask(kv.GetMeta(key=b"late"), kv.GetMetaReply).deleted == 1
    assert client.status(kv.Add(key=b"late", value=b"again")) == Status.SUCCESS


def test_a_lock_keeps_others_out_until_its_cas_comes(client: Client) -> None:
    client.hello(Feature.XERROR)
    client.set(b"lock", b"1")
    locked = client.ask(kv.GetLocked(key=b"lock", lock_seconds=10), kv.GetLockedReply)
    assert client.get(b"lock").cas == LOCKED_CAS
    assert client.status(kv.Set(key=b"lock", value=b"2")) == Status.LOCKED
    assert client.status(kv.Delete(key=b"lock")) == Status.LOCKED
    assert client.status(kv.Touch(key=b"lock", expiration=9)) == Status.LOCKED
    assert client.status(kv.GetLocked(key=b"lock")) == Status.LOCKED
    assert client.status(kv.Set(key=b"lock", value=b"3", cas=locked.cas)) == Status.SUCCESS
    assert client.status(kv.Set(key=b"lock", value=b"4")) == Status.SUCCESS


def test_unlock_needs_the_cas_of_the_lock(client: Client) -> None:
    client.hello(Feature.XERROR)
    client.set(b"unlock", b"1")
    assert client.status(kv.Unlock(key=b"unlock", cas=5)) == Status.NOT_LOCKED
    locked = client.ask(kv.GetLocked(key=b"unlock"), kv.GetLockedReply)
    assert client.status(kv.Unlock(key=b"unlock", cas=locked.cas + 1)) == Status.LOCKED
    assert client.status(kv.Unlock(key=b"unlock", cas=locked.cas)) == Status.SUCCESS
    assert client.get(b"unlock").cas == locked.cas, "the lock's CAS stays the document's"
    assert client.status(kv.Set(key=b"unlock", value=b"2", cas=locked.cas)) == Status.SUCCESS
    assert client.status(kv.Unlock(key=b"none", cas=1)) == Status.KEY_ENOENT


def test_clients_without_extended_errors_are_told_to_try_later(client: Client) -> None:
    client.set(b"old-lock", b"1")
    client.ask(kv.GetLocked(key=b"old-lock"), kv.GetLockedReply)
    assert client.status(kv.Set(key=b"old-lock", value=b"2")) == Status.ETMPFAIL


def test_metadata_counts_revisions_and_outlives_the_document(client: Client) -> None:
    client.set(b"meta", b"1")
    first = client.ask(kv.GetMeta(key=b"meta"), kv.GetMetaReply).rev_seqno
    client.set(b"meta", b"{}", flags=9)
    meta = client.ask(kv.GetMeta(key=b"meta", request_version=2), kv.GetMetaReply)
    assert (meta.deleted, meta.flags, meta.document_datatype) == (0, 9, 1)
    assert meta.rev_seqno == first + 1
    client.ask(kv.Delete(key=b"meta"), kv.DeleteReply)
    meta = client.ask(kv.GetMeta(key=b"meta"), kv.GetMetaReply)
    assert (meta.deleted, meta.rev_seqno) == (1, first + 2)
    assert client.status(kv.GetMeta(key=b"never-meta")) == Status.KEY_ENOENT
    assert client.status(kv.GetMeta(key=b"meta", request_version=7)) == Status.EINVAL


def test_a_random_key_is_one_that_lives(client: Client) -> None:
    client.set(b"random", b"v", vbucket=2)
    found = client.ask(kv.GetRandomKey(), kv.GetRandomKeyReply)
    assert found.key
    client.hello(Feature.COLLECTIONS)
    assert client.status(kv.GetRandomKey(collection_id=99)) == Status.UNKNOWN_COLLECTION
