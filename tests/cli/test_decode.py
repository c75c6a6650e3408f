"""`headrace decode`, and the `headrace` command around it, as a user meets them.

Golden files in tests/cli/golden hold whole outputs. After a change that is meant,
HEADRACE_REWRITE=1 writes them anew; a person reads the difference.
"""

from __future__ import annotations

import io
import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import click
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from headrace import __version__
from headrace.capture.conversation import Direction, Endpoint
from headrace.capture.source import open_source
from headrace.capture.writer import PcapWriter, Said, write_pcap
from headrace.cli import COMMANDS, main
from headrace.cli import decode as decode_module
from headrace.wire.codec import encode
from headrace.wire.dialect import Dialect
from headrace.wire.frame import BODY_SIZE_MAX, Frame
from headrace.wire.messages import Mutation, SnapshotMarker, StreamEnd

HERE: Final = Path(__file__).parent
CAPTURES: Final = HERE.parent / "captures"
SEEDS: Final = HERE.parent / "capture" / "seeds"
GOLDEN: Final = HERE / "golden"
SRC: Final = HERE.parents[1] / "src"

ROLLBACK: Final = str(CAPTURES / "04a_rollback_simple_665.pcap")
ERRORS: Final = str(CAPTURES / "06_errors_665.pcap")
BACK, THERE = Direction.SERVER_TO_CLIENT, Direction.CLIENT_TO_SERVER
MUTATION: Final = encode(Mutation(by_seqno=1, key=b"one", value=b"first"), Dialect.DCP_7)
END: Final = encode(StreamEnd(reason=0), Dialect.DCP_7)


def run(*arguments: str, stdin: bytes | None = None, columns: int | None = None) -> Result:
    environment = {"COLUMNS": str(columns) if columns else None, "NO_COLOR": None}
    return CliRunner().invoke(main, arguments, input=stdin, env=environment)


def decode(*arguments: str, stdin: bytes | None = None, columns: int | None = None) -> Result:
    return run("decode", *arguments, stdin=stdin, columns=columns)


def good(*arguments: str, stdin: bytes | None = None) -> list[str]:
    """The lines of a run in which nothing is wrong."""
    result = decode(*arguments, stdin=stdin)
    assert result.exit_code == 0, result.output
    assert result.exception is None
    return result.stdout.splitlines()


def bad(*arguments: str, stdin: bytes | None = None, code: int = 1) -> str:
    """What standard error says in a run that fails without a traceback."""
    result = decode(*arguments, stdin=stdin)
    assert result.exit_code == code, result.output
    assert isinstance(result.exception, SystemExit)
    return result.stderr


def frames_of(lines: list[str]) -> list[str]:
    """The opcodes of a table's lines."""
    return [match[1] for line in lines if (match := re.match(r"[ \d.-]+ (?:->|<-)  (\S+)", line))]


# Golden files.

GOLDENS: Final = {
    "rollback_120": (120, ["04a_rollback_simple_665.pcap", "--limit", "40"]),
    "rollback_80": (80, ["04a_rollback_simple_665.pcap", "--limit", "40"]),
    "collections_120": (120, ["12a_collections_live_665.pcap", "--connection", "2"]),
    "sync_writes_uncut": (None, ["13a_sync_live_665.pcap", "--connection", "2", "--limit", "40"]),
    "takeover_120": (120, ["17b_takeover_665.pcap", "--connection", "3"]),
    "sdk_120": (120, ["20_sdk_bootstrap_665.pcap"]),
    "stream_id_bytes": (
        None,
        [
            "14_stream_id_665.pcap",
            "--tolerant",
            "--bytes",
            "--opcode",
            "deletion",
            "--opcode",
            "snapshot_marker",
            "--limit",
            "6",
        ],
    ),
    "xattr_bytes": (
        None,
        [
            "10_xattr_665.pcap",
            "--bytes",
            "--opcode",
            "mutation",
            "--connection",
            "2",
            "--limit",
            "2",
        ],
    ),
    "snappy_bytes": (
        None,
        ["11_snappy_665.pcap", "--bytes", "--opcode", "mutation", "--limit", "1"],
    ),
    "stream_request_bytes": (
        None,
        ["03_resume_665.pcap", "--bytes", "--opcode", "stream_req", "--limit", "2"],
    ),
    "json": (None, ["12c_collections_live_filter_665.pcap", "--json"]),
    "summary": (None, ["17a_replication_665.pcap", "--summary"]),
}


