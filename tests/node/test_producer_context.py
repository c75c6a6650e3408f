"""What a node may choose for its producers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.node.producer_context import ProducerSettings
from headrace.wire.opcodes import StreamFlag
from tests.node.stream_kit import Peer, kinds, make_host, put, restarted

if TYPE_CHECKING:
    from pathlib import Path


def test_by_default_nothing_is_refused_and_nobody_is_cut_off() -> None:
    settings = ProducerSettings()
    assert settings.stuck_seconds is None
    assert not settings.backfill_is_full()
    assert not settings.disk_is_tight()


def test_an_idle_backfill_ends_when_the_disk_is_tight(tmp_path: Path) -> None:
    path = tmp_path / "b"
    host = make_host(path)
    put(host.bucket.vbucket(0), *(f"k{number}" for number in range(50)))
    host = restarted(host, path)
    tight = [False]
    settings = ProducerSettings(disk_is_tight=lambda: tight[0], idle_backfill_seconds=720)
    peer = Peer(host, controls={"connection_buffer_size": "200"}, settings=settings)
    peer.stream(0, flags=StreamFlag.TO_LATEST)
    peer.drain()
    assert peer.producer.next_tick(peer.now) == peer.now + 720
    peer.tick(720)
    assert peer.producer.streams
    tight[0] = True
    peer.tick(1)
    assert not peer.producer.streams
    peer.control("connection_buffer_size", "0")
    assert kinds(peer.drain()) == ["end 4"]
    host.bucket.close()
