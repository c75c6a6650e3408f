"""Walk over the headers of a buffer of frames: where the last whole one ends, what is notable.

A frame that carries an item (mutation, deletion, prepare, system event ...) only moves its
vbucket's last seqno; every other frame is notable and its place is handed back, for it may change
what the manager knows. One pass, no object per frame: a proxy that looked at each in Python would
be slower than the nodes it joins.

Rules
- Nothing is read outside the buffer; a frame is looked into once it is whole.
- A wrong header stops the walk and is told by its place: nothing behind it can be found.

Imports: wire.frame, wire.opcodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import numpy as np
import numpy.typing as npt
from numba import njit

from headrace.wire.frame import BODY_SIZE_MAX, HEADER_SIZE
from headrace.wire.opcodes import Opcode

if TYPE_CHECKING:
    from collections.abc import Callable

NOTABLE_MAX: Final = 4096
"""Places handed back by one walk; the walk stops there and is called again."""
SOUND: Final = -1
VBUCKETS: Final = 0x1_0000

_MUTATION: Final = int(Opcode.MUTATION)
_EXPIRATION: Final = int(Opcode.EXPIRATION)
_SYSTEM_EVENT: Final = int(Opcode.SYSTEM_EVENT)
_PREPARE: Final = int(Opcode.PREPARE)
_COMMIT: Final = int(Opcode.COMMIT)
_ABORT: Final = int(Opcode.ABORT)
_SEQNO_ADVANCED: Final = int(Opcode.SEQNO_ADVANCED)
_HEADER: Final = HEADER_SIZE
_BODY_MAX: Final = BODY_SIZE_MAX

Bytes = npt.NDArray[np.uint8]
Numbers = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]


def _walk(data: Bytes, seqnos: Numbers, items: Numbers, notable: Places, found: Places) -> None:
    """Fill ``found`` with (end of the last whole frame, notable frames, place of a wrong header).

    ``seqnos`` and ``items`` are per vbucket: the last item's seqno, and how many went by.
    """
    size = data.size
    at = np.int64(0)
    count = 0
    wrong = np.int64(-1)
    while at + _HEADER <= size and count < notable.size:
        magic = data[at]
        flexible = magic == 0x08 or magic == 0x18
        if not (flexible or 0x80 <= magic <= 0x83):
            wrong = at
            break
        body = (
            (np.int64(data[at + 8]) << 24)
            | (np.int64(data[at + 9]) << 16)
            | (np.int64(data[at + 10]) << 8)
            | np.int64(data[at + 11])
        )
        framing = np.int64(data[at + 2]) if flexible else np.int64(0)
        key = np.int64(data[at + 3])
        if not flexible:
            key |= np.int64(data[at + 2]) << 8
        extras = np.int64(data[at + 4])
        if body > _BODY_MAX or framing + extras + key > body:
            wrong = at
            break
        if at + _HEADER + body > size:
            break
        opcode = data[at + 1]
        item = (
            _MUTATION <= opcode <= _EXPIRATION
            or opcode in (_SYSTEM_EVENT, _PREPARE)
            or _COMMIT <= opcode <= _SEQNO_ADVANCED
        )
        place = at + _HEADER + framing
        if _COMMIT <= opcode <= _ABORT:
            place += 8  # the prepared seqno stands first
        inside = place + 8 <= at + _HEADER + framing + extras
        if item and inside and (magic == 0x80 or magic == 0x08):
            seqno = np.uint64(0)
            for step in range(8):
                seqno = (seqno << np.uint64(8)) | np.uint64(data[place + step])
            vbucket = (np.int64(data[at + 6]) << 8) | np.int64(data[at + 7])
            seqnos[vbucket] = seqno
            items[vbucket] += np.uint64(1)
        else:
            notable[count] = at
            count += 1
        at += _HEADER + body
    found[0] = at
    found[1] = count
    found[2] = wrong


_SIGNATURE: Final = "void(Array(uint8, 1, 'C', readonly=True), u8[::1], u8[::1], i8[::1], i8[::1])"


def _compiled() -> Callable[[Bytes, Numbers, Numbers, Places, Places], None]:
    """The walk as machine code, from numba's cache where there is a place for one."""
    options = {"nogil": True, "error_model": "numpy"}
    try:
        compiled = njit(_SIGNATURE, cache=True, **options)(_walk)
    except RuntimeError as error:
        if "no locator available" not in str(error):
            raise
        compiled = njit(_SIGNATURE, **options)(_walk)
    return cast("Callable[[Bytes, Numbers, Numbers, Places, Places], None]", compiled)


walk = _compiled()
