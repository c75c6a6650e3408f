"""`headrace decode`: the frames of a capture, a hex dump or a file, for people and for programs.

One pass: source -> walk -> filter -> view. A view is a table of lines, a drawing of bytes, JSON
lines, a summary or a Parquet file. Faults go to standard error with the bytes they are about;
decoding goes on behind them and the exit code is 1 at the end.

Imports: errors, wire, capture, cli.*; columns for --parquet, when asked.
"""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click

from headrace.capture.conversation import Direction
from headrace.capture.source import FORMATS, open_source
from headrace.capture.walk import Account, walk
from headrace.cli.faults import WAYS, fault_lines
from headrace.cli.follow import Follower
from headrace.cli.summary import Summary
from headrace.cli.table import Table, introduction
from headrace.errors import HeadraceError
from headrace.wire.dialect import Dialect
from headrace.wire.opcodes import Opcode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from click._termui_impl import ProgressBar

    from headrace.capture.source import Source
    from headrace.capture.walk import Item

PROGRESS_FROM_SIZE: Final = 8 << 20
_DIALECTS: Final = [dialect.value for dialect in Dialect]
_FROM: Final = {
    "client": Direction.CLIENT_TO_SERVER,
    "server": Direction.SERVER_TO_CLIENT,
}


class FaultsFound(HeadraceError):
    """The capture was read to its end, and some or all of it could not be understood."""


class OpcodeType(click.ParamType[int]):
    """An opcode by name (MUTATION, DCP_MUTATION, mutation) or number (0x57)."""

    name = "opcode"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Return the number."""
        text = str(value).upper().removeprefix("DCP_")
        if text in Opcode.__members__:
            return int(Opcode[text])
        try:
            number = int(text, 0)
        except ValueError:
            number = -1
        if 0 <= number <= 0xFF:
            return number
        close = [name for name in Opcode.__members__ if text[:4] in name]
        hint = f"; like it: {', '.join(close)}" if text and close else ""
        return self.fail(
            f"{value!r} is neither an opcode's name nor a number 0..255{hint}.", param, ctx
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which items are shown; an empty choice means all."""

    direction: Direction | None
    opcodes: frozenset[int]
    vbuckets: frozenset[int]
    connections: frozenset[int]

    def has(self, item: Item, follower: Follower) -> bool:
        """True when the item passes every filter; faults of framing pass those on messages."""
        if self.connections and item.connection.number not in self.connections:
            return False
        if self.direction not in (None, item.direction) and item.direction is not Direction.UNKNOWN:
            return False
        if item.frame is None:
            return True
        if self.opcodes and item.frame.opcode not in self.opcodes:
            return False
        return not self.vbuckets or follower.vbucket(item) in self.vbuckets


@click.command(name="decode")
@click.argument("file", metavar="FILE|-")
@click.option(
    "--format",
    "format_",
    type=click.Choice(FORMATS),
    default="auto",
    show_default=True,
    help="What FILE is; auto tells by its first bytes. pcap means pcapng too.",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    metavar="N",
    help="The server's port; connections without it are left out.",
)
@click.option(
    "--dialect",
    "dialect_name",
    type=click.Choice(_DIALECTS),
    default="dcp-7",
    show_default=True,
    help="The generation of the protocol that is spoken.",
)
@click.option(
    "--tolerant/--strict",
    default=False,
    show_default="strict",
    help="Read known slips of real peers and documents too, or only what the layouts say.",
)
@click.option("--direction", type=click.Choice(list(_FROM)), help="Only what this end sends.")
@click.option(
    "--opcode",
    "opcodes",
    type=OpcodeType(),
    multiple=True,
    metavar="NAME",
    help="Only this opcode, by name or number; can be repeated.",
)
@click.option(
    "--vbucket",
    "vbuckets",
    type=click.IntRange(0, 65535),
    multiple=True,
    metavar="N",
    help="Only this vbucket, with replies about it; can be repeated.",
)
@click.option(
    "--connection",
    "connections",
    type=click.IntRange(1),
    multiple=True,
    metavar="N",
    help="Only this connection, by its number in the table; can be repeated.",
)
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Stop after N frames.")
@click.option("--bytes", "view", flag_value="bytes", help="Draw every byte of each frame.")
@click.option(
    "--json",
    "view",
    flag_value="json",
    help='JSON lines; integers are plain, bytes are text or {"hex": ...}.',
)
@click.option("--summary", "view", flag_value="summary", help="Counts per opcode and direction.")
@click.option(
    "--parquet",
    type=click.Path(dir_okay=False, writable=True),
    metavar="OUT",
    help="Write the rows that a producer sent to a Parquet file.",
)
@click.pass_context
def command(
    ctx: click.Context,
    *,
    file: str,
    format_: str,
    port: int | None,
    dialect_name: str,
    tolerant: bool,
    direction: str | None,
    opcodes: tuple[int, ...],
    vbuckets: tuple[int, ...],
    connections: tuple[int, ...],
    limit: int | None,
    view: str | None,
    parquet: str | None,
) -> None:
    """Show the frames of FILE, or of standard input (-).

    FILE is a pcap or pcapng capture, a hex dump in any common form (also the drawings of protocol
    documents), or frames one behind the other. One line per frame is printed: -> is what the client
    sends, <- what the server sends.
    """
    if os.environ.get("NO_COLOR"):
        ctx.color = False
    if parquet is not None and view is not None:
        raise click.UsageError(f"--parquet and --{view} exclude each other.")
    dialect = Dialect.named(dialect_name)
    wanted = Wanted(
        direction=_FROM[direction] if direction else None,
        opcodes=frozenset(opcodes),
        vbuckets=frozenset(vbuckets),
        connections=frozenset(connections),
    )
    with open_source(file, format_, port) as source:
        run = _Run(source, dialect, wanted, strict=not tolerant, limit=limit)
        if parquet is not None:
            _write_parquet(run, parquet)
        else:
            _VIEWS[view](run)
        run.close()