@pytest.mark.parametrize("name", GOLDENS)
def test_the_output_is_the_golden_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    columns, arguments = GOLDENS[name]
    rewrite = os.environ.get("HEADRACE_REWRITE")
    monkeypatch.chdir(CAPTURES)
    result = decode(*arguments, columns=columns)
    assert result.exit_code == 0, result.output
    path = GOLDEN / f"{name}.txt"
    if rewrite:
        path.write_text(result.stdout, encoding="utf-8")
    assert result.stdout == path.read_text(encoding="utf-8")


def test_no_golden_file_is_left_over() -> None:
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(GOLDENS)


# The seeds.

SEED_DIALECTS: Final = {"000": "upr-2014", "001": "dcp-3", "002": "upr-draft", "003": "dcp-7"}


@pytest.mark.parametrize(("seed", "dialect"), SEED_DIALECTS.items())
@pytest.mark.parametrize("format", ["hex", "auto"])
def test_the_drawings_of_the_seeds_are_decoded_tolerantly(
    seed: str, dialect: str, format: str
) -> None:
    path = str(SEEDS / f"{seed}.txt")
    lines = good(path, "--tolerant", "--format", format, "--dialect", dialect)
    assert "SNAPSHOT_MARKER" in frames_of(lines)
    if seed == "002":
        assert len(frames_of(lines)) == 18
        assert lines[-5].endswith("seqno 4 hello = world (5 bytes) rev 1")
    if seed == "003":
        assert lines[-1].endswith("1..8 disk visible 8 completed 7")


@pytest.mark.parametrize("seed", ["000", "001", "003"])
def test_the_mistakes_of_the_seeds_are_refused_strictly_with_a_hint(seed: str) -> None:
    told = bad(str(SEEDS / f"{seed}.txt"), "--dialect", SEED_DIALECTS[seed])
    assert "SNAPSHOT_MARKER with framing extras, extras and key of" in told
    assert "(--tolerant reads it)" in told
    assert "could not be read as they should" in told


# Views.


def test_json_lines_hold_every_frame() -> None:
    found = [json.loads(line) for line in good(ROLLBACK, "--json")]
    assert len(found) == 55
    rollbacks = [each for each in found if each.get("status_name") == "ROLLBACK"]
    assert [each["fields"]["rollback_seqno"] for each in rollbacks] == [0, 12, 0, 0, 0]
    assert {each["vbucket"] for each in rollbacks} == {2}


def test_a_summary_counts_what_the_table_shows() -> None:
    counts = Counter(frames_of(good(ROLLBACK)))
    told = good(ROLLBACK, "--summary")
    lines = {line.split()[0]: line.split()[1:] for line in told[: told.index("")]}
    for name, count in counts.items():
        assert sum(int(cell) for cell in lines[name] if cell != "-") == count


def test_parquet_holds_the_rows(tmp_path: Path) -> None:
    out = tmp_path / "rows.parquet"
    result = decode(ROLLBACK, "--parquet", str(out))
    assert result.exit_code == 0, result.output
    assert result.stdout == ""
    assert result.stderr.startswith(f"24 rows in {out}, ")
    assert pq.read_table(out).num_rows == 24


def test_parquet_obeys_filters_and_keeps_snapshots(tmp_path: Path) -> None:
    out = tmp_path / "rows.parquet"
    path = str(CAPTURES / "01_backfill_665.pcap")
    assert decode(path, "--parquet", str(out), "--opcode", "deletion").exit_code == 0
    rows = pq.read_table(out).to_pylist()
    assert {row["event"] for row in rows} == {2}
    assert all(row["snapshot_end"] >= row["seqno"] for row in rows)


@pytest.mark.parametrize("view", ["--bytes", "--json", "--summary"])
def test_parquet_excludes_the_other_views(view: str, tmp_path: Path) -> None:
    told = bad(ROLLBACK, "--parquet", str(tmp_path / "x"), view, code=2)
    assert f"--parquet and {view} exclude each other" in told


def test_parquet_into_nowhere_is_refused(tmp_path: Path) -> None:
    told = bad(ROLLBACK, "--parquet", str(tmp_path / "no" / "x.parquet"))
    assert told.startswith("headrace: ")
    assert "cannot be written" in told


# Options, each with a good and a bad value.


def test_the_format_can_be_named() -> None:
    assert frames_of(good("-", "--format", "raw", stdin=MUTATION + END)) == [
        "MUTATION",
        "STREAM_END",
    ]
    assert "begins with 80 57 00 03, which is neither pcap" in bad(
        "-", "--format", "pcap", stdin=MUTATION
    )
    assert "'xml' is not one of 'auto', 'raw', 'hex', 'pcap'" in bad("-", "--format", "xml", code=2)


