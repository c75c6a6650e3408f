"""headrace replay: play a recorded conversation back, as the node or as the consumer.

As the node (default): listen, and answer any consumer with what the recorded node said. As the
consumer (``--to URL``): log in to a node, say what the recorded client said after its own login,
and tell where the answers differ from the recorded ones.

Imports: capture, cli.bars, cli.connecting, client, wire.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click

from headrace.cli.bars import bar
from headrace.cli.texts import status_name
from headrace.errors import CaptureError, StatusError

if TYPE_CHECKING:
    from headrace.capture.walk import Item
    from headrace.client.kv import KvConnection
    from headrace.wire.dialect import Dialect
    from headrace.wire.frame import Frame

DIFFERENT: Final = 3
"""Exit code when answers differed."""
DIFFERENCES_SHOWN: Final = 50


@click.command("replay")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--listen", type=click.IntRange(0, 65535), default=0, help="Port; 0: any free one.")
@click.option("--to", "url", help="Be the consumer: say it to this node.")
@click.option("--user", help="Who logs in there (password: $HEADRACE_PASSWORD).")
@click.option(
    "--connection", type=int, help="Which connection of the file; the first that streams."
)
@click.option(
    "--dialect",
    "dialect_name",
    default="dcp-7",
    show_default=True,
    help="The generation of the protocol that is spoken in FILE.",
)
@click.option("--port-file", type=click.Path(dir_okay=False), help="Write the port here.")
@click.pass_context
def command(context: click.Context, /, **options: Any) -> None:  # noqa: ANN401 - click's own words
    """Play the conversation in FILE back: as the node, or with --to as the consumer."""
    from headrace.wire.dialect import Dialect

    dialect = Dialect.named(options["dialect_name"])
    if options["url"] is None:
        _be_node(options, dialect)
        return
    differences = be_consumer(
        options["file"], options["url"], options["user"], dialect, options["connection"]
    )
    for one in differences[:DIFFERENCES_SHOWN]:
        click.echo(str(one))
    click.echo(f"{len(differences)} answers differ")
    if differences:
        context.exit(DIFFERENT)


def _be_node(options: dict[str, Any], dialect: Dialect) -> None:
    from pathlib import Path

    from headrace.cli.recorded_node import RecordedNode, read_recording

    recording = read_recording(options["file"], dialect, connection=options["connection"])
    with RecordedNode(recording, port=options["listen"]) as node:
        click.echo(
            f"playing {len(recording.streams)} streams of {options['file']} at "
            f"couchbase://127.0.0.1:{node.port}/default"
        )
        if options["port_file"]:
            Path(options["port_file"]).write_text(f"{node.port}\n", encoding="utf-8")
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            click.echo("stopped", err=True)


@dataclass(frozen=True, slots=True)
class Difference:
    """A request whose live answer is not the recorded one."""

    number: int
    request: str
    vbucket: int
    recorded: int
    live: int

    def __str__(self) -> str:
        """As a line."""
        return (
            f"request {self.number} {self.request} of vbucket {self.vbucket}: recorded "
            f"{status_name(self.recorded)}, live {status_name(self.live)}"
        )


def be_consumer(
    path: str, url: str, user: str | None, dialect: Dialect, connection: int | None = None
) -> list[Difference]:
    """Say the recorded requests to a node and compare the statuses of its answers."""
    from headrace.cli.connecting import connected

    exchanges = _exchanges(path, dialect, connection)
    with (
        connected(
            url=url,
            user=user,
            password_file=None,
            bucket=None,
            trust=None,
            certificate=None,
            key=None,
            no_verify=False,
            connect_seconds=None,
            dialect=None,
        ) as bucket,
        bucket.kv(bucket.cluster_map.nodes[0]) as link,
    ):
        return _say(link, exchanges)


def _say(link: KvConnection, exchanges: list[tuple[Frame, int]]) -> list[Difference]:
    found = []
    with bar("asking", total=len(exchanges), unit="requests") as shown:
        for number, (frame, recorded) in enumerate(exchanges, 1):
            try:
                live = link.ask_raw(frame)
            except StatusError as error:
                live = error.status
            if live != recorded:
                found.append(Difference(number, frame.name, frame.vbucket, recorded, live))
            shown.advance()
    return found


def _exchanges(path: str, dialect: Dialect, connection: int | None) -> list[tuple[Frame, int]]:
    """The recorded client's requests after its login, each with the status it got."""
    from headrace.capture.conversation import Direction
    from headrace.capture.source import open_source
    from headrace.capture.walk import walk
    from headrace.wire.opcodes import Opcode

    with open_source(path) as source:
        by_connection: dict[int, list[Item]] = {}
        for item in walk(source, dialect, strict=False):
            by_connection.setdefault(item.connection.number, []).append(item)
    wanted = [connection] if connection is not None else list(by_connection)
    login = {
        Opcode.SASL_LIST_MECHS,
        Opcode.SASL_AUTH,
        Opcode.SASL_STEP,
        Opcode.SELECT_BUCKET,
        Opcode.GET_CLUSTER_CONFIG,
    }
    for number in wanted:
        items = by_connection.get(number, [])
        asked: dict[tuple[int, int], Frame] = {}
        found: list[tuple[Frame, int]] = []
        for item in items:
            frame = item.frame
            if frame is None or frame.opcode in login:
                continue
            key = (frame.opcode, frame.opaque)
            if item.direction is Direction.CLIENT_TO_SERVER and not frame.is_reply:
                asked[key] = frame
            elif frame.is_reply and key in asked:
                found.append((asked.pop(key), frame.status))
        if any(frame.opcode == Opcode.OPEN for frame, _ in found) or connection is not None:
            return found
    raise CaptureError(f"{path} holds no consumer's connection: none opens a change stream")
