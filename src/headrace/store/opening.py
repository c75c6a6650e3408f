"""Opening a bucket: read and check everything, then (and only then) write the first byte.

Order: the bucket's record (is it ours, and not newer than we are), the vbuckets' records, their
blocks, the journal. What fails a check is a CorruptRecord and nothing has been touched. After an
unclean stop every active vbucket begins a new branch at its last durable, complete snapshot.

Imports: errors, store.core, store.disk, store.journal, store.layout, store.loading, store.lookup,
store.records, store.restore, store.settings, wire.opcodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from headrace.errors import ConfigError, CorruptRecord, StoreVersion
from headrace.history import Seqno
from headrace.store import layout as at
from headrace.store import records
from headrace.store.accept import open_checkpoint
from headrace.store.disk import Table
from headrace.store.loading import load_block, read_block, replay_entry
from headrace.store.restore import vbucket_from_record
from headrace.store.settings import BucketSettings
from headrace.wire.opcodes import VBucketState

if TYPE_CHECKING:
    from headrace.store.core import Core
    from headrace.store.disk import Disk, Reader
    from headrace.store.journal import Journal
    from headrace.store.lookup import Lookup
    from headrace.store.vbucket import VBucket


def read_bucket_record(disk: Disk) -> dict[str, Any] | None:
    """The bucket's record, None if the store is new; StoreVersion if a newer release wrote it."""
    with disk.read() as reader:
        value = reader.get(Table.META, records.BUCKET_KEY)
        if value is None:
            if next(iter(reader.scan(Table.BLOCKS)), None) or next(
                iter(reader.scan(Table.JOURNAL)), None
            ):
                raise CorruptRecord(f"{disk.path} has data but no bucket record", path=disk.path)
            return None
        record = records.unpack_meta(records.BUCKET_KEY, value, path=disk.path)
    if not isinstance(record, dict) or not isinstance(record.get("format"), int):
        raise CorruptRecord(f"{disk.path}: bucket record without a format", path=disk.path)
    if record["format"] > records.FORMAT:
        raise StoreVersion(
            f"{disk.path} has format {record['format']}, this release reads up to {records.FORMAT}"
        )
    return record


def stored_settings(
    record: dict[str, Any] | None, given: BucketSettings | None, path: str
) -> BucketSettings:
    """The settings to use: those given, or those stored; the number of vbuckets cannot change."""
    if record is None:
        return given or BucketSettings()
    try:
        stored = BucketSettings.from_json(record["settings"])
    except (ConfigError, KeyError, TypeError, AttributeError) as error:
        raise CorruptRecord(
            f"{path}: bucket record has bad settings: {error}", path=path
        ) from error
    if given is not None and given.vbuckets != stored.vbuckets:
        raise ConfigError(
            f"{path} was created with {stored.vbuckets} vbuckets, {given.vbuckets} were asked for"
        )
    return given or stored


class Opening:
    """The steps of opening, over the parts of one bucket."""

    def __init__(
        self, core: Core, lookup: Lookup, journal: Journal, vbuckets: dict[int, VBucket]
    ) -> None:
        self._core = core
        self._lookup = lookup
        self._journal = journal
        self._vbuckets = vbuckets
        self._sealed = np.zeros(core.settings.vbuckets, np.int64)
        self._highs: dict[int, int] = {}
        self.was_clean = False
        self.properties: dict[str, object] = {}

    def load(self) -> None:
        """Read everything there is."""
        core = self._core
        with core.lock, core.disk.read() as reader:
            try:
                self._load_records(reader)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                path = core.disk.path
                raise CorruptRecord(f"{path}: bad vbucket record: {error!r}", path=path) from error
            self._load_blocks(reader)
            self._load_journal(reader)
        with core.lock:
            self._settle()

    def _load_records(self, reader: Reader) -> None:
        path = self._core.disk.path
        for key, value in reader.scan(Table.META):
            record = records.unpack_meta(key, value, path=path)
            if key == records.CLEAN_KEY:
                self.was_clean = record is True
            elif key.startswith(b"p"):
                self.properties[key[1:].decode()] = record
            elif key.startswith(b"v"):
                self._load_vbucket(int.from_bytes(key[1:], "big"), cast("dict[str, Any]", record))
            elif key != records.BUCKET_KEY:
                raise CorruptRecord(f"{path}: meta record {key!r} is unknown", path=path)

    def _load_vbucket(self, number: int, record: dict[str, Any]) -> None:
        path = self._core.disk.path
        if number >= self._core.settings.vbuckets:
            raise CorruptRecord(f"{path}: record of vbucket {number} is out of range", path=path)
        self._sealed[number] = record["sealed_commit"]
        self._journal.next_commit = max(self._journal.next_commit, record["sealed_commit"])
        if record["state"]:
            self._highs[number] = record["high"]
            self._vbuckets[number] = vbucket_from_record(self._core, self._lookup, number, record)

    def _load_blocks(self, reader: Reader) -> None:
        core = self._core
        for key, value in reader.scan(Table.BLOCKS):
            block = read_block(core, key, value)
            vbucket = self._vbuckets.get(block.vbucket)
            if vbucket is None or block.last > int(vbucket.row[at.V_SEALED]):
                path = core.disk.path
                raise CorruptRecord(f"{path}: block {key.hex()} has no vbucket", path=path)
            blocks = core.blocks[block.vbucket]
            if blocks.blocks and blocks.blocks[-1].last >= block.first:
                path = core.disk.path
                raise CorruptRecord(f"{path}: block {key.hex()} overlaps another", path=path)
            blocks.append(block)
            core.next_stamp = max(core.next_stamp, block.stamp)
            load_block(vbucket, block, value)

    def _load_journal(self, reader: Reader) -> None:
        core = self._core
        for key, value in reader.scan(Table.JOURNAL):
            commit, frames = records.unpack_journal(key, value, path=core.disk.path)
            replay_entry(core, self._vbuckets, commit, frames, self._sealed)
            self._journal.loaded(commit, key, len(value))

    def _settle(self) -> None:
        """What was found is durable, whole and behind every cursor."""
        core = self._core
        core.flush_marks()
        for vbucket in self._vbuckets.values():
            row = vbucket.row
            vbucket.collections.catch_up()
            # Above every frame after a SEQNO_ADVANCED whose journal entry is gone.
            row[at.V_HIGH] = max(int(row[at.V_HIGH]), self._highs[vbucket.id])
            row[at.V_PERSISTED] = row[at.V_MEMORY] = row[at.V_HIGH]
            if not len(vbucket.prepares) and not vbucket.prepares.high_prepared:
                row[at.V_VISIBLE] = row[at.V_HIGH]
            vbucket.complete_known_prepares()
            vbucket.prepares.completed_up_to(vbucket.completed_floor, int(row[at.V_HIGH]))
            vbucket.note_prepares()
            vbucket.persisted_received = vbucket.received
            row[at.V_RECEIVING] = at.RECEIVING_TOLD if vbucket.received is not None else 0
            open_checkpoint(core.tables.vbuckets, vbucket.id, int(row[at.V_HIGH]) + 1)
        self._journal.start()

    def begin_branches(self) -> None:
        """After an unclean stop: a new branch for every active vbucket; lock held."""
        for vbucket in self._vbuckets.values():
            if vbucket.state is VBucketState.ACTIVE:
                vbucket.begin_branch(
                    vbucket.failover_log.restarted_uncleanly(
                        self._core.new_branch(),
                        snapshot=vbucket.persisted_snapshot,
                        persisted=Seqno(vbucket.persisted_seqno),
                    )
                )