def test_the_port_chooses_connections_and_roles() -> None:
    path = str(CAPTURES / "17a_replication_665.pcap")
    source, target = good(path, "--port", "12266"), good(path, "--port", "12267")
    assert len(frames_of(source)) + len(frames_of(target)) == 212
    assert "holds no frame" in bad(path, "--port", "9")
    assert "99999 is not in the range" in bad(path, "--port", "99999", code=2)


def test_every_dialect_can_be_named_and_no_other() -> None:
    for dialect in Dialect:
        assert good("-", "--dialect", dialect.value, stdin=MUTATION)
    told = bad("-", "--dialect", "dcp-9", code=2)
    assert "'dcp-9' is not one of" in told
    assert all(dialect.value in told for dialect in Dialect)


def test_the_dialect_decides_what_a_marker_says() -> None:
    marker = encode(SnapshotMarker(start_seqno=0, end_seqno=8, flags=1), Dialect.DCP_3)
    assert good("-", "--dialect", "dcp-3", stdin=marker)[-1].endswith("0..8 memory")
    assert good("-", "--dialect", "upr-2014", stdin=marker)[-1].endswith("0..8 disk")


def test_the_direction_chooses_who_speaks() -> None:
    both = good(ROLLBACK)
    client = good(ROLLBACK, "--direction", "client")
    server = good(ROLLBACK, "--direction", "server")
    assert not any(" <-  " in line for line in client)
    assert not any(" ->  " in line for line in server)
    assert len(frames_of(client)) + len(frames_of(server)) == len(frames_of(both))
    assert "'sideways' is not one of 'client', 'server'" in bad(
        ROLLBACK, "--direction", "sideways", code=2
    )


@pytest.mark.parametrize("name", ["MUTATION", "mutation", "DCP_MUTATION", "0x57", "87"])
def test_an_opcode_has_a_name_and_a_number(name: str) -> None:
    assert set(frames_of(good(ROLLBACK, "--opcode", name))) == {"MUTATION"}


def test_opcodes_add_up() -> None:
    found = frames_of(good(ROLLBACK, "--opcode", "HELLO", "--opcode", "OPEN"))
    assert Counter(found) == {"HELLO": 2, "OPEN": 2}


@pytest.mark.parametrize("name", ["MUTATIONS", "256", "-1", "0xfff", ""])
def test_an_opcode_nobody_knows_is_refused(name: str) -> None:
    told = bad(ROLLBACK, "--opcode", name, code=2)
    assert "is neither an opcode's name nor a number 0..255" in told


def test_an_opcode_that_is_nearly_right_gets_a_hint() -> None:
    told = bad(ROLLBACK, "--opcode", "MUTATIONS", code=2)
    assert "MUTATION" in told.replace("'MUTATIONS'", "")


def test_the_vbucket_chooses_frames_and_the_replies_about_them() -> None:
    found = frames_of(good(ROLLBACK, "--vbucket", "2"))
    assert Counter(found) == {
        "STREAM_REQ": 16,
        "GET_FAILOVER_LOG": 2,
        "SNAPSHOT_MARKER": 2,
        "MUTATION": 24,
        "STREAM_END": 3,
    }
    result = decode(ROLLBACK, "--vbucket", "99")
    assert (result.exit_code, result.stdout) == (0, "")
    assert "none of the 55 frames in" in result.stderr
    assert "70000 is not in the range" in bad(ROLLBACK, "--vbucket", "70000", code=2)


def test_the_connection_chooses_frames_and_times_stay_those_of_the_capture() -> None:
    path = str(CAPTURES / "02_live_665.pcap")
    second = good(path, "--connection", "2")
    assert second[0] == good(path)[0], "time 0 is the same"
    assert all(line in good(path) for line in second[3:])
    assert "0 is not in the range" in bad(path, "--connection", "0", code=2)


def test_the_limit_ends_the_output() -> None:
    assert len(frames_of(good(ROLLBACK, "--limit", "7"))) == 7
    assert frames_of(good(ROLLBACK, "--limit", "7")) == frames_of(good(ROLLBACK))[:7]
    assert "0 is not in the range" in bad(ROLLBACK, "--limit", "0", code=2)


def test_tolerant_reads_what_strict_refuses() -> None:
    assert "STREAM_REQ with 24 bytes of extras" in bad(ERRORS)
    assert len(frames_of(good(ERRORS, "--tolerant"))) == 177
    assert "STREAM_REQ with 24 bytes of extras" in bad(ERRORS, "--strict")


