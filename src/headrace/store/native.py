"""Bytes at addresses, for the kernels: loads, stores and copies as single machine instructions.

A kernel of the store sees memory as integers: an address and a length. Arena segments, LMDB values
and output buffers are all the same to it, read-only or not. Rules: the Python caller keeps the
owner of the memory alive for the length of the call, and every kernel checks lengths against the
bounds it was given before it loads. Kernels allocate nothing, so they are compiled without
reference counts: counted, each array handed from one kernel to the next costs two atomic
instructions, and a change is handed through six of them. Numbers in frames are big-endian and
come out as signed 64-bit integers (the bits of an unsigned 64-bit number are kept as they are).

Imports: nothing of ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar, cast

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.cpu import CPUTargetOptions
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Bytes = NDArray[np.uint8]
    Words = NDArray[np.int64]
    Halves = NDArray[np.uint32]

P = ParamSpec("P")
R = TypeVar("R")

# The option is numba's own and has no public name: a release without it counts, as before.
UNCOUNTED: Final[dict[str, bool]] = {"_nrt": False} if hasattr(CPUTargetOptions, "_nrt") else {}
OPTIONS: Final = {"cache": True, "nogil": True, "error_model": "numpy", **UNCOUNTED}


def kernel(function: Callable[P, R]) -> Callable[P, R]:
    """The function compiled without Python objects and without the interpreter lock, cached."""
    return cast("Callable[P, R]", njit(**OPTIONS)(function))


def inline_kernel(function: Callable[P, R]) -> Callable[P, R]:
    """A helper that is compiled into the kernels that call it."""
    return cast("Callable[P, R]", njit(**OPTIONS, inline="never")(function))


def address_of(array: NDArray[Any]) -> int:
    """Where an array's first byte lies; the caller keeps the array alive."""
    address: int = array.__array_interface__["data"][0]
    return address


def bytes_at(buffer: bytes | bytearray | memoryview) -> Bytes:
    """A buffer as an array of bytes, without a copy."""
    return np.frombuffer(buffer, np.uint8)


def _loader(bits: int) -> Any:  # noqa: ANN401 - numba intrinsics have no type
    """An intrinsic that loads a big-endian number of so many bits from an address."""

    @intrinsic
    def load(typingctx: Any, address: Any) -> Any:  # noqa: ANN401, ARG001
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401, ARG001
            integer = ir.IntType(bits)
            value = builder.load(builder.inttoptr(arguments[0], integer.as_pointer()))
            value.align = 1
            if bits > 8:
                value = builder.bswap(value)
            return value if bits == 64 else builder.zext(value, ir.IntType(64))

        return types.int64(types.int64), codegen

    return load


def _storer(bits: int) -> Any:  # noqa: ANN401
    """An intrinsic that stores the low bits of a number at an address, big-endian."""

    @intrinsic
    def store(typingctx: Any, address: Any, value: Any) -> Any:  # noqa: ANN401, ARG001
        def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401, ARG001
            integer = ir.IntType(bits)
            number = arguments[1] if bits == 64 else builder.trunc(arguments[1], integer)
            if bits > 8:
                number = builder.bswap(number)
            pointer = builder.inttoptr(arguments[0], integer.as_pointer())
            builder.store(number, pointer).align = 1
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), codegen

    return store


load8: Callable[[int], int] = _loader(8)
load16: Callable[[int], int] = _loader(16)
load32: Callable[[int], int] = _loader(32)
load64: Callable[[int], int] = _loader(64)
store8: Callable[[int, int], None] = _storer(8)
store16: Callable[[int, int], None] = _storer(16)
store32: Callable[[int, int], None] = _storer(32)
store64: Callable[[int, int], None] = _storer(64)


@intrinsic
def copy_bytes(typingctx: Any, target: Any, source: Any, size: Any) -> Any:  # noqa: ANN401, ARG001
    """Copy ``size`` bytes between addresses that do not overlap."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401, ARG001
        byte = ir.IntType(8).as_pointer()
        cgutils.raw_memcpy(
            builder,
            builder.inttoptr(arguments[0], byte),
            builder.inttoptr(arguments[1], byte),
            arguments[2],
            1,
        )
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def halves_at(typingctx: Any, address: Any, count: Any) -> Any:  # noqa: ANN401, ARG001
    """The ``count`` rows of three 32-bit numbers at an address, as an array without an owner."""
    rows = types.Array(types.uint32, 2, "C")

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401, ARG001
        number = context.get_value_type(types.intp)
        made = make_array(rows)(context, builder)
        populate_array(
            made,
            data=builder.inttoptr(arguments[0], ir.IntType(32).as_pointer()),
            shape=(arguments[1], number(3)),
            strides=(number(12), number(4)),
            itemsize=number(4),
            meminfo=None,
        )
        return made._getvalue()  # noqa: SLF001 - numba's own name for it

    return rows(types.int64, types.int64), codegen


@intrinsic
def fetch_line(typingctx: Any, address: Any) -> Any:  # noqa: ANN401, ARG001
    """Have the cache line at an address brought in for writing; the address may be any."""

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ANN401, ARG001
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), (byte, number, number, number))
        prefetch = builder.module.declare_intrinsic("llvm.prefetch", (byte,), kind)
        for_writing, keep_near, data = number(1), number(3), number(1)
        pointer = builder.inttoptr(arguments[0], byte)
        builder.call(prefetch, (pointer, for_writing, keep_near, data))
        return context.get_dummy_value()

    return types.void(types.int64), codegen


@kernel
def same_bytes(left: int, right: int, size: int) -> bool:
    """Whether ``size`` bytes at two addresses are equal."""
    at = 0
    while at + 8 <= size:
        if load64(left + at) != load64(right + at):
            return False
        at += 8
    while at < size:
        if load8(left + at) != load8(right + at):
            return False
        at += 1
    return True


@kernel
def hash_bytes(address: int, size: int, seed: int) -> int:
    """A 64-bit hash of the bytes; the seed differs per process, so that nobody can aim at a
    slot."""
    state = seed ^ (size * -7046029254386353131)
    at = 0
    while at + 8 <= size:
        state = (state ^ load64(address + at)) * -4417276706812531889
        state ^= (state >> 29) & 0x7_FFFF_FFFF
        at += 8
    tail = 0
    while at < size:
        tail = (tail << 8) | load8(address + at)
        at += 1
    state = (state ^ tail) * -7046029254386353131
    state ^= (state >> 32) & 0xFFFF_FFFF
    state *= -4417276706812531889
    return state ^ ((state >> 29) & 0x7_FFFF_FFFF)
