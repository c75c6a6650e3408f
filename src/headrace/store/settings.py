"""What a bucket's owner can choose, with its limits; stored with the bucket.

Imports: errors.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Final

from headrace.errors import ConfigError

MIB: Final = 1024 * 1024
GIB: Final = 1024 * MIB
VBUCKETS_MAX: Final = 1024

_RANGES: Final[dict[str, tuple[int, int]]] = {
    "vbuckets": (1, VBUCKETS_MAX),
    "memory_quota": (1 * MIB, 1024 * GIB),
    "segment_bytes": (64 * 1024, 64 * MIB),
    "journal_bytes_max": (64 * 1024, 4 * GIB),
    "block_bytes": (4 * 1024, 16 * MIB),
    "map_bytes_max": (1 * MIB, 16 * 1024 * GIB),
    "checkpoint_items_max": (1, 10_000_000),
    "checkpoint_bytes_max": (1, 4 * GIB),
    "checkpoint_seconds_max": (1, 86_400),
    "rewind_seqnos": (0, 2**31),
    "purge_age_seconds": (0, 10 * 365 * 86_400),
    "history_bytes": (0, 1024 * GIB),
    "history_seconds": (0, 10 * 365 * 86_400),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketSettings:
    """The choices of one bucket; every number is checked against its range.

    ``memory_quota`` bounds arena, key index, block rows and buffers. ``rewind_seqnos`` is how many
    of its last seqnos a vbucket can always be failed over or rolled back to without starting at 0:
    superseded frames younger than that are kept. ``history_bytes`` and ``history_seconds`` retain
    all versions for change streams (0 and 0: no retention); either limit alone ends it.
    """

    vbuckets: int = 64
    memory_quota: int = 256 * MIB
    segment_bytes: int = 4 * MIB
    journal_bytes_max: int = 48 * MIB
    block_bytes: int = 512 * 1024
    map_bytes_max: int = 256 * GIB
    checkpoint_items_max: int = 10_000
    checkpoint_bytes_max: int = 16 * MIB
    checkpoint_seconds_max: int = 1_800
    rewind_seqnos: int = 1_000
    purge_age_seconds: int = 3 * 86_400
    history_bytes: int = 0
    history_seconds: int = 0

    def __post_init__(self) -> None:
        """Refuse a number outside its range."""
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if not isinstance(value, int) or not low <= value <= high:
                raise ConfigError(f"bucket setting {name} is {value!r}, allowed {low}..{high}")

    @property
    def keeps_history(self) -> bool:
        """Whether superseded versions are retained for change streams."""
        return self.history_bytes > 0 or self.history_seconds > 0

    def to_json(self) -> dict[str, int]:
        """The settings as a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, int]) -> BucketSettings:
        """The settings of a JSON object; names this release does not know are left out."""
        known = {field.name for field in fields(cls)}
        return cls(**{name: number for name, number in value.items() if name in known})