@pytest.mark.parametrize("view", [[], ["--bytes"], ["--json"], ["--summary"]])
def test_every_view_tells_faults_and_goes_on_behind_them(view: list[str]) -> None:
    result = decode("-", *view, stdin=MUTATION + Frame(magic=0x80, opcode=0x55).to_bytes() + END)
    assert result.exit_code == 1
    assert result.stderr.splitlines() == [
        "standard input, server to client, byte 67",
        "  STREAM_END with 0 bytes of extras; dcp-7 allows 4",
        "          63  80 55 00 00 00 00 00 00 00 00 00 00 00 00 00 00",
        "                          ^^",
        "headrace: 1 of 3 frames in standard input could not be read as they should",
    ]
    assert "STREAM_END" in result.stdout


# What can be wrong with a file: one helpful sentence each.


def cut_capture() -> bytes:
    return (CAPTURES / "04a_rollback_simple_665.pcap").read_bytes()[:-20]


def capture_with_gap() -> bytes:
    stream = io.BytesIO()
    pcap = PcapWriter(stream)
    connection = pcap.connect()
    connection.send(BACK, MUTATION)
    lost = io.BytesIO()
    connection._pcap = PcapWriter(lost)
    connection.send(BACK, MUTATION * 3)
    connection._pcap = pcap
    connection.send(BACK, MUTATION + END)
    return stream.getvalue()


WRONG: Final = {
    "empty": (b"", "standard input is empty"),
    "a picture": (b"\x89PNG\r\n", "begins with 89 50 4e 47, which is neither pcap"),
    "prose": (b"Hello, world", "line 1, column 1: hex digits are wanted here, found 'Hello"),
    "half a capture": (cut_capture(), "standard input ends inside packet 65"),
    "half a frame": (MUTATION + END[:26], "STREAM_END says a body of 4 bytes and 2 follow"),
    "a corrupt magic": (MUTATION + b"\x41" + END[1:], "magic 41"),
    "a huge claim": (
        MUTATION[:8] + (BODY_SIZE_MAX + 1).to_bytes(4, "big") + MUTATION[12:],
        f"with a body of {BODY_SIZE_MAX + 1} bytes, limit {BODY_SIZE_MAX}",
    ),
    "a gap": (
        capture_with_gap(),
        f"{3 * len(MUTATION)} bytes are missing from the capture at offset {len(MUTATION)}",
    ),
}


@pytest.mark.parametrize(("data", "sentence"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_with_a_file_is_said_in_a_sentence(data: bytes, sentence: str) -> None:
    told = bad("-", stdin=data)
    assert sentence in told
    assert "Traceback" not in told
    assert told.splitlines()[-1].startswith("headrace: ")


def test_what_can_be_read_of_half_a_capture_is_shown() -> None:
    result = decode("-", stdin=cut_capture())
    assert len(frames_of(result.stdout.splitlines())) == 55


def test_frames_behind_a_gap_are_shown() -> None:
    result = decode("-", stdin=capture_with_gap())
    assert frames_of(result.stdout.splitlines())[-2:] == ["MUTATION", "STREAM_END"]


def test_a_missing_file_and_a_directory_are_refused(tmp_path: Path) -> None:
    assert bad(str(tmp_path)) == (
        f"headrace: {tmp_path} is a directory; name one capture file, or - for standard input\n"
    )
    path = tmp_path / "nowhere"
    assert bad(str(path)) == (
        f"headrace: {path} does not exist; name a capture file, or - for standard input\n"
    )


def test_no_file_at_all_is_a_mistake_of_the_command_line() -> None:
    assert "Missing argument 'FILE|-'" in bad(code=2)


def test_other_protocols_and_late_starts_are_told_beside_the_frames() -> None:
    stream = io.BytesIO()
    pcap = PcapWriter(stream)
    web = pcap.connect(Endpoint("10.0.0.1", 5), Endpoint("10.0.0.2", 443))
    web.send(THERE, b"\x16\x03\x01\x00")
    ours = pcap.connect(Endpoint("10.0.0.1", 6), Endpoint("10.0.0.2", 11210))
    ours.send(BACK, END)
    result = decode("-", stdin=stream.getvalue())
    assert result.exit_code == 0
    assert frames_of(result.stdout.splitlines()) == ["STREAM_END"]
    assert "10.0.0.1:5 > 10.0.0.2:443 speaks another protocol (TLS)" in result.stderr

    late = bytearray()
    whole = io.BytesIO()
    write_pcap(whole, [Said(BACK, MUTATION + END)])
    data = whole.getvalue()
    late += data[:24]
    at = 24
    while at < len(data):  # leave the three segments of the handshake out
        size = 16 + int.from_bytes(data[at + 8 : at + 12], "big")
        late += data[at : at + size] if at >= 24 + 3 * 70 else b""
        at += size
    result = decode("-", stdin=bytes(late))
    assert frames_of(result.stdout.splitlines()) == ["MUTATION", "STREAM_END"]
    assert "told by the first message" in result.stdout


# Terminals and pipes.


def test_a_pipe_gets_no_colour_and_no_cut() -> None:
    lines = good(ROLLBACK)
    assert not any("\x1b" in line for line in lines)
    assert max(map(len, lines)) > 120


def test_columns_cuts_lines_to_its_width() -> None:
    result = decode(ROLLBACK, columns=80)
    assert max(map(len, result.stdout.splitlines())) == 80


def on_a_terminal(*, no_color: str | None) -> str:
    runner = CliRunner()
    return runner.invoke(main, ["decode", ROLLBACK], color=True, env={"NO_COLOR": no_color}).stdout


def test_a_terminal_gets_colour_unless_no_color_is_set() -> None:
    coloured = on_a_terminal(no_color=None)
    assert "\x1b[" in coloured
    assert "\x1b[" not in on_a_terminal(no_color="1")
    assert click.unstyle(coloured).splitlines() == good(ROLLBACK)


# The command around it.


def test_help_names_every_command_and_loads_none() -> None:
    code = (
        "import sys; from headrace.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "light = ('headrace.cli.examples', 'headrace.cli.exits')\n"
        "heavy = [name for name in sys.modules if name.startswith(('headrace.cli.', 'pyarrow'))]\n"
        "print([name for name in heavy if name not in light])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment()
    )
    assert all(name in result.stdout for name in COMMANDS)
    assert result.stdout.splitlines()[-1] == "[]"


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SRC)}


