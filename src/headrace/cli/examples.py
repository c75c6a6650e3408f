"""Examples of every command, shown under its help.

One table, so that the whole family is seen at once and a command without examples is found by a
test. A key is the command as it is typed, without `headrace`; an example is a line to type and what
it does.

Imports: nothing of ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    import click

URL: Final = "couchbase://127.0.0.1/default"
CLUSTER: Final = "couchbases://db.example.org/travel"


class Example(NamedTuple):
    """A line to type, and what it does."""

    line: str
    does: str


def _examples(*pairs: tuple[str, str]) -> tuple[Example, ...]:
    return tuple(Example(line, does) for line, does in pairs)


EXAMPLES: Final[dict[str, tuple[Example, ...]]] = {
    "demo": _examples(
        ("headrace demo", "two minutes, tables and report in headrace-demo"),
        ("headrace demo --keep --port 11210", "goes on until Ctrl-C, to play with"),
        ("headrace demo --out build/demo --json", "for a script"),
    ),
    "doctor": _examples(
        ("headrace doctor", "check this installation"),
        ("headrace doctor --spark", "and start Spark to be sure"),
        (f"headrace doctor {CLUSTER} --user reader", "and a bucket: reach, TLS, login, dialect"),
    ),
    "completion": _examples(
        ('eval "$(headrace completion bash)"', "in ~/.bashrc"),
        ('eval "$(headrace completion zsh)"', "in ~/.zshrc, after compinit"),
        ("headrace completion fish > ~/.config/fish/completions/headrace.fish", "once"),
    ),
    "decode": _examples(
        ("headrace decode talk.pcap", "every frame of a capture, a line each"),
        ("headrace decode talk.pcap --opcode stream_req --bytes", "one kind, drawn byte by byte"),
        ("headrace decode talk.pcap --json > frames.jsonl", "for a script"),
    ),
    "serve": _examples(
        ("headrace serve --memory", "a node to try things with"),
        ("headrace serve --data data --bucket default --bucket orders", "one that remembers"),
        ("headrace serve --data data --admin-file admin.json", "one that fails on demand"),
    ),
    "fault": _examples(
        ("headrace fault list", "every lever and trigger"),
        ("headrace fault failover --vbucket 3 --lose 20", "lose the last 20 seqnos"),
        ("headrace fault --admin admin.json show vbuckets", "where the node stands"),
    ),
    "fault list": _examples(("headrace fault list --json", "levers and triggers, for a script")),
    "fault line": _examples(
        ("headrace fault line 'at vbucket 3 seqno 500: fail over losing 20'", "as a scenario does"),
    ),
    "fault show": _examples(
        ("headrace fault show connections", "who is connected, with streams"),
        ("headrace fault show vbuckets --json", "seqnos and failover logs, for a script"),
    ),
    "fault failover": _examples(
        ("headrace fault failover --vbucket 3 --lose 20", "lose the last 20 seqnos"),
        ("headrace fault failover --vbucket 3 --seqno 480", "begin a new branch after 480"),
    ),
    "fault rollback": _examples(
        ("headrace fault rollback --vbucket 7 --seqno 120", "send the next stream back to 120"),
    ),
    "fault purge": _examples(("headrace fault purge --vbucket 3", "drop its tombstones")),
    "fault set-state": _examples(
        ("headrace fault set-state --vbucket 3 --state dead", "take a vbucket away"),
    ),
    "fault drop-cursor": _examples(
        ("headrace fault drop-cursor --connection 'sync:*' --vbucket 3", "send it to the disk"),
    ),
    "fault pause": _examples(
        ("headrace fault pause --connection 'sync:*' --seconds 5", "stand still for 5 s"),
    ),
    "fault slow": _examples(
        ("headrace fault slow --connection 4 --rate 10000", "10,000 bytes a second"),
    ),
    "fault resume": _examples(("headrace fault resume --connection 4", "full speed again")),
    "fault cut": _examples(
        ("headrace fault cut --connection 'sync:*' --when 'after 2s'", "in two seconds"),
        ("headrace fault cut --connection 4 --middle", "in the middle of a frame"),
    ),
    "fault refuse": _examples(
        (
            "headrace fault refuse --opcode stream-request --status ETMPFAIL --count 3",
            "three times",
        ),
    ),
    "fault delay-commits": _examples(
        ("headrace fault delay-commits --seconds 0.5", "a slow disk"),
    ),
    "fault stop-persistence": _examples(
        ("headrace fault stop-persistence", "changes stay in memory alone"),
    ),
    "fault start-persistence": _examples(("headrace fault start-persistence", "to disk again")),
    "fault crash": _examples(
        ("headrace fault crash --when 'at commit 40'", "die after the 40th commit"),
    ),
    "fault clear": _examples(("headrace fault clear", "lift every fault that lasts")),
    "tail": _examples(
        (f"headrace tail {URL}", "what happens from now on"),
        (f"headrace tail {URL} --since beginning --until now --json", "everything, for a script"),
        (f"headrace tail {URL} --tokens my.tokens --parquet out", "go on where it ended"),
    ),
    "status": _examples(
        (f"headrace status {URL}", "a table that lives"),
        (f"headrace status {URL} --json", "once, for a script"),
    ),
    "watch": _examples((f"headrace watch {URL}", "a page in the browser that lives")),
    "load": _examples(
        (f"headrace load {URL} --generate 10000", "made-up documents"),
        (f"headrace load {URL} --generate 600000 --rate 10000", "for a minute"),
        (f"headrace load {URL} people.jsonl --key-field 'user::{{id}}'", "the lines of a file"),
    ),
    "replicate": _examples(
        ("headrace replicate cluster.toml", "as the file wants, until Ctrl-C"),
        ("headrace replicate cluster.toml --once", "until every replica has caught up"),
        ("headrace replicate cluster.toml a b --vbuckets 0-31", "these, from one node to another"),
    ),
    "move": _examples(
        ("headrace move cluster.toml --vbuckets 0-31 --from a --to b", "hand over 32 vbuckets"),
        ("headrace move cluster.toml --vbuckets all --to b --dry-run", "what would be done"),
        ("headrace move cluster.toml --resume", "finish what was interrupted"),
    ),
    "rebalance": _examples(
        ("headrace rebalance cluster.toml --dry-run", "the moves it takes"),
        ("headrace rebalance cluster.toml --at-once 8", "do them, eight at a time"),
    ),
    "failover": _examples(
        ("headrace failover cluster.toml a --dry-run", "who takes over, what may be lost"),
        ("headrace failover cluster.toml a", "do it"),
    ),
    "tokens": _examples(
        ("headrace tokens show my.tokens", "where a consumer stands"),
        ("headrace tokens diff before.tokens after.tokens", "what lies between two"),
    ),
    "tokens show": _examples(("headrace tokens show my.tokens --json", "for a script")),
    "tokens diff": _examples(
        ("headrace tokens diff before.tokens after.tokens", "what lies between two"),
    ),
    "tokens check": _examples(
        (f"headrace tokens check {URL} my.tokens", "would they be rolled back, and where to"),
    ),
    "tokens edit": _examples(
        ("headrace tokens edit my.tokens --vbucket 3 --beginning", "read one vbucket again"),
    ),
    "capture": _examples(
        (f"headrace capture {URL} talk.pcap", "the conversation that reads the whole bucket"),
        (f"headrace capture {URL} talk.pcap --listen 11300", "what clients of port 11300 say"),
    ),
    "replay": _examples(
        ("headrace replay talk.pcap --listen 11210", "be the node of the recording"),
        (f"headrace replay talk.pcap --to {URL}", "be its consumer"),
    ),
    "sync": _examples(
        (f"headrace sync {URL} tables", "bring the tables up to date, once"),
        (f"headrace sync {URL} tables --follow", "and keep them so"),
        (f"headrace sync {URL} tables --column total:double", "with a column from JSON"),
    ),
    "verify": _examples((f"headrace verify {URL} tables", "item by item; 1 if they differ")),
    "history": _examples(
        ("headrace history tables order::42", "a key's life, withdrawn versions too"),
        (f"headrace history {URL} order::42", "what the source still has"),
    ),
    "tables": _examples(
        ("headrace tables show tables", "what is there and where it stands"),
        ("headrace tables compact tables --dry-run", "what would be written anew"),
    ),
    "tables show": _examples(("headrace tables show tables --json", "for a script")),
    "tables compact": _examples(("headrace tables compact tables", "few files out of many")),
    "tables retain": _examples(
        ("headrace tables retain tables --days 30", "forget versions older than a month"),
    ),
    "tables vacuum": _examples(
        ("headrace tables vacuum tables --dry-run", "files that nobody needs any more"),
    ),
}


def epilog_of(path: str) -> str | None:
    """The examples of a command as its help shows them; None if it has none."""
    examples = EXAMPLES.get(path)
    if examples is None:
        return None
    lines = ["\b", "Examples:"]
    for one in examples:
        lines += [f"  {one.line}", f"      {one.does}"]
    return "\n".join(lines)


def with_examples(command: click.Command, path: str) -> click.Command:
    """The command, and those inside it, with examples under their help."""
    if command.epilog is None:
        command.epilog = epilog_of(path)
    for name, inner in getattr(command, "commands", {}).items():
        with_examples(inner, f"{path} {name}")
    return command
