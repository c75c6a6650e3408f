"""Dialects by name and by era."""

from __future__ import annotations

import pytest

from headrace.errors import ConfigError
from headrace.wire.dialect import ALL, Dialect, since, until


def test_every_dialect_is_found_by_its_name_and_has_an_era() -> None:
    for dialect in Dialect:
        assert Dialect.named(dialect.value) is dialect
        assert dialect.era


def test_an_unknown_name_is_answered_with_the_known_ones() -> None:
    with pytest.raises(
        ConfigError, match="'dcp-9' is unknown; allowed: upr-draft, upr-2014, dcp-3"
    ):
        Dialect.named("dcp-9")


def test_eras_are_in_order() -> None:
    assert since(Dialect.UPR_DRAFT) == ALL == until(Dialect.DCP_7)
    assert since(Dialect.DCP_5) == {Dialect.DCP_5, Dialect.DCP_7}
    assert until(Dialect.UPR_2014) == {Dialect.UPR_DRAFT, Dialect.UPR_2014}