class _Run:
    """One pass over a source: filters, counts, and tells faults on standard error."""

    def __init__(
        self, source: Source, dialect: Dialect, wanted: Wanted, *, strict: bool, limit: int | None
    ) -> None:
        self.source = source
        self.dialect = dialect
        self.follower = Follower()
        self._wanted = wanted
        self.strict = strict
        self._limit = limit
        self._account = Account()
        self._seen = 0
        self._frames = 0
        self._faults = 0

    def shown(self) -> Iterator[Item]:
        """Yield the items that are wanted, faults told on the way."""
        return (item for item, wanted in self.seen() if wanted)

    def seen(self) -> Iterator[tuple[Item, bool]]:
        """Yield every item and whether it is wanted, up to the limit of wanted ones."""
        items = walk(self.source, self.dialect, strict=self.strict, account=self._account)
        count = 0
        with _progress(self.source) as advance:
            for item in items:
                self.follower.see(item)
                self._seen += 1
                advance()
                if not self._wanted.has(item, self.follower):
                    yield item, False
                    continue
                self._frames += 1
                yield item, True
                if item.error is not None:
                    self._tell(item)
                count += 1
                if count == self._limit:
                    return

    def _tell(self, item: Item) -> None:
        self._faults += 1
        sys.stdout.flush()  # so that the fault stands behind its line where both reach a terminal
        for line in fault_lines(item, self.source.name, self.dialect, strict=self.strict):
            click.secho(line, err=True, fg="red")

    def close(self) -> None:
        """Tell what was left out; raise when something could not be understood."""
        for connection, why in self._account.other_protocols.items():
            click.echo(
                f"{introduction(connection)} speaks another protocol ({why}) and is left out",
                err=True,
            )
        for connection, size in self._account.bytes_before_first_frame.items():
            if size:
                click.echo(
                    f"{introduction(connection)} began before the capture: {size} bytes before "
                    "the first whole frame are left out",
                    err=True,
                )
        if self._faults:
            raise FaultsFound(
                f"{self._faults} of {self._frames} frames in {self.source.name} "
                "could not be read as they should"
            )
        if not self._seen:
            raise FaultsFound(f"{self.source.name} holds no frame")
        if not self._frames:
            click.echo(
                f"headrace: none of the {self._seen} frames in {self.source.name} is wanted",
                err=True,
            )


@contextmanager
def _progress(source: Source) -> Iterator[Callable[[], None]]:
    """A bar on the terminal while the output goes elsewhere; nothing for small files and pipes."""
    if sys.stdout.isatty() or not sys.stderr.isatty() or (source.size or 0) < PROGRESS_FROM_SIZE:
        yield lambda: None
        return
    bar: ProgressBar[int]
    with click.progressbar(length=source.size, file=sys.stderr, label=source.name) as bar:
        yield lambda: bar.update(source.position - bar.pos)


def _width() -> int | None:
    """The width to cut lines to: the terminal's, or $COLUMNS; None for a file or a pipe."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS"):
        return max(shutil.get_terminal_size().columns, 40)
    return None


def _show_table(run: _Run) -> None:
    timed = run.source.format == "pcap" or bool(run.source.tally.packets)
    table = Table(run.follower, run.dialect, timed=timed, width=_width())
    for item in run.shown():
        for line in table.lines(item):
            click.echo(line)


def _show_bytes(run: _Run) -> None:
    from headrace.cli.drawing import draw

    timed = run.source.format == "pcap"
    table = Table(run.follower, run.dialect, timed=timed, width=None)
    for item in run.shown():
        name = item.frame.name if item.frame else "(no frame)"
        where = [WAYS[item.direction]] if WAYS[item.direction] else []
        if item.connection.client is not None:
            where.insert(0, f"connection {item.connection.number}")
        if item.line is not None:
            where.append(f"line {item.line}")
        where.append(f"byte {item.offset}")
        where.append(f"{len(item.data)} bytes")
        click.secho(f"{name}  {', '.join(where)}", bold=True)
        if said := table.said(item):
            click.echo(f"  {said}")
        if item.frame is not None:
            for line in draw(item, run.dialect, run.follower.collections(item.connection)):
                click.echo(line)
        click.echo()


def _show_json(run: _Run) -> None:
    from headrace.cli.records import json_line

    for item in run.shown():
        click.echo(json_line(item, run.follower.vbucket(item)))


def _show_summary(run: _Run) -> None:
    summary = Summary()
    for item in run.shown():
        summary.count(item)
    for line in summary.lines():
        click.echo(line)


def _write_parquet(run: _Run, out: str) -> None:
    from headrace.cli.parquet import write_parquet  # pyarrow and numba: only when asked

    told = write_parquet(run.seen(), run.dialect, out, follower=run.follower, strict=run.strict)
    click.echo(told, err=True)


_VIEWS: Final[dict[str | None, Callable[[_Run], None]]] = {
    None: _show_table,
    "bytes": _show_bytes,
    "json": _show_json,
    "summary": _show_summary,
}
