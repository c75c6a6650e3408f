"""Pictures made by hand."""

from __future__ import annotations

from headrace.web.picture import ConnectionView, Picture, empty_columns


def picture(
    taken: float = 0.0,
    *,
    highs: tuple[int, ...] = (0, 0, 0, 0),
    branches: tuple[str, ...] | None = None,
    connections: tuple[ConnectionView, ...] = (),
    **columns: tuple[int, ...],
) -> Picture:
    """Active vbuckets with these high seqnos; other columns by name."""
    filled = empty_columns(len(highs))
    filled["state"] = [1] * len(highs)
    filled["high"] = list(highs)
    for name, values in columns.items():
        filled[name] = list(values)
    return Picture(
        taken=taken,
        time=1_000_000.0 + taken,
        columns=filled,
        branches=list(branches or ("aa",) * len(highs)),
        connections=connections,
    )
