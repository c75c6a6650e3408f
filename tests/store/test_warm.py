"""After `warm` nothing is compiled while somebody waits."""

from __future__ import annotations

import importlib
import pkgutil
from typing import TYPE_CHECKING

import headrace.store
from headrace.store import AT_REST, Bucket, BucketSettings
from headrace.store.warm import warm
from headrace.wire.codec import encode
from headrace.wire.dialect import Dialect
from headrace.wire.kv import Get, Set
from headrace.wire.opcodes import VBucketState

if TYPE_CHECKING:
    from pathlib import Path


def compiled() -> dict[str, int]:
    """Every kernel of the store and how many signatures of it are compiled or loaded."""
    found = {}
    for module in pkgutil.iter_modules(headrace.store.__path__):
        inside = vars(importlib.import_module(f"headrace.store.{module.name}"))
        for name, value in inside.items():
            if hasattr(value, "signatures") and hasattr(value, "py_func"):
                found[f"{value.py_func.__module__}.{name}"] = len(value.signatures)
    return found


def live(path: Path) -> None:
    """A life like a node gives a bucket."""
    settings = BucketSettings(vbuckets=4)
    with Bucket.open(path, settings) as bucket:
        bucket.create_vbuckets(VBucketState.ACTIVE)
        requests = [Set(key=b"key%d" % number, value=b"v" * 300) for number in range(500)]
        run = b"".join(encode(one, Dialect.DCP_7) for one in (*requests, Get(key=b"key0")))
        bucket.serve_requests(run, now=1, mutation_tokens=True, datatypes=False)
        cursor = bucket.vbucket(0).open_cursor("reader", after=0)
        bucket.vbucket(0).store(b"\0one", b"1")
        bucket.commit()
        while cursor.snapshot(AT_REST) is not None:
            while not cursor.at_end:
                cursor.take(1 << 20, AT_REST)
        bucket.seal()
        view = bucket.vbucket(0).backfill(after=0, transform=AT_REST)
        while view.read(1 << 20) is not None:
            pass
        bucket.compact()
    with Bucket.open(path) as bucket:
        assert bucket.vbucket(0).get(b"\0one") is not None


def test_nothing_is_compiled_after_warm(tmp_path: Path) -> None:
    warm()
    before = compiled()
    assert len(before) > 10
    live(tmp_path / "bucket")
    assert compiled() == before
