"""The crc32 of records: what `zlib.crc32` gives, from a kernel that folds where the machine can.

A crc is a remainder of polynomials over bits, so 64 bytes can be multiplied onto the next 64
without carries and the remainder stays the same. The kernel folds a buffer in this way down to 16
bytes, four independent multiplications at a time; zlib does those 16 and the tail. The constants
are powers of x modulo the polynomial, for distances of 512 and of 128 bits, bits reflected as zlib
reads them.

The instruction is asked for by name, so it is used only when numba generates code for a machine
that has it; anywhere else, and for small buffers, zlib does everything. Both give the same number:
what is on disk does not depend on it.

Imports: store.native.
"""

from __future__ import annotations

import functools
import zlib
from struct import Struct
from typing import Any, Final

from llvmlite import ir
from numba import types
from numba.core.registry import cpu_target
from numba.extending import intrinsic

from headrace.store.native import address_of, bytes_at, kernel

INSTRUCTION: Final = "+pclmul"
FOLDED_MIN: Final = 1024
"""Smaller buffers are not worth the call."""
LANE_SIZE: Final = 16
LANES: Final = 4
STRIDE: Final = LANE_SIZE * LANES
OVER_512_BITS: Final = (0x1_5444_2BD4, 0x1_C6E4_1596)
OVER_128_BITS: Final = (0x1_7519_97D0, 0x0_CCAA_009E)
_REMAINDER: Final = Struct("<QQ")
_ALL_ONES: Final = 0xFFFF_FFFF
_UNSIGNED: Final = 2**64 - 1

_WORD: Final = ir.IntType(64)
_LANE: Final = ir.VectorType(_WORD, 2)
_BYTE: Final = ir.IntType(8)


class _Folding:
    """The instructions of a fold, as they are built."""

    def __init__(self, builder: Any, address: Any) -> None:  # noqa: ANN401 - llvmlite has no types
        self.builder, self.address = builder, address
        kind = ir.FunctionType(_LANE, (_LANE, _LANE, _BYTE))
        self._multiply = builder.module.declare_intrinsic("llvm.x86.pclmulqdq", (), kind)

    def load(self, offset: Any) -> Any:  # noqa: ANN401
        """The lane at an offset."""
        place = self.builder.add(self.address, offset)
        value = self.builder.load(self.builder.inttoptr(place, _LANE.as_pointer()))
        value.align = 1
        return value

    def onto(self, lane: Any, powers: tuple[int, int], following: Any) -> Any:  # noqa: ANN401
        """A lane multiplied onto the one a distance further on."""
        by = ir.Constant(_LANE, list(powers))
        low = self.builder.call(self._multiply, (lane, by, _BYTE(0x00)))
        high = self.builder.call(self._multiply, (lane, by, _BYTE(0x11)))
        return self.builder.xor(self.builder.xor(low, high), following)

    def while_left(self, offset: Any, size: Any, lanes: list[Any]) -> tuple[Any, list[Any]]:  # noqa: ANN401
        """Fold all lanes over what is left, as long as each finds a successor; offset and lanes."""
        builder, step = self.builder, _WORD(LANE_SIZE * len(lanes))
        powers = OVER_512_BITS if len(lanes) == LANES else OVER_128_BITS
        before = builder.block
        test, body, after = (builder.append_basic_block(name) for name in ("test", "fold", "over"))
        builder.branch(test)
        builder.position_at_end(test)
        at = builder.phi(_WORD)
        at.add_incoming(offset, before)
        held = [builder.phi(_LANE) for _ in lanes]
        for phi, lane in zip(held, lanes, strict=True):
            phi.add_incoming(lane, before)
        following = builder.add(at, step)
        builder.cbranch(builder.icmp_signed("<=", following, size), body, after)
        builder.position_at_end(body)
        for number, phi in enumerate(held):
            loaded = self.load(builder.add(at, _WORD(LANE_SIZE * number)))
            phi.add_incoming(self.onto(phi, powers, loaded), body)
        at.add_incoming(following, body)
        builder.branch(test)
        builder.position_at_end(after)
        return at, held


@intrinsic
def _folded(typingctx: Any, address: Any, size: Any, register: Any) -> Any:  # noqa: ANN401, ARG001
    """The two words that have the remainder of ``size`` bytes (at least a stride), but the tail."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401
        address, size, register = arguments
        folding = _Folding(builder, address)
        lanes = [folding.load(_WORD(LANE_SIZE * number)) for number in range(LANES)]
        begun = builder.insert_element(ir.Constant(_LANE, [0, 0]), register, ir.IntType(32)(0))
        lanes[0] = builder.xor(lanes[0], begun)
        offset, lanes = folding.while_left(_WORD(STRIDE), size, lanes)
        last = lanes[0]
        for lane in lanes[1:]:
            last = folding.onto(last, OVER_128_BITS, lane)
        _, (last,) = folding.while_left(offset, size, [last])
        words = [builder.extract_element(last, ir.IntType(32)(number)) for number in (0, 1)]
        return context.make_tuple(builder, signature.return_type, words)

    return types.UniTuple(types.int64, 2)(types.int64, types.int64, types.int64), codegen


@kernel
def folded(address: int, size: int, register: int) -> tuple[int, int]:
    """See `_folded`."""
    return _folded(address, size, register)


@functools.cache
def can_fold() -> bool:
    """Whether numba generates code for a machine that has the instruction."""
    return INSTRUCTION in cpu_target.target_context.codegen().magic_tuple()[2].split(",")


def crc32(data: bytes | bytearray | memoryview, value: int = 0) -> int:
    """`zlib.crc32`, sooner."""
    size = len(data)
    if size < FOLDED_MIN or not can_fold():
        return zlib.crc32(data, value)
    array = bytes_at(data)
    low, high = folded(address_of(array), size, value ^ _ALL_ONES)
    remainder = _REMAINDER.pack(low & _UNSIGNED, high & _UNSIGNED)
    whole = zlib.crc32(remainder, _ALL_ONES)  # a register of 0: it was folded in
    return zlib.crc32(memoryview(data)[size & -LANE_SIZE :], whole)
