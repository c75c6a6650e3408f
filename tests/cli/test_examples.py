"""Examples: under the help of the command they belong to, as they are to be typed."""

from __future__ import annotations

import click

from headrace.cli.examples import EXAMPLES, epilog_of, with_examples


def test_an_epilog_has_every_example_and_what_it_does() -> None:
    text = epilog_of("serve")
    assert text is not None
    for one in EXAMPLES["serve"]:
        assert f"  {one.line}\n      {one.does}" in text
    assert text.startswith("\b\n"), "click must not wrap what is to be typed"
    assert epilog_of("no such command") is None


def test_examples_begin_with_their_own_command() -> None:
    for path, examples in EXAMPLES.items():
        for one in examples:
            words = path.split()
            assert all(word in one.line.split() or f"{word}" in one.line for word in words), path
            assert len(one.line) <= 90, f"{one.line} does not fit a terminal"


def test_commands_inside_a_group_get_theirs_and_an_own_epilog_stays() -> None:
    group = click.Group("fault", commands={"list": click.Command("list")})
    kept = click.Command("serve", epilog="mine")
    assert with_examples(group, "fault") is group
    assert group.commands["list"].epilog == epilog_of("fault list")
    assert with_examples(kept, "serve").epilog == "mine"
