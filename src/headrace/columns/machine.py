"""Memory as the kernels see it: addresses and 64-bit integers, through LLVM.

A load or store here is one machine instruction, a copy is what the C library does best; numba's own
arrays would check, convert and index instead, at five to seven times the cost. Everything is a
signed 64-bit integer, also the bits of an unsigned field: numba turns a mix of signed and unsigned
into floating point.

Nothing here checks a bound. Whoever calls has checked.

Imports: nothing of ours.
"""
# ruff: noqa: ANN001, ANN202 - the callbacks are called by numba alone, with its own objects
# mypy: disable-error-code="no-untyped-def, misc"

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """Compile when first called; part of the code that calls it."""
    return cast("Function", njit(nogil=True, error_model="numpy")(function))


def inlined(function: Function) -> Function:
    """Compile into the place of every call."""
    return cast("Function", njit(nogil=True, error_model="numpy", forceinline=True)(function))


def _load(bits: int, *, big_endian: bool) -> Callable[[int], int]:
    """Return a function that reads an unsigned number at an address."""

    @intrinsic
    def load(_typing, _address):
        def codegen(_context, builder, _signature, arguments):
            number = ir.IntType(bits)
            pointer = builder.inttoptr(arguments[0], number.as_pointer())
            value = builder.load(pointer, align=1)
            if big_endian:
                value = builder.bswap(value)
            return value if bits == 64 else builder.zext(value, ir.IntType(64))

        return types.int64(types.int64), codegen

    return cast("Callable[[int], int]", load)


def _store(bits: int) -> Callable[[int, int], None]:
    """Return a function that writes the low bits of a number at an address."""

    @intrinsic
    def store(_typing, _address, _number):
        def codegen(context, builder, _signature, arguments):
            number = ir.IntType(bits)
            pointer = builder.inttoptr(arguments[0], number.as_pointer())
            value = arguments[1] if bits == 64 else builder.trunc(arguments[1], number)
            builder.store(value, pointer, align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), codegen

    return cast("Callable[[int, int], None]", store)


def _move(size: int) -> Callable[[int, int], None]:
    """Return a function that copies ``size`` bytes as one vector."""

    @intrinsic
    def move(_typing, _target, _source):
        def codegen(context, builder, _signature, arguments):
            vector = ir.VectorType(ir.IntType(8), size).as_pointer()
            value = builder.load(builder.inttoptr(arguments[1], vector), align=1)
            builder.store(value, builder.inttoptr(arguments[0], vector), align=1)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64), codegen

    return cast("Callable[[int, int], None]", move)


@intrinsic
def _copy_intrinsic(_typing, _target, _source, _size):
    def codegen(context, builder, _signature, arguments):
        byte = ir.IntType(8).as_pointer()
        target, source = (builder.inttoptr(address, byte) for address in arguments[:2])
        cgutils.raw_memcpy(builder, target, source, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def _zero_intrinsic(_typing, _target, _size):
    def codegen(context, builder, _signature, arguments):
        target = builder.inttoptr(arguments[0], ir.IntType(8).as_pointer())
        cgutils.memset(builder, target, arguments[1], 0)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), codegen


def _prefetch(*, to_write: bool) -> Callable[[int], None]:
    """Return a function that asks for a cache line; any address will do, also one of nothing."""

    @intrinsic
    def prefetch(_typing, _address):
        def codegen(context, builder, _signature, arguments):
            byte, word = ir.IntType(8).as_pointer(), ir.IntType(32)
            kind = ir.FunctionType(ir.VoidType(), [byte, word, word, word])
            fetch = builder.module.declare_intrinsic("llvm.prefetch", [byte], kind)
            # Read or write, keep as long as possible, data.
            hints = [ir.Constant(word, number) for number in (int(to_write), 3, 1)]
            builder.call(fetch, [builder.inttoptr(arguments[0], byte), *hints])
            return context.get_dummy_value()

        return types.void(types.int64), codegen

    return cast("Callable[[int], None]", prefetch)


@intrinsic
def _receive_intrinsic(_typing, _function, _socket, _target, _size):
    def codegen(_context, builder, _signature, arguments):
        byte, word, number = ir.IntType(8).as_pointer(), ir.IntType(32), ir.IntType(64)
        kind = ir.FunctionType(number, [word, byte, number, word])
        function = builder.inttoptr(arguments[0], kind.as_pointer())
        descriptor = builder.trunc(arguments[1], word)
        target = builder.inttoptr(arguments[2], byte)
        return builder.call(function, [descriptor, target, arguments[3], ir.Constant(word, 0)])

    return types.int64(types.int64, types.int64, types.int64, types.int64), codegen


@intrinsic
def _error_intrinsic(_typing, _function):
    def codegen(_context, builder, _signature, arguments):
        word = ir.IntType(32)
        kind = ir.FunctionType(word.as_pointer(), [])
        function = builder.inttoptr(arguments[0], kind.as_pointer())
        return builder.zext(builder.load(builder.call(function, [])), ir.IntType(64))

    return types.int64(types.int64), codegen


error_number = cast("Callable[[int], int]", _error_intrinsic)
"""The C library's ``errno`` of this thread, by the address of the function that tells its place."""
receive = cast("Callable[[int, int, int, int], int]", _receive_intrinsic)
"""The C library's ``recv`` at an address: of a socket, to a place, so many bytes, no flags."""
prefetch, prefetch_to_write = _prefetch(to_write=False), _prefetch(to_write=True)
copy = cast("Callable[[int, int, int], None]", _copy_intrinsic)
zero = cast("Callable[[int, int], None]", _zero_intrinsic)
wire8 = _load(8, big_endian=False)
wire16 = _load(16, big_endian=True)
wire32 = _load(32, big_endian=True)
wire64 = _load(64, big_endian=True)
host16 = _load(16, big_endian=False)
host32 = _load(32, big_endian=False)
host64 = _load(64, big_endian=False)
store8, store16, store32, store64 = _store(8), _store(16), _store(32), _store(64)
move32, move64 = _move(32), _move(64)
