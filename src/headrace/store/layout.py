"""Where things lie: in a frame at rest, and in the integer tables the kernels share.

A frame at rest is a dcp-7 request frame (docs/protocol.md) with three liberties: its opaque is
ours, because every reader gets its own; a committed sync write is kept as the mutation or deletion
it made, with `COMMITTED` and the distance to its prepare in the opaque; a system event keeps its
subject (collection or scope id) there. Journal entries also hold SNAPSHOT_MARKER and
SEQNO_ADVANCED frames: what a replica was told; they are never items.

Tables are two-dimensional arrays of signed 64-bit integers; a column is one of the constants
below. Ordinals number all items a bucket has accepted since it was opened, from 1; an item's row is
its ordinal modulo the table's length, a power of two. A place in the arena is a position: it grows
with every byte, and its segment is position // segment size.

Imports: wire.opcodes.
"""

from __future__ import annotations

from typing import Final

from headrace.wire.opcodes import Opcode

# -- a frame at rest ----------------------------------------------------------------------------

HEADER: Final = 24
OPCODE_AT: Final = 1
KEY_SIZE_AT: Final = 2
EXTRAS_SIZE_AT: Final = 4
DATATYPE_AT: Final = 5
VBUCKET_AT: Final = 6
BODY_SIZE_AT: Final = 8
OPAQUE_AT: Final = 12
CAS_AT: Final = 16
SEQNO_AT: Final = 24
REV_AT: Final = 32
FLAGS_AT: Final = 40
EXPIRY_AT: Final = 44
NMETA_AT: Final = 52
NRU_AT: Final = 54
DELETE_TIME_AT: Final = 40
PREPARE_DELETED_AT: Final = 53
PREPARE_LEVEL_AT: Final = 54
EVENT_AT: Final = 32
EVENT_VERSION_AT: Final = 36
ABORT_SEQNO_AT: Final = 32
"""COMMIT and ABORT frames name the prepare first; their own seqno comes second."""

MAGIC: Final = 0x80
FLEXIBLE_MAGIC: Final = 0x08
MUTATION: Final = int(Opcode.MUTATION)
DELETION: Final = int(Opcode.DELETION)
EXPIRATION: Final = int(Opcode.EXPIRATION)
SYSTEM_EVENT: Final = int(Opcode.SYSTEM_EVENT)
PREPARE: Final = int(Opcode.PREPARE)
COMMIT: Final = int(Opcode.COMMIT)
ABORT: Final = int(Opcode.ABORT)
MARKER: Final = int(Opcode.SNAPSHOT_MARKER)
ADVANCED: Final = int(Opcode.SEQNO_ADVANCED)

MUTATION_EXTRAS: Final = 31
DELETION_EXTRAS: Final = 21
EXPIRATION_EXTRAS: Final = 20
PREPARE_EXTRAS: Final = 31
EVENT_EXTRAS: Final = 13
ABORT_EXTRAS: Final = 16
MARKER_EXTRAS: Final = 20
ADVANCED_EXTRAS: Final = 8

COMMITTED: Final = 0x8000_0000
"""In the opaque at rest: this mutation or deletion committed a prepare."""
COMMIT_DISTANCE_MAX: Final = 0x7FFF_FFFF
"""In the opaque at rest beside COMMITTED: this frame's seqno minus its prepare's."""

DATATYPE_SNAPPY: Final = 0x02
DATATYPE_XATTR: Final = 0x04

# -- vbucket table: one row per vbucket -----------------------------------------------------------

