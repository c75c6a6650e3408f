"""Code of the kernels: compiled once by numba, kept as object code, loaded by LLVM alone.

Loading numba takes half a second and a hundred megabytes, and all it would do in most processes is
to find code that an earlier one has compiled. So we keep the object code ourselves: a process that
finds it loads llvmlite, which takes a tenth of a second, and numba only where nothing fits.

Rules
- The name of what is kept ends in a checksum of everything that went into it: the sources of
  `columns` and of `wire`, the numbers that this process has loaded from them (a package may be
  replaced under a running process), the versions of the packages that shape the code, the
  processor. A file begins with a checksum of itself: one that was cut short is not loaded.
- Places, in this order: NUMBA_CACHE_DIR if it is set, else ``__pycache__`` beside this file, else
  the user's directory for caches. Where none can be written every process compiles.
- Making object code takes parts of numba that it does not promise to keep: how a function is
  compiled without wrappers, and how such a function is called. Where they are missing or different
  the kernel is numba's own function instead, compiled in every process: slower to start, the same
  otherwise. The log says so once.
- A kernel takes and returns 64-bit integers, refers to nothing outside of itself but the C library,
  and raises nothing. It is called without the interpreter's lock.

Imports: columns.block, columns.forms, columns.table; what has to be compiled, when it has to be.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import tempfile
from contextlib import suppress
from enum import IntEnum
from functools import cache
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import llvmlite
import llvmlite.binding as llvm
import pyarrow as pa

from headrace.columns import block, forms, table

if TYPE_CHECKING:
    from collections.abc import Callable

HERE: Final = Path(__file__).resolve().parent
SOURCES: Final = (HERE, HERE.parent / "wire")
"""Directories whose files say what a kernel does."""
DIGEST_SIZE: Final = 32
OPTIMIZATION: Final = 3
_INTRINSIC: Final = "llvm."
_OWN_ARGUMENTS: Final = 2
"""Arguments of numba's convention before those of the function: result and error."""
_LOG: Final = logging.getLogger(__name__)


class _Unfit(Exception):
    """What numba made cannot be kept, or not called as it would be."""


# What a numba or llvmlite with other insides than we know may raise.
_MISSING: Final = (ImportError, AttributeError, TypeError, RuntimeError, _Unfit)


@cache
def code_of(module: str, function: str, arguments: int) -> Callable[..., int]:
    """The kernel that a function of a module of `columns` is, of so many arguments."""
    checksum = _checksum()
    name = f"{module.rpartition('.')[2]}.{function}"
    kept = None if checksum is None else _find(f"{name}-{checksum}.o")
    try:
        if kept is None:
            kept = _compiled(module, function, arguments)
            if checksum is not None:
                _keep(name, checksum, kept)
        return _loaded(kept, arguments)
    except _MISSING as error:
        _LOG.warning("%s is compiled in every process: %s", name, error)
        return _plain(module, function, arguments)


def kept_in() -> Path | None:
    """The directory in which code is kept, None where it cannot be."""
    return next((place for place in _places() if _is_writable(place)), None)


def _places() -> list[Path]:
    chosen = os.environ.get("NUMBA_CACHE_DIR")
    if chosen:
        return [Path(chosen)]
    own = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return [HERE / "__pycache__", Path(own) / "headrace"]


def _is_writable(place: Path) -> bool:
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(place, os.W_OK)


@cache
def _checksum() -> str | None:
    """Of everything that shapes the code; None where the sources cannot be read."""
    features = llvm.get_host_cpu_features().flatten()
    versions = (llvmlite.__version__, metadata.version("numba"), pa.__version__)
    told = (*versions, llvm.get_default_triple(), llvm.get_host_cpu_name(), features)
    found = hashlib.sha256(repr((told, _numbers())).encode())
    try:
        for path in sorted(path for place in SOURCES for path in place.glob("*.py")):
            found.update(path.name.encode() + path.read_bytes())
    except OSError:
        return None
    return found.hexdigest()[:16]


