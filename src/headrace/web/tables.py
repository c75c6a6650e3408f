"""Tables: what the pipeline has published, read beside whoever writes it.

A directory of `headrace sync` holds a history with a vector: where every vbucket stood when the
newest turn was published. It is read here and nothing is written. Reading needs the package
deltalake, which comes with ``headrace[spark]``: it is loaded when tables are first asked for.

Imports: errors, spark.tables (when asked).
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.spark.tables.changes import Published
    from headrace.web.picture import Json

TABLES_MAX: Final = 32
READ_SECONDS_MIN: Final = 2.0
"""A table's log is not read more often than this, however many pages ask."""
CHANGES: Final = "changes"
INSTALL: Final = "Reading tables needs the package deltalake: pip install 'headrace[spark]'."


class Tables:
    """The tables under some directories."""

    def __init__(self, directories: tuple[Path, ...]) -> None:
        """Nothing is read yet."""
        self._directories = directories[:TABLES_MAX]
        self._told: Json | None = None
        self._told_at = 0.0
        self._lock = asyncio.Lock()

    async def read(self) -> Json:
        """Every table with its version, turn and vector; what cannot be read says why."""
        if not self._directories:
            return {"tables": [], "given": False}
        async with self._lock:
            if self._told is None or time.monotonic() - self._told_at >= READ_SECONDS_MIN:
                self._told = await asyncio.to_thread(self._read)
                self._told_at = time.monotonic()
            return self._told

    def _read(self) -> Json:
        try:
            import deltalake
        except ImportError:
            return {"tables": [], "given": True, "error": INSTALL}
        del deltalake
        return {"tables": [_table(one) for one in self._directories], "given": True}


def _table(directory: Path) -> Json:
    from headrace.spark.tables.changes import ChangesTable

    told: Json = {"path": str(directory), "name": directory.name}
    try:
        table = ChangesTable(directory / CHANGES)
        if not table.table.exists:
            return told | {"error": "no table is here yet"}
        shape, published = table.shape(), table.published()
        rows = sum(file.rows for file in table.row_files())
    except HeadraceError as error:
        return told | {"error": str(error)}
    except Exception as error:  # noqa: BLE001 - of delta-rs and the disk: told on the page
        return told | {"error": f"cannot be read: {error}"}
    return told | {
        "version": published.version,
        "turn": published.turn,
        "rows": rows,
        "vbuckets": shape.vbuckets,
        "vector": _vector(published, shape.vbuckets),
    }


def _vector(published: Published, vbuckets: int) -> list[int]:
    """The published seqno of each vbucket."""
    seqnos = [0] * vbuckets
    for vbucket, position in published.vector.items():
        if 0 <= vbucket < vbuckets:
            seqnos[vbucket] = int(position.seqno)
    return seqnos