V_STATE: Final = 0
"""0: does not exist."""
V_HIGH: Final = 1
V_PERSISTED: Final = 2
V_SEALED: Final = 3
"""Every item at or below is in a block (or was dropped as dead)."""
V_MAX_CAS: Final = 4
V_DELETED_REV: Final = 5
V_VISIBLE: Final = 6
"""Highest seqno that is no prepare and no abort."""
V_FIRST: Final = 7
"""Ordinal of the oldest item in memory, 0 if none."""
V_LAST: Final = 8
V_MEMORY: Final = 9
"""Every item above this seqno is in memory."""
V_LIVE: Final = 10
V_TOMBSTONES: Final = 11
V_CHECKPOINT: Final = 12
"""Id of the open checkpoint."""
V_CHECKPOINT_START: Final = 13
V_CHECKPOINT_ITEMS: Final = 14
V_CHECKPOINT_BYTES: Final = 15
V_CHECKPOINT_TIME: Final = 16
"""Seconds when the open checkpoint got its first item."""
V_COUNT: Final = 17
"""Items linked since the bucket was opened."""
V_QUIET: Final = 18
"""1: the listener was told of a change and no cursor has looked since."""
V_SLOW: Final = 19
"""Not 0: requests for this vbucket must not be served in bulk (prepares in flight, owner's
wish)."""
V_BRANCH: Final = 20
"""Uuid of the newest branch, for mutation tokens."""
V_RECEIVING: Final = 21
"""Not 0: checkpoints follow received snapshots, not limits."""
RECEIVING_SEALED: Final = 1
"""What it was told is in its record."""
RECEIVING_TOLD: Final = 2
"""It was told of a snapshot since it was sealed: that lies in the journal alone."""
V_SUPERSEDED: Final = 22
"""Versions superseded since the bucket was opened."""
V_COLUMNS: Final = 24

# -- recent items: one row per ordinal ------------------------------------------------------------

I_SEQNO: Final = 0
I_POSITION: Final = 1
I_TAG: Final = 2
"""vbucket in the low 16 bits, checkpoint id above."""
I_SUPERSEDED: Final = 3
"""Seqno of the key's next version, 0 while this is the newest."""
I_NEXT: Final = 4
"""Ordinal of the vbucket's next item, 0 if none yet."""
I_CHECKPOINT_START: Final = 5
I_COUNT: Final = 6
I_INFO: Final = 7
"""Opcode in the low 8 bits, bit 8: committed sync write, size of the frame above bit 16."""
I_COLUMNS: Final = 8
INFO_COMMITTED: Final = 1 << 8
INFO_SIZE_SHIFT: Final = 16

# -- key index: one row per key -------------------------------------------------------------------

E_HASH: Final = 0
E_KEY: Final = 1
"""Place in the key heap << 8 | size of the key."""
E_SEQNO: Final = 2
E_REV: Final = 3
E_CAS: Final = 4
E_FLAGS: Final = 5
"""Flags << 32 | expiry (of a tombstone: delete time)."""
E_WORD: Final = 6
"""vbucket << 48 | datatype << 40 | deleted << 39 | size of the value; -1: a free row."""
E_ORDINAL: Final = 7
"""Ordinal of the newest version; below the oldest ordinal in memory: read it from its block."""
E_COLUMNS: Final = 8
WORD_DELETED: Final = 1 << 39

# -- marks: versions superseded after they were sealed into a block ---------------------------

M_VBUCKET: Final = 0
M_OLD: Final = 1
M_NEW: Final = 2
M_COLUMNS: Final = 3

# -- scalars the kernels share --------------------------------------------------------------------

S_ENTRIES: Final = 0
"""Rows of the key index ever used."""
S_FREE: Final = 1
"""First free row + 1, 0 if none; free rows are chained through E_HASH."""
S_KEYS: Final = 2
S_HEAP_USED: Final = 3
S_HEAP_GARBAGE: Final = 4
S_HEAP_ADDRESS: Final = 5
S_SEED: Final = 6
S_LOW: Final = 7
"""Oldest ordinal in memory."""
S_HIGH: Final = 8
"""Newest ordinal given; below S_LOW when there is none."""
S_MARKS: Final = 9
S_SEGMENT_BYTES: Final = 10
S_CHECKPOINT_ITEMS: Final = 11
S_CHECKPOINT_BYTES: Final = 12
S_CHECKPOINT_SECONDS: Final = 13
S_COLUMNS: Final = 16