def test_the_version_is_told() -> None:
    assert run("--version").stdout == f"headrace, version {__version__}\n"


def test_an_unknown_command_is_refused() -> None:
    result = run("decod")
    assert result.exit_code == 2
    assert "No such command 'decod'" in result.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_of_the_table_can_be_loaded(name: str) -> None:
    assert run(name, "--help").exit_code == 0


def test_the_command_runs_as_a_process_and_reads_standard_input() -> None:
    command = [sys.executable, "-m", "headrace", "decode", "-", "--json"]
    result = subprocess.run(
        command, input=MUTATION + END, capture_output=True, check=True, env=environment()
    )
    assert [json.loads(line)["name"] for line in result.stdout.splitlines()] == [
        "MUTATION",
        "STREAM_END",
    ]
    assert result.stderr == b""


def test_a_process_says_one_sentence_and_no_traceback() -> None:
    command = [sys.executable, "-m", "headrace", "decode", "nowhere.pcap"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment())
    assert result.returncode == 1
    assert result.stderr == (
        "headrace: nowhere.pcap does not exist; name a capture file, or - for standard input\n"
    )


def test_a_reader_that_goes_away_ends_the_command_quietly(tmp_path: Path) -> None:
    path = tmp_path / "long"
    path.write_bytes(MUTATION * 20_000)
    command = [sys.executable, "-m", "headrace", "decode", str(path)]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().split()[0] == b"byte"
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 1


# Broken bytes, and the terminal itself.


@pytest.mark.parametrize("view", [[], ["--bytes"], ["--json"], ["--summary"]])
@pytest.mark.parametrize("seed", range(25))
def test_no_view_is_surprised_by_broken_bytes(seed: int, view: list[str]) -> None:
    rng = random.Random(seed)
    paths = sorted([*CAPTURES.glob("*.pcap"), *SEEDS.glob("*.txt")])
    data = bytearray(rng.choice(paths).read_bytes())
    for _ in range(rng.randrange(1, 20)):
        data[rng.randrange(len(data))] = rng.randrange(256)
    result = decode("-", *view, *rng.choice([[], ["--tolerant"]]), stdin=bytes(data))
    assert result.exception is None or isinstance(result.exception, SystemExit), f"seed {seed}"


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def progress_of(monkeypatch: pytest.MonkeyPatch, stdout: io.StringIO) -> str:
    stderr = Terminal()
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setattr(decode_module, "PROGRESS_FROM_SIZE", 1)
    with open_source(ROLLBACK) as source, decode_module._progress(source) as advance:
        for _ in source:
            advance()
    return stderr.getvalue()


def test_progress_is_shown_while_the_output_goes_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "100%" in progress_of(monkeypatch, io.StringIO())


def test_no_progress_is_shown_between_the_lines_of_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    assert progress_of(monkeypatch, Terminal()) == ""


def test_lines_are_cut_to_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert decode_module._width() is None
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert decode_module._width() == 80, "what a terminal has that does not say its width"
    monkeypatch.setenv("COLUMNS", "132")
    assert decode_module._width() == 132
