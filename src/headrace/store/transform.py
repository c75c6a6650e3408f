"""How frames at rest become the frames one stream's reader is entitled to.

A frame at rest has the dcp-7 layout: mutation extras of 31 bytes, deletion 21, expiration 20, the
collection id in front of the key. A `Transform` names what differs for one reader; one kernel obeys
it for whole chunks. Only frames that need their value rewritten (xattrs taken out, snappy) and
system events take a slower path, frame by frame.

Imports: errors, store.model, wire.opcodes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final

import numpy as np

from headrace.errors import ConfigError
from headrace.wire.opcodes import Datatype

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.store.model import SystemEventView
    from headrace.store.native import Words

# Places in `Transform.options`, for the kernel.
O_OPAQUE: Final = 0
O_STREAM_ID: Final = 1
O_COLLECTIONS: Final = 2
O_FILTERED: Final = 3
O_MUTATION_EXTRAS: Final = 4
O_DELETION_EXTRAS: Final = 5
O_EXPIRY_OPCODE: Final = 6
O_VALUES: Final = 7
O_XATTRS: Final = 8
O_KEEP_DATATYPE: Final = 9
O_DELETED_USER_XATTRS: Final = 10
O_DATATYPE_MASK: Final = 11
O_COMPRESSION: Final = 12
O_SYNC_WRITES: Final = 13
O_COMMITS: Final = 14
O_WHOLE: Final = 15


class Compression(Enum):
    """What happens to values stored as snappy, and to those that are not."""

    AS_STORED = 0
    INFLATE = 1
    """The reader did not negotiate snappy: every value goes out inflated."""
    DEFLATE = 2
    """force_value_compression: every value goes out as snappy where that is shorter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transform:
    """What one reader gets of a frame at rest. Build it once per stream.

    ``opaque``            the stream's opaque, patched into every frame.
    ``stream_id``         adds the stream-id framing (magic 08, 3 bytes).
    ``collections``       False: only the default collection, its prefix taken off, no system
                          events.
    ``only_collections``  collection ids that pass; None: all. Does not touch system events.
    ``mutation_extras``   31 (with nru), 30, or 28 (without nmeta and nru).
    ``deletion_extras``   21 (delete time), 18 (nmeta), or 16.
    ``expiry_opcode``     True: expirations go out as 59 (with 20 bytes of extras if
                          ``deletion_extras`` is 21, else as deletions are); False: as deletions.
    ``values``            False: no document. ``xattrs`` False: no xattrs.
                          ``keep_datatype``: the datatype byte stays when the value is taken out.
    ``deleted_user_xattrs`` True: deletions keep user xattrs, not only those that start with ``_``.
    ``datatype_mask``     datatype bits the reader understands; others are cleared.
    ``compression``       see `Compression`.
    ``sync_writes``       True: prepares and aborts are sent.
    ``commits``           True (memory snapshots of sync-write streams): a committed sync write goes
                          out as COMMIT; False: as the mutation or deletion it made.
    ``system_event``      called for each system event that collections allow: returns (version,
                          key, value) to send, or None to leave it out. None: sent as stored.
    """

    opaque: int = 0
    stream_id: int | None = None
    collections: bool = True
    only_collections: frozenset[int] | None = None
    mutation_extras: int = 31
    deletion_extras: int = 21
    expiry_opcode: bool = True
    values: bool = True
    xattrs: bool = True
    keep_datatype: bool = False
    deleted_user_xattrs: bool = True
    datatype_mask: int = 0x07
    compression: Compression = Compression.AS_STORED
    sync_writes: bool = True
    commits: bool = False
    system_event: Callable[[SystemEventView], tuple[int, bytes, bytes] | None] | None = None
    options: Words = field(init=False, repr=False, compare=False)
    """The numbers above, for the kernel."""
    wanted: Words = field(init=False, repr=False, compare=False)
    """The collection ids that pass, sorted, for the kernel."""

    def __post_init__(self) -> None:
        """Refuse a layout that does not exist."""
        if self.mutation_extras not in (31, 30, 28) or self.deletion_extras not in (21, 18, 16):
            raise ConfigError(
                f"mutation extras {self.mutation_extras}, deletion extras {self.deletion_extras}; "
                "allowed 31, 30, 28 and 21, 18, 16"
            )
        if not 0 <= self.opaque <= 0xFFFF_FFFF:
            raise ConfigError(f"opaque {self.opaque}, allowed 32 bits")
        if self.stream_id is not None and not 1 <= self.stream_id <= 0xFFFF:
            raise ConfigError(f"stream id {self.stream_id}, allowed 1..65535")
        numbers = (
            self.opaque,
            self.stream_id or 0,
            self.collections,
            self.only_collections is not None,
            self.mutation_extras,
            self.deletion_extras,
            self.expiry_opcode,
            self.values,
            self.xattrs,
            self.keep_datatype,
            self.deleted_user_xattrs,
            self.datatype_mask,
            self.compression.value,
            self.sync_writes,
            self.commits,
            self._whole(),
        )
        object.__setattr__(self, "options", np.array(numbers, np.int64))
        wanted = np.array(sorted(self.only_collections or ()), np.int64)
        object.__setattr__(self, "wanted", wanted)

    def _whole(self) -> int:
        """Datatype bits that keep a mutation from going out as it lies; -1: none ever does."""
        if (
            self.stream_id is not None
            or self.only_collections is not None
            or self.mutation_extras != 31
            or not self.values
            or self.commits
            or self.compression is Compression.DEFLATE
        ):
            return -1
        touched = Datatype.RAW
        if not self.xattrs:
            touched |= Datatype.XATTR
        if self.compression is Compression.INFLATE:
            touched |= Datatype.SNAPPY
        return int(touched)


AT_REST: Final = Transform()
"""Every frame as it is kept, opaque 0: what a replica of our own would be sent."""


VISIBLE: Final = Transform(sync_writes=False)
"""Everything but prepares and aborts."""
