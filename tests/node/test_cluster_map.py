"""Maps: what clients need in them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from headrace.node.bucket_host import BucketHost
from headrace.node.cluster_map import MapVersion, Ports, bucket_map, node_map
from headrace.node.config import BucketConfig
from headrace.store import Bucket, BucketSettings
from headrace.wire.opcodes import VBucketState

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSION = MapVersion(epoch=7, revision=3)


@pytest.fixture
def host() -> Iterator[BucketHost]:
    """A bucket with three vbuckets, the second a replica."""
    config = BucketConfig(settings=BucketSettings(vbuckets=3))
    with Bucket.open(None, config.settings) as bucket:
        bucket.create_vbuckets(VBucketState.ACTIVE)
        made = BucketHost(config, bucket)
        made.set_state(1, VBucketState.REPLICA)
        yield made


def test_vbuckets_that_are_not_active_here_have_no_node(host: BucketHost) -> None:
    found = json.loads(bucket_map(host, Ports(plain=1, tls=None), VERSION, "127.0.0.1"))
    assert found["vBucketServerMap"]["vBucketMap"] == [[0], [-1], [0]]
    assert (found["revEpoch"], found["rev"]) == (7, 3)
    assert "ephemeral" in found["bucketCapabilities"]


def test_an_address_of_version_6_is_bracketed(host: BucketHost) -> None:
    found = json.loads(bucket_map(host, Ports(plain=5, tls=None), VERSION, "::1"))
    assert found["vBucketServerMap"]["serverList"] == ["[::1]:5"]


def test_ports_are_told_as_services() -> None:
    assert Ports(plain=1, tls=None).services() == {"mgmt": 8091, "kv": 1}
    assert Ports(plain=None, tls=2).services() == {"mgmt": 8091, "mgmtSSL": 8091, "kvSSL": 2}
    found = json.loads(node_map(Ports(plain=1, tls=2), VERSION, "h"))
    assert found["nodesExt"][0]["services"]["kvSSL"] == 2
    assert found["nodesExt"][0]["thisNode"] is True


def test_a_later_epoch_beats_a_higher_revision() -> None:
    assert MapVersion(epoch=8, revision=1) > VERSION
