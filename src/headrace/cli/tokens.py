"""headrace tokens: show, compare, check and edit resume tokens.

``check`` puts every position to the source (nothing is streamed) and says in words whether it
would be rolled back, to where, and why; its exit code is 3 when something would be.

Imports: cli.bars, cli.connecting, client.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import click

from headrace.cli.bars import bar
from headrace.cli.connecting import connected, source_options, take_source
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from headrace.client.tokens import TokenSet

ROLLED_BACK: Final = 3
"""Exit code of a check that found a rollback."""

_FILE: Final = click.Path(exists=True, dir_okay=False)


@click.group("tokens")
def command() -> None:
    """Show, compare, check and edit resume tokens."""


@command.command("show")
@click.argument("file", type=_FILE)
@click.option("--json", "as_json", is_flag=True, help="As the file has them.")
@click.option("--vbucket", "vbuckets", type=int, multiple=True, help="Only these.")
def show(file: str, as_json: bool, vbuckets: tuple[int, ...]) -> None:
    """Show where a consumer stands."""
    tokens = _load(file)
    if as_json:
        click.echo(json.dumps(tokens.to_json(), indent=2))
        return
    listed = len(tokens.positions)
    click.echo(f"bucket {tokens.bucket} uuid {tokens.uuid or '-'}: {listed} of {tokens.vbuckets}")
    for vbucket in sorted(tokens.positions):
        if vbuckets and vbucket not in vbuckets:
            continue
        position = tokens.position(vbucket)
        token = position.token
        where = "" if token.is_boundary else f" inside {token.snapshot}"
        marks = " ".join(str(mark.seqno) for mark in position.boundaries.marks[-8:])
        click.echo(
            f"{vbucket:>5} {token.branch:016x} @ {token.seqno}{where}"
            f"  boundaries {marks or '-'}  log {token.log or '-'}"
        )


@command.command("diff")
@click.argument("old", type=_FILE)
@click.argument("new", type=_FILE)
def diff(old: str, new: str) -> None:
    """Say what changed from OLD to NEW."""
    before, after = _load(old), _load(new)
    if (before.bucket, before.uuid) != (after.bucket, after.uuid):
        click.echo(f"bucket {before.bucket} {before.uuid} -> {after.bucket} {after.uuid}")
    moved = 0
    for vbucket in sorted({*before.positions, *after.positions}):
        one, other = before.token(vbucket), after.token(vbucket)
        if one == other:
            continue
        moved += 1
        step = other.seqno - one.seqno
        branch = (
            ""
            if one.branch == other.branch
            else f"  branch {one.branch:016x} -> {other.branch:016x}"
        )
        back = "  BACK" if step < 0 else ""
        click.echo(f"{vbucket:>5} {one.seqno} -> {other.seqno} ({step:+}){branch}{back}")
    total = sum(after.seqno(v) - before.seqno(v) for v in {*before.positions, *after.positions})
    click.echo(f"{moved} vbuckets moved, {total:+} seqnos")


@command.command("check", short_help="Ask the source whether the tokens still hold.")
@source_options
@click.argument("file", type=_FILE)
@click.option("--all", "everything", is_flag=True, help="Also those that simply go on.")
@click.option("--json", "as_json", is_flag=True, help="JSON, for a script.")
@click.pass_context
def check(context: click.Context, /, **options: Any) -> None:  # noqa: ANN401 - click's own words
    """Ask the source whether the tokens would be rolled back, to where, and why."""
    from headrace.client.probe import check_tokens

    source = take_source(options)
    tokens = _load(options["file"])
    with connected(**source) as bucket, bar("asking the source"):
        verdicts = check_tokens(bucket, tokens)
    rolled = [one for one in verdicts if one.is_rollback]
    silent = [one for one in verdicts if one.lands_on is None]
    for one in verdicts:
        if options["as_json"]:
            click.echo(
                json.dumps(
                    {
                        "vbucket": one.vbucket,
                        "seqno": one.position.token.seqno,
                        "lands_on": one.lands_on,
                        "asked_back_to": one.asked_back_to,
                        "rollback": one.is_rollback,
                        "reason": one.reason,
                        "high_seqno": one.high_seqno,
                        "log": None if one.log is None else str(one.log),
                    }
                )
            )
        elif options["everything"] or one.is_rollback or one.lands_on is None:
            click.echo(str(one))
    if not options["as_json"]:
        fine = len(verdicts) - len(rolled) - len(silent)
        click.echo(f"{fine} go on, {len(rolled)} would be rolled back, {len(silent)} unanswered")
    if rolled or silent:
        context.exit(ROLLED_BACK)


@command.command("edit")
@click.argument("file", type=_FILE)
@click.option("--vbucket", "vbuckets", type=int, multiple=True, help="Of these; all if left out.")
@click.option("--to", type=int, metavar="SEQNO", help="Go back to the boundary at or below.")
@click.option("--beginning", is_flag=True, help="Start again from the beginning.")
@click.option("--out", type=click.Path(dir_okay=False), help="Write here instead.")
def edit(
    file: str, vbuckets: tuple[int, ...], to: int | None, beginning: bool, out: str | None
) -> None:
    """Move tokens back: to a boundary they hold, or to the beginning.

    Tokens are never moved forward: that would claim changes nobody has seen.
    """
    from headrace.client.tokens import TokenFile

    if (to is None) == (not beginning):
        raise ConfigError("give either --to SEQNO or --beginning")
    tokens = _load(file)
    unknown = [vbucket for vbucket in vbuckets if vbucket not in tokens.positions]
    if unknown:
        raise ConfigError(f"{file} has no tokens of vbucket {unknown[0]}")
    edited = _moved_back(tokens, vbuckets or tuple(sorted(tokens.positions)), to)
    TokenFile(out or file).save(edited)


def _moved_back(tokens: TokenSet, vbuckets: tuple[int, ...], to: int | None) -> TokenSet:
    from headrace.client.tokens import BEGINNING
    from headrace.history import Seqno
    from headrace.protocol.talk import Position

    for vbucket in vbuckets:
        position = tokens.position(vbucket)
        if to is None:
            tokens = tokens.updated({vbucket: BEGINNING})
            click.echo(f"{vbucket:>5} {position.token.seqno} -> 0")
            continue
        if to >= position.token.seqno:
            continue
        boundary = position.boundaries.greatest(Seqno(to))
        moved = Position(
            position.token.rolled_back(boundary), position.boundaries.rolled_back(boundary)
        )
        tokens = tokens.updated({vbucket: moved})
        click.echo(f"{vbucket:>5} {position.token.seqno} -> {boundary}")
    return tokens


def _load(path: str) -> TokenSet:
    from headrace.client.tokens import TokenFile

    tokens = TokenFile(path).load()
    assert tokens is not None, "click has seen the file"
    return tokens