def _numbers() -> list[tuple[str, object]]:
    """The numbers that Python and the kernels share, as this process has them."""
    found: list[tuple[str, object]] = []
    for module in (block, forms, table):
        for name, value in vars(module).items():
            if isinstance(value, int):
                found.append((name, int(value)))
            elif isinstance(value, type) and issubclass(value, IntEnum):
                found.append((name, [(one.name, one.value) for one in value]))
    return [*found, ("places", sorted(block.PLACES.items())), ("columns", block.DESCRIPTION)]


def _find(name: str) -> bytes | None:
    """What is kept under a name and is whole: the kernel's symbol, a zero, its object code."""
    for place in _places():
        with suppress(OSError):
            data = (place / name).read_bytes()
            if hashlib.sha256(data[DIGEST_SIZE:]).digest() == data[:DIGEST_SIZE]:
                return data[DIGEST_SIZE:]
    return None


def _keep(name: str, checksum: str, code: bytes) -> None:
    """Keep the code for other processes, in the place of what older sources gave."""
    place = kept_in()
    if place is None:
        return
    # What cannot be kept is compiled again by the next process.
    with suppress(OSError):
        for old in place.glob(f"{name}-*.o"):
            old.unlink(missing_ok=True)
        with tempfile.NamedTemporaryFile(dir=place, delete=False) as beside:
            beside.write(hashlib.sha256(code).digest() + code)
        Path(beside.name).replace(place / f"{name}-{checksum}.o")


def _machine() -> llvm.TargetMachine:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(),
        features=llvm.get_host_cpu_features().flatten(),
        opt=OPTIMIZATION,
        jit=True,
    )


def _compiled(module: str, function: str, arguments: int) -> bytes:
    """The kernel's symbol, a zero, its object code; loads numba."""
    from numba.core import compiler, types
    from numba.core.registry import cpu_target

    flags = compiler.Flags()
    flags.error_model = "numpy"
    flags.nrt = True
    # Nobody calls it with Python's objects; a wrapper would refer to numba itself.
    flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
    typing, target = cpu_target.typing_context, cpu_target.target_context
    typing.refresh()
    target.refresh()
    result = compiler.compile_extra(
        typing,
        target,
        getattr(import_module(module), function),
        (types.int64,) * arguments,
        types.int64,
        flags,
        {},
    )
    made = llvm.parse_assembly(result.library.get_llvm_str())
    foreign = [one.name for one in made.functions if one.is_declaration]
    if not all(name.startswith(_INTRINSIC) for name in foreign):
        raise _Unfit(f"its code needs {foreign}, allowed is nothing but LLVM's own")
    symbol: str = result.fndesc.llvm_func_name
    taken = len(list(made.get_function(symbol).arguments))
    if taken != _OWN_ARGUMENTS + arguments:
        raise _Unfit(f"its code takes {taken} arguments, known are {_OWN_ARGUMENTS} + {arguments}")
    code: bytes = _machine().emit_object(made)
    return symbol.encode() + b"\0" + code


def _plain(module: str, function: str, arguments: int) -> Callable[..., int]:
    """The kernel by numba's front door alone; loads numba and compiles."""
    from numba import njit, types

    signature = types.int64(*(types.int64,) * arguments)
    made = njit(signature, nogil=True, error_model="numpy")(
        getattr(import_module(module), function)
    )
    return cast("Callable[..., int]", made)


def _loaded(kept: bytes, arguments: int) -> Callable[..., int]:
    symbol, _, code = kept.partition(b"\0")
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    # As numba calls: where to put the result, where to put an error, then the arguments.
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    form = ctypes.CFUNCTYPE(ctypes.c_int, pointer, pointer, *([number] * arguments))
    native = form(engine.get_function_address(symbol.decode()))
    return _called(native, engine)


def _called(native: Any, engine: object) -> Callable[..., int]:  # noqa: ANN401 - ctypes has no type
    def call(*numbers: int, _code: object = engine) -> int:
        """Call the kernel; its code lives as long as this function."""
        result, error = ctypes.c_int64(), ctypes.c_void_p()
        status = native(ctypes.byref(result), ctypes.byref(error), *numbers)
        assert status == 0, status
        return result.value

    return call
