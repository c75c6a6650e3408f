"""The limits of the values handed out are those of what holds them."""

from __future__ import annotations

import numpy as np

from headrace.store import model
from headrace.wire import values


def test_limits_fit_their_places() -> None:
    assert np.iinfo(np.int64).max == model.SEQNO_LIMIT
    assert model.KEY_SIZE_MAX == 0xFF, "the key heap keeps a length in one byte"
    assert model.VALUE_SIZE_MAX == values.VALUE_SIZE_MAX
