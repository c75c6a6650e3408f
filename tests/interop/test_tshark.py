"""Frames that we write, read by Wireshark's dissector; real captures, counted by both.

Every layout that some dialect speaks is filled with numbers that name their own bytes, written by
our encoder into a pcap and given to tshark. What it prints must be what the message says: header,
key, frame infos, and each field of the extras and the value that it knows by name. What it cannot
know is listed here with the reason, and the list is checked too: a caveat that no longer holds
fails.

tshark prints the opaque with its bytes turned round, assumes a collection prefix on every document
key, and knows neither the draft's layouts nor what came after 2021.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import pytest

from headrace.capture.guess import likely_direction
from headrace.capture.source import open_source
from headrace.capture.walk import walk
from headrace.capture.writer import Said, write_pcap
from headrace.wire.codec import LAYOUTS, decode, encode
from headrace.wire.dialect import Dialect
from headrace.wire.frame import Frame, split_frames
from headrace.wire.layout import (
    NO_KEY,
    REPLY,
    REQUEST,
    SERVER_REQUEST,
    Bytes,
    Custom,
    Fields,
    Fixed,
    Repeated,
    Row,
)
from headrace.wire.message import ErrorReply, stream_id_info
from headrace.wire.messages import Mutation
from headrace.wire.opcodes import Magic, Opcode

if TYPE_CHECKING:
    from headrace.wire.message import Message

pytestmark = pytest.mark.interop

CAPTURES: Final = Path(__file__).parents[1] / "captures"
NEWEST_FIRST: Final = tuple(reversed(Dialect))


def require_tshark() -> None:
    """Skip on a machine without tshark; where CI=true a skip is a failure (tests/conftest.py)."""
    if shutil.which("tshark") is None:
        pytest.skip("tshark is not installed")


def tshark(*arguments: str) -> str:
    """Run tshark and return what it prints."""
    require_tshark()
    result = subprocess.run(["tshark", *arguments], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


@dataclass(frozen=True, slots=True)
class Sample:
    """One layout filled with numbers."""

    name: str
    dialect: Dialect
    row: Row | None
    frame: Frame

    @property
    def data(self) -> bytes:
        return self.frame.to_bytes()


# Samples: every layout, filled.

KEY: Final = b"\x08hello"
OPAQUE: Final = 0x0A0B0C0D
CAS: Final = 0x1112131415161718
VBUCKET: Final = 0x0102
STREAM_ID: Final = stream_id_info(0x0304)
REFUSALS: Final = (0x01, 0x02, 0x04, 0x07, 0x22, 0x83, 0x86, 0x88)
XATTR_VALUE: Final = b"\0\0\0\x0d\0\0\0\x09_sync\0{}\0doc"

PATH: Final = b"a.b"
LOOKUP: Final = b"\xc5\x00\x00\x03" + PATH
MUTATION_SPEC: Final = b"\xc8\x01\x00\x03\x00\x00\x00\x01" + PATH + b"7"
VALUES: Final[dict[str, bytes]] = {
    "Open": b"",
    "Deletion": b"",
    "Expiration": b"",
    "CreateBucket": b"module.so\0config=1;",
    "SubdocRequest": PATH + b'"v"',
    "SubdocMultiLookup": LOOKUP + LOOKUP,
    "SubdocMultiLookupReply": b"\0\0\0\0\0\x017" + b"\0\xc0\0\0\0\0",
    "SubdocMultiMutation": MUTATION_SPEC + MUTATION_SPEC,
    "SubdocMultiMutationReply": b"\x01\0\0\0\0\0\x017",
    "CacheTransfer": bytes(24) + b"\0\0\0\x01" + bytes(8) + b"\0\x06\0\0" + KEY + b"v",
}
"""Values that a message must have to make sense; every other one is "value"."""

NUMBERS: Final = {"path_length": len(PATH)}
MAGICS: Final = {REQUEST: Magic.REQUEST, REPLY: Magic.REPLY, SERVER_REQUEST: Magic.SERVER_REQUEST}


def fill(run: Fields, first: int) -> bytes:
    """Numbers that name their own bytes, and codes where only codes make sense."""
    parts = []
    for field in run.fields:
        if field.name in NUMBERS:
            number = NUMBERS[field.name]
        elif field.name == "failed_over":
            number = int("old_vb_uuid" in run.names)
        elif field.absent:
            number = 0
        elif field.wire is not None:
            number = min(field.wire)
        elif field.codes is not None:
            number = [int(code) for code in field.codes][1]
        else:
            number = int.from_bytes(range(first, first + field.size), "big")
        parts.append(number.to_bytes(field.size, "big"))
        first += field.size
    return b"".join(parts)


def value_for(row: Row) -> bytes:
    name = row.message.__name__
    if name in VALUES and isinstance(row.value, Bytes | Custom):
        return VALUES[name]
    if isinstance(row.value, Fixed):
        return fill(row.value.fields, 0x21)
    if isinstance(row.value, Repeated):
        return bytes(range(0x41, 0x41 + 2 * row.value.record.size))
    return b"value" if isinstance(row.value, Bytes) else b""


def sample_of(row: Row, dialect: Dialect) -> Sample:
    """The row as our encoder writes it: the filled frame is read and written again."""
    extras = fill(row.extras, 1)
    if row.version is not None:
        extras = bytes([row.version]) + extras[1:]
    reply = row.kind not in (REQUEST, SERVER_REQUEST)
    filled = Frame(
        magic=MAGICS.get(row.kind, Magic.SERVER_REPLY),
        opcode=row.opcode,
        vbucket=min(row.statuses) if reply else VBUCKET,
        opaque=OPAQUE,
        cas=CAS,
        extras=extras,
        key=b"" if row.key == NO_KEY else KEY,
        value=value_for(row),
    )
    (written,) = split_frames(encode(decode(filled, dialect), dialect))
    assert written == filled, "the encoder writes the layout that was filled"
    return Sample(f"{row.message.__name__}, {row.name}, {row.opcode:02x}", dialect, row, written)


def extra(name: str, message: Message, dialect: Dialect = Dialect.DCP_7) -> Sample:
    (frame,) = split_frames(encode(message, dialect))
    return Sample(name, dialect, None, frame)


def all_samples() -> list[Sample]:
    samples = []
    for row in LAYOUTS:
        spoken = [dialect for dialect in NEWEST_FIRST if dialect in row.speak]
        samples += [sample_of(row, dialect) for dialect in spoken[:1]]
    flexible = [
        Sample(f"{sample.name}, with a stream id", sample.dialect, sample.row, frame)
        for sample in samples
        if sample.row is not None
        and sample.row.kind == REQUEST
        and Opcode.CLOSE_STREAM <= sample.row.opcode <= Opcode.OSO_SNAPSHOT
        and sample.row.opcode not in (Opcode.STREAM_REQ, Opcode.GET_FAILOVER_LOG)
        for frame in [with_stream_id(sample)]
    ]
    refusals = [
        extra(
            f"ErrorReply, status {status:02x}",
            ErrorReply(opcode=0x5E, status=status, opaque=OPAQUE, cas=CAS, value=b"why"),
        )
        for status in REFUSALS
    ]
    wordless = ErrorReply(opcode=0x5E, status=4, opaque=OPAQUE, cas=CAS)
    refusals.append(extra("ErrorReply without words", wordless))
    xattrs = Mutation(by_seqno=1, key=KEY, value=XATTR_VALUE, datatype=4, opaque=OPAQUE, cas=CAS)
    return [*samples, *flexible, *refusals, extra("Mutation with xattrs", xattrs)]


def with_stream_id(sample: Sample) -> Frame:
    message = decode(sample.frame, sample.dialect)
    (frame,) = split_frames(
        encode(replace(message, frame_infos=(STREAM_ID,)), sample.dialect, historic=True)
    )
    return frame


SAMPLES: Final = all_samples()
PLACES: Final = {sample.name: number for number, sample in enumerate(SAMPLES)}


# What tshark cannot know, and why.

NEWER: Final = "came after this tshark"
DRAFT: Final = "a layout of the draft, before the dissector was written"
STRICT: Final = "the dissector allows one length only"
UNTOLD_PLACE: Final = "knows no mutation token here"
CAVEATS: Final[dict[str, tuple[str, str]]] = {
    "StreamRequest, 40 bytes, 53": ("malformed", DRAFT),
    "SnapshotMarker, V2.2, 52 bytes, 56": ("malformed", "takes any V2.x for 44 bytes"),
    "SnapshotMarker, V2.2, 52 bytes, 56, with a stream id": (
        "malformed",
        "takes any V2.x for 44 bytes",
    ),
    "GetAllVbSeqnos, 8 bytes, 48": ("warn_illegal_extras_length", STRICT),
    "RollbackReply, 0 bytes, 53": (
        "warn_unknown_opcode",
        "its way to mark a reply that is not ok",
    ),
    "SnapshotMarker, empty, 56": ("warn_must_have_extras", DRAFT),
    "SnapshotMarker, empty, 56, with a stream id": ("warn_must_have_extras", DRAFT),
    "Mutation, 30 bytes, 57": ("warn_illegal_extras_length", DRAFT),
    "Mutation, 30 bytes, 57, with a stream id": ("warn_illegal_extras_length", DRAFT),
    "Flush, 0 bytes, 5a": ("warn_must_have_extras", DRAFT),
    "Flush, 0 bytes, 5a, with a stream id": ("warn_must_have_extras", DRAFT),
    "CacheTransferEnd, 0 bytes, 67": ("warn_unknown_opcode", NEWER),
    "ClustermapChange, 4 bytes, 01": ("warn_illegal_extras_length", STRICT),
    **{
        f"ErrorReply, status {status:02x}": ("warn_unknown_opcode", "its way to mark a refusal")
        for status in REFUSALS
    },
    "ErrorReply without words": ("value_missing", "wants a text with every refusal"),
    "SetWithMetaReply, 16 bytes, a2": ("warn_illegal_extras_length", UNTOLD_PLACE),
    "DelWithMetaReply, 16 bytes, a8": ("warn_illegal_extras_length", UNTOLD_PLACE),
    "SubdocMultiMutationReply, 16 bytes, d1": ("warn_illegal_extras_length", UNTOLD_PLACE),
    **{
        f"SubdocReply, 16 bytes, {opcode:02x}": ("warn_illegal_extras_length", UNTOLD_PLACE)
        for opcode in range(Opcode.SUBDOC_GET, Opcode.SUBDOC_COUNTER + 1)
    },
    **{
        f"SubdocRequest, {size} bytes, {opcode:02x}": ("warn_illegal_extras_length", STRICT)
        for size in (7, 8)
        for opcode in (Opcode.SUBDOC_GET, Opcode.SUBDOC_EXISTS)
    },
}


# Our field -> the names under which tshark may show it.

NAMES: Final[dict[str, tuple[str, ...]]] = {
    "ack_bytes": ("extras_bytes_to_ack",),
    "by_seqno": ("extras_by_seqno",),
    "abort_seqno": ("extras_by_seqno_abort",),
    "commit_seqno": ("extras_by_seqno_commit", "extras_by_seqno"),
    "delete_time": ("extras_delete_time",),
    "deleted": ("extras_deleted",),
    "delta": ("extras_delta",),
    "doc_flags": ("extras_subdoc_doc_flags",),
    "collection_id": ("key_collection_id",),
    "document_datatype": ("extras_confres",),
    "durability": ("flex_frame_frame_durability_req",),
    "end_seqno": ("extras_end_seqno",),
    "epoch": ("server_extras_cccp_epoch",),
    "event": ("extras_system_event_id",),
    "expiration": ("extras_expiration", "extras_expiry"),
    "failed_over": ("observe_failed_over",),
    "features": ("hello_features_feature",),
    "flags": ("extras_flags",),
    "high_completed_seqno": ("extras_high_completed_seqno",),
    "high_seqno": ("observe_current_seqno",),
    "initial": ("extras_initial",),
    "lock_time": ("extras_lock_time",),
    "marker_version": ("extras_marker_version",),
    "max_visible_seqno": ("extras_max_visible_seqno",),
    "meta_cas": ("extras_cas",),
    "nmeta": ("extras_nmeta", "extras_meta_length"),
    "manifest_uid": ("key_collection_manifest_id",),
    "nru": ("extras_nru",),
    "number": ("extras_response",),
    "observed_vbucket": ("observe_vbucket",),
    "old_high_seqno": ("observe_last_received_seqno",),
    "old_vb_uuid": ("observe_old_vbucket_uuid",),
    "options": ("extras_options",),
    "oso_flags": ("extras_dcp_oso_snapshot_flags",),
    "path_flags": ("extras_subdoc_flags",),
    "path_length": ("extras_pathlen",),
    "persisted_seqno": ("observe_last_persisted_seqno",),
    "prepared_seqno": ("extras_by_seqno_prepared", "extras_by_seqno"),
    "purge_seqno": ("extras_timestamp",),
    "request_version": ("extras_reqextmeta",),
    "reserved": ("extras_reserved", "extras_seqno"),
    "rev_seqno": ("extras_rev_seqno", "extras_revseqno", "extras_meta_seqno"),
    "revision": ("server_extras_cccp_revision",),
    "seqno": ("extras_mutation_seqno", "dcp_failover_log_seqno", "vbucket_states_seqno"),
    "snap_end_seqno": ("extras_snap_end_seqno",),
    "snap_start_seqno": ("extras_snap_start_seqno",),
    "start_seqno": ("extras_start_seqno",),
    "state": ("vbucket_states_state",),
    "unused": ("extras_delete_unused",),
    "uuid": ("dcp_failover_log_vbucket_uuid",),
    "vb_uuid": ("extras_vbucket_uuid", "observe_vbucket_uuid"),
    "vbucket": ("vbucket_states_id",),
    "version": ("extras_system_event_version", "geterrmap_version"),
}

UNSEEN: Final = frozenset(
    {
        (Opcode.ADD_STREAM, "stream_opaque"),
        (Opcode.FAILOVER_LOG, "uuid"),
        (Opcode.FAILOVER_LOG, "seqno"),
        (Opcode.GET_VBUCKET, "state"),
        (Opcode.INCREMENTQ, "number"),
        (Opcode.DECREMENTQ, "number"),
    }
)
"""Fields that tshark shows under no name, though it reads the frame without complaint."""


@cache
def dissected() -> list[dict[str, object]]:
    """What tshark says of each sample, one couchbase layer per frame."""
    require_tshark()
    with TemporaryDirectory() as directory:
        path = Path(directory) / "samples.pcap"
        with path.open("wb") as stream:
            write_pcap(
                stream,
                [
                    Said(likely_direction(sample.frame), sample.data, number)
                    for number, sample in enumerate(SAMPLES)
                ],
            )
        return couchbase_layers(path, 11210)


def couchbase_layers(path: Path, port: int) -> list[dict[str, object]]:
    text = tshark(
        "-r", str(path), "-d", f"tcp.port=={port},couchbase", "-Y", "couchbase", "-T", "ek"
    )
    records = [json.loads(line) for line in text.splitlines()]
    return [record["layers"] for record in records if "layers" in record]


def layer_of(sample: Sample) -> dict[str, object]:
    layers = dissected()
    assert len(layers) == len(SAMPLES)
    layer = layers[PLACES[sample.name]]["couchbase"]
    assert isinstance(layer, dict)
    return {key.removeprefix("couchbase_couchbase_"): said for key, said in layer.items()}


def numbers(said: object) -> list[int]:
    entries = said if isinstance(said, list) else [said]
    return [int(str(entry), 0) for entry in entries]


def complaints(sample: Sample) -> list[str]:
    text = json.dumps(dissected()[PLACES[sample.name]])
    found = sorted(set(re.findall(r"couchbase_couchbase_((?:warn|error|value_missing)\w*)", text)))
    return (["malformed"] if "_ws_malformed" in text else []) + found


def by_name(sample: Sample) -> str:
    return sample.name


@pytest.mark.parametrize("sample", SAMPLES, ids=by_name)
def test_tshark_complains_about_nothing_but_what_it_cannot_know(sample: Sample) -> None:
    expected = [CAVEATS[sample.name][0]] if sample.name in CAVEATS else []
    assert complaints(sample) == expected


@pytest.mark.parametrize("sample", SAMPLES, ids=by_name)
def test_tshark_reads_the_same_header(sample: Sample) -> None:
    layer, frame = layer_of(sample), sample.frame
    flexible = frame.magic in (Magic.ALT_REQUEST, Magic.ALT_REPLY)
    server = frame.magic in (Magic.SERVER_REQUEST, Magic.SERVER_REPLY)
    expected = {
        "magic": frame.magic,
        "server_opcode" if server else "opcode": frame.opcode,
        "key_length": len(frame.key),
        "extras_length": len(frame.extras),
        "datatype": frame.datatype,
        "status" if frame.is_reply else "vbucket": frame.vbucket,
        "total_bodylength": frame.body_size,
        "opaque": int.from_bytes(frame.opaque.to_bytes(4, "big"), "little"),
        "cas": frame.cas,
    }
    if flexible:
        expected["flex_extras"] = len(frame.framing)
    assert {name: numbers(layer.get(name))[0] for name in expected} == expected


def fields_of(sample: Sample) -> list[tuple[str, int]]:
    """Name and wire number of every field in the extras and the value of a sample."""
    row, frame = sample.row, sample.frame
    assert row is not None
    found = numbered(row.extras, frame.extras)
    if isinstance(row.value, Fixed):
        found += numbered(row.value.fields, frame.value)
    if isinstance(row.value, Repeated):
        shape = row.value
        names = (
            [field.name for field in fields(shape.make)]
            if is_dataclass(shape.make)
            else [shape.name]
        )
        for record in shape.record.iter_unpack(frame.value):
            found += list(zip(names, record, strict=True))
    return found


def numbered(run: Fields, data: bytes) -> list[tuple[str, int]]:
    return [
        (field.name, number)
        for field, number in zip(run.fields, run.struct.unpack(data), strict=True)
    ]


@pytest.mark.parametrize(
    "sample", [sample for sample in SAMPLES if sample.row is not None], ids=by_name
)
def test_tshark_reads_the_same_fields(sample: Sample) -> None:
    assert sample.row is not None
    layer = layer_of(sample)
    if "extras_unknown" in layer:
        # It knows that there are extras but no names for them: then all bytes are shown.
        shown_bytes = bytes.fromhex(str(layer["extras_unknown"]).replace(":", ""))
        assert shown_bytes == sample.frame.extras
        return
    for name, number in fields_of(sample):
        shown = [each for each in NAMES.get(name, ()) if each in layer]
        if (sample.row.opcode, name) in UNSEEN:
            assert not shown, f"{name} is shown as {shown}: it is unseen no longer"
        elif shown or sample.name not in CAVEATS:
            assert shown, f"tshark does not show {name}"
            assert any(number in numbers(layer[each]) for each in shown), name


@pytest.mark.parametrize("sample", [each for each in SAMPLES if each.frame.key], ids=by_name)
def test_tshark_reads_the_same_key(sample: Sample) -> None:
    layer = layer_of(sample)
    assert str(layer["key"]).endswith("hello")
    if "key_collection_id" in layer:
        assert (numbers(layer["key_collection_id"]), layer["key_logical_key"]) == ([8], "hello")


@pytest.mark.parametrize("sample", [each for each in SAMPLES if each.frame.framing], ids=by_name)
def test_tshark_reads_the_same_stream_id(sample: Sample) -> None:
    assert numbers(layer_of(sample)["flex_frame_frame_dcp_stream_id"]) == [0x0304]


def test_tshark_reads_the_same_xattrs() -> None:
    layer = layer_of(SAMPLES[-1])
    assert layer["xattrs_pair_key"] == "_sync"
    assert layer["xattrs_pair_value"] == "{}"


def test_every_caveat_is_about_a_sample() -> None:
    assert set(CAVEATS) <= set(PLACES)
    assert len(PLACES) == len(SAMPLES), "a name means one sample"


@pytest.mark.parametrize("path", sorted(CAPTURES.glob("*.pcap")), ids=lambda path: path.stem)
def test_tshark_and_we_find_the_same_frames_in_a_real_capture(path: Path) -> None:
    """Opcode, opaque, CAS and lengths of every frame."""
    require_tshark()
    with open_source(str(path)) as source:
        items = [item for item in walk(source, Dialect.DCP_7, strict=False) if item.frame]
    ports = {item.connection.server.port for item in items if item.connection.server}
    decoded = [part for port in ports for part in ("-d", f"tcp.port=={port},couchbase")]
    names = ("opcode", "opaque", "cas", "total_bodylength", "key.length", "extras.length")
    columns = [part for name in names for part in ("-e", f"couchbase.{name}")]
    text = tshark(
        "-r",
        str(path),
        *decoded,
        "-Y",
        "couchbase",
        "-T",
        "fields",
        "-E",
        "occurrence=a",
        "-E",
        "aggregator=,",
        *columns,
    )
    theirs: list[tuple[int, ...]] = []
    for line in text.splitlines():
        theirs += zip(
            *([int(n, 0) for n in cell.split(",")] for cell in line.split("\t")), strict=True
        )
    ours = []
    for item in items:
        frame = item.frame
        assert frame is not None
        swapped = int.from_bytes(frame.opaque.to_bytes(4, "big"), "little")
        sizes = frame.body_size, len(frame.key), len(frame.extras)
        ours.append((frame.opcode, swapped, frame.cas, *sizes))
    assert sorted(theirs) == sorted(ours)
