"""Documents for `headrace load`: rows of files, or made up by a seeded generator.

Rules
- A key is the row's field or a form with fields in braces; a row that lacks one is an error that
  names the row.
- Files are read piece by piece: a file may be larger than memory.
- The generator gives the same documents for the same seed. With skew s key number k is chosen with
  weight 1/(k+1)**s. A key's first write is never a deletion, so that there is something to delete.

Imports: client.writer, errors.
"""

from __future__ import annotations

import bisect
import csv
import itertools
import json
import random
import string
from typing import TYPE_CHECKING, Final

from headrace.client.writer import Document
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    Row = dict[str, object]

SUFFIXES: Final = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
}
PARQUET_ROWS: Final = 10_000
SKEWED_KEYS_MAX: Final = 10_000_000


def read_documents(
    path: Path, kind: str | None, key_form: str | None, *, expiry: int = 0
) -> tuple[Iterator[Document], int | None]:
    """The documents of a file, and how many there are where the file tells."""
    found = kind or SUFFIXES.get(path.suffix.lower())
    if found is None:
        raise ConfigError(
            f"{path} has the suffix {path.suffix!r}; allowed: {', '.join(SUFFIXES)}, or --format"
        )
    total = None
    if found == "parquet":
        import pyarrow.parquet as pq

        total = int(pq.ParquetFile(path).metadata.num_rows)
    rows = READERS[found](path)
    return _documents(rows, path, key_form, expiry), total


def _json_rows(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8") as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ConfigError(f"{path} line {number} is no JSON: {error}") from error
            if not isinstance(row, dict):
                raise ConfigError(f"{path} line {number} is no JSON object")
            yield row


def _csv_rows(path: Path) -> Iterator[Row]:
    with path.open(encoding="utf-8", newline="") as stream:
        for number, row in enumerate(csv.DictReader(stream), 2):
            if None in row or None in row.values():
                raise ConfigError(f"{path} line {number} has not as many fields as the header")
            yield dict(row)


def _parquet_rows(path: Path) -> Iterator[Row]:
    import pyarrow.parquet as pq

    for batch in pq.ParquetFile(path).iter_batches(PARQUET_ROWS):
        yield from batch.to_pylist()


READERS: Final[dict[str, Callable[[Path], Iterator[Row]]]] = {
    "jsonl": _json_rows,
    "csv": _csv_rows,
    "parquet": _parquet_rows,
}


def _documents(
    rows: Iterator[Row], path: Path, key_form: str | None, expiry: int
) -> Iterator[Document]:
    form = key_form if key_form is None or "{" in key_form else "{" + key_form + "}"
    for number, row in enumerate(rows, 1):
        key = f"{path.stem}-{number}" if form is None else _key(form, row, path, number)
        value = json.dumps(row, ensure_ascii=False, separators=(",", ":"), default=_json_default)
        yield Document(key.encode(), value.encode(), expiry=expiry, is_json=True)


def _key(form: str, row: Row, path: Path, number: int) -> str:
    parts = []
    for text, name, _, _ in string.Formatter().parse(form):
        parts.append(text)
        if name is not None:
            if name not in row:
                raise ConfigError(
                    f"{path} row {number} has no field {name!r} for its key; it has: "
                    f"{', '.join(map(str, row))}"
                )
            parts.append(str(row[name]))
    return "".join(parts)


def _json_default(value: object) -> object:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return str(value)


def generated(
    count: int,
    *,
    keys: int,
    size: int = 256,
    skew: float = 0.0,
    deletes: float = 0.0,
    expiring: float = 0.0,
    expiry: int = 0,
    prefix: str = "doc-",
    seed: int = 1,
) -> Iterator[Document]:
    """``count`` writes over ``keys`` keys; every key once, in order, when the two are equal."""
    if expiring and not expiry:
        raise ConfigError("--expiring needs --expiry, the seconds until a document expires")
    chance = random.Random(seed)  # noqa: S311 - repeatable documents, no secret
    choose = _chooser(chance, keys, skew)
    living: set[int] = set()
    for number in range(count):
        index = number if number < keys and count >= keys and not skew else choose()
        key = f"{prefix}{index:010d}".encode()
        if index in living and chance.random() < deletes:
            living.discard(index)
            yield Document(key, None)
            continue
        if deletes:
            living.add(index)
        seconds = expiry if expiring and chance.random() < expiring else 0
        yield Document(key, _value(index, number, size), expiry=seconds, is_json=True)


def _chooser(chance: random.Random, keys: int, skew: float) -> Callable[[], int]:
    if not skew:
        return lambda: chance.randrange(keys)
    if keys > SKEWED_KEYS_MAX:
        raise ConfigError(f"--skew over {keys} keys, limit {SKEWED_KEYS_MAX}")
    weights = list(itertools.accumulate(1 / (index + 1) ** skew for index in range(keys)))
    return lambda: bisect.bisect_left(weights, chance.random() * weights[-1])


def _value(index: int, number: int, size: int) -> bytes:
    head = b'{"key":%d,"write":%d,"fill":"' % (index, number)
    return head + b"x" * max(0, size - len(head) - 2) + b'"}'
