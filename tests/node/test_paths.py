"""Paths into JSON: every change beside what a parser and a printer would have made of it."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.node import paths
from headrace.node.refusal import Refusal
from headrace.wire.opcodes import Status

simple = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=5)
names = st.text(max_size=4)
values = st.recursive(
    simple,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=12,
)
objects = st.dictionaries(st.text(min_size=1, max_size=4), values, min_size=1, max_size=4)
indents = st.sampled_from([None, 0, 1, 4])


def quoted(name: str) -> bytes:
    return b"`" + name.replace("`", "``").encode() + b"`"


def all_paths(value: object, before: tuple[paths.Step, ...] = ()) -> list[tuple[paths.Step, ...]]:
    found = [before]
    if isinstance(value, dict):
        for name, inner in value.items():
            found += all_paths(inner, (*before, name))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            found += all_paths(inner, (*before, place))
    return found


def at(value: object, steps: tuple[paths.Step, ...]) -> object:
    for step in steps:
        value = value[step]  # type: ignore[index]
    return value


@given(objects, indents)
def test_every_path_of_a_document_is_found(document: dict[str, object], indent: int | None) -> None:
    text = json.dumps(document, indent=indent)
    for steps in all_paths(document):
        assert json.loads(paths.get(text, steps)) == at(document, steps)


@given(objects, indents, st.data())
def test_removing_is_what_del_would_do(
    document: dict[str, object], indent: int | None, data: st.DataObject
) -> None:
    text = json.dumps(document, indent=indent)
    steps = data.draw(st.sampled_from(all_paths(document)[1:]))
    changed = paths.remove(text, steps)
    del at(document, steps[:-1])[steps[-1]]  # type: ignore[attr-defined]
    assert json.loads(changed) == document
    assert list(json.loads(changed)) == list(document), "names keep their order"


@given(objects, indents, values, st.data())
def test_replacing_is_what_an_assignment_would_do(
    document: dict[str, object], indent: int | None, value: object, data: st.DataObject
) -> None:
    text = json.dumps(document, indent=indent)
    steps = data.draw(st.sampled_from(all_paths(document)[1:]))
    changed = paths.replace(text, steps, json.dumps(value).encode())
    at(document, steps[:-1])[steps[-1]] = value  # type: ignore[index]
    assert json.loads(changed) == document


@given(st.lists(simple, max_size=5), indents, simple, st.integers(0, 5))
def test_arrays_grow_as_lists_do(
    array: list[object], indent: int | None, value: object, place: int
) -> None:
    text = json.dumps({"a": array}, indent=indent)
    new = json.dumps(value).encode()
    steps = ("a",)
    last = json.loads(paths.push(text, steps, new, parents=False))["a"]
    first = json.loads(paths.push(text, steps, new, parents=False, first=True))["a"]
    assert (last, first) == ([*array, value], [value, *array])
    if place <= len(array):
        inserted = json.loads(paths.insert(text, ("a", place), new))["a"]
        assert inserted == [*array[:place], value, *array[place:]]


@given(st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=5))
def test_a_quoted_path_reads_as_it_was_written(names: list[str]) -> None:
    assert paths.parse_path(b".".join(quoted(name) for name in names)) == tuple(names)


@given(st.binary(max_size=40))
def test_any_bytes_are_a_path_or_refused(path: bytes) -> None:
    """Nothing but a refusal may come out."""
    with contextlib.suppress(Refusal):
        assert all(isinstance(step, str | int) for step in paths.parse_path(path))


@pytest.mark.parametrize(
    "path", [b".", b"a.", b".a", b"a[", b"a[x]", b"a[-2]", b"a[01]", b"`a", b"]"]
)
def test_malformed_paths_are_refused(path: bytes) -> None:
    with pytest.raises(Refusal) as caught:
        paths.parse_path(path)
    assert caught.value.status == Status.SUBDOC_PATH_EINVAL


def test_missing_parents_are_made_when_asked() -> None:
    made = paths.upsert("{}", ("a", "b", "c"), b"1", parents=True)
    assert made == '{"a":{"b":{"c":1}}}'
    with pytest.raises(Refusal):
        paths.upsert("{}", ("a", "b"), b"1", parents=False)


def test_a_document_may_not_grow_deeper_than_the_limit() -> None:
    deep = b"[" * 40 + b"]" * 40
    with pytest.raises(Refusal) as caught:
        paths.upsert("{}", ("a",), deep, parents=False)
    assert caught.value.status == Status.SUBDOC_VALUE_E2DEEP


@pytest.mark.parametrize(
    ("number", "delta", "status"),
    [
        (str(2**63 - 1), b"1", Status.SUBDOC_VALUE_CANTINSERT),
        (str(2**63), b"1", Status.SUBDOC_NUM_ERANGE),
        ("1.5", b"1", Status.SUBDOC_PATH_MISMATCH),
        ("1", b"x", Status.SUBDOC_DELTA_EINVAL),
        ("1", b"99999999999999999999", Status.SUBDOC_DELTA_EINVAL),
    ],
)
def test_counters_stay_inside_64_bits(number: str, delta: bytes, status: Status) -> None:
    with pytest.raises(Refusal) as caught:
        paths.counter(f'{{"n":{number}}}', ("n",), delta, parents=False)
    assert caught.value.status == status
