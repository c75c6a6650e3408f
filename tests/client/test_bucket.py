"""connect and Bucket against the real node: logins, certificates, questions, readers."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

import headrace
from headrace.client.access import Tls
from headrace.client.bucket import Bucket, connect
from headrace.client.changes import Change
from headrace.client.writer import Document
from headrace.errors import CannotConnect, ConfigError, StatusError
from headrace.node.config import BucketConfig, NodeConfig, TlsFiles
from headrace.node.tls import make_certificate
from headrace.node.users import Role, User, Users
from headrace.store import BucketSettings
from tests.node.running import RunningNode, running

if TYPE_CHECKING:
    from collections.abc import Iterator

SECRET = "correct horse"  # noqa: S105 - of nobody
FOUR = (BucketConfig(settings=BucketSettings(vbuckets=4)),)


@pytest.fixture(scope="module")
def node() -> Iterator[RunningNode]:
    with running(NodeConfig(buckets=FOUR)) as running_node:
        yield running_node


@pytest.fixture
def bucket(node: RunningNode) -> Iterator[Bucket]:
    with connect(f"couchbase://127.0.0.1:{node.port}/default") as found:
        yield found


def connected(node: RunningNode) -> Bucket:
    return connect(f"couchbase://127.0.0.1:{node.port}/default")


def put(bucket: Bucket, *documents: Document) -> None:
    with bucket.writer() as writer:
        for document in documents:
            writer.put(document)


def test_the_package_exports_connect_without_loading_anything_before() -> None:
    assert headrace.connect is connect
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        headrace.nothing  # noqa: B018 - that it raises is the point


def test_reading_loads_no_pandas_which_costs_more_than_all_else(
    node: RunningNode, bucket: Bucket
) -> None:
    pytest.importorskip("pandas")
    put(bucket, Document(b"light", b"{}"))
    script = (
        "import sys\n"
        f"sys.path.insert(0, {str(Path(headrace.__file__).parent.parent)!r})\n"
        "import headrace\n"
        f"with headrace.connect('couchbase://127.0.0.1:{node.port}/default') as bucket:\n"
        "    span = {'since': 'beginning', 'until': 'now'}\n"
        "    rows = sum(batch.num_rows for batch in bucket.changes(**span))\n"
        "    changes = sum(1 for _ in bucket.follow(**span))\n"
        "print(rows == changes > 0, 'pandas' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.split() == ["True", "False"], done.stderr


def test_a_bucket_must_be_named(node: RunningNode) -> None:
    with pytest.raises(ConfigError, match="names no bucket"):
        connect(f"couchbase://127.0.0.1:{node.port}")


def test_a_bucket_that_does_not_exist_is_named(node: RunningNode) -> None:
    with pytest.raises(StatusError, match=r"bucket 'absent' does not exist at 127\.0\.0\.1"):
        connect(f"couchbase://127.0.0.1:{node.port}/absent")


def test_the_second_host_is_tried_when_the_first_is_dead(node: RunningNode) -> None:
    with connect(f"couchbase://127.0.0.1:1,127.0.0.1:{node.port}/default") as found:
        assert found.vbuckets == 4


def test_questions_have_answers(bucket: Bucket) -> None:
    put(bucket, Document(b"question", b"1"))
    seqnos, logs = bucket.seqnos(), bucket.failover_logs()
    assert set(seqnos) == set(logs) == {0, 1, 2, 3}
    assert sum(seqnos.values()) > 0
    tokens = bucket.tokens_now()
    assert [tokens.seqno(v) for v in range(4)] == [seqnos[v] for v in range(4)]
    assert bucket.manifest().collection_id("_default") == 0
    assert any("vb_0:high_seqno" in stats for stats in bucket.stats("vbucket-seqno").values())
    with pytest.raises(StatusError, match="refused the statistics"):
        bucket.stats("nonsense")


def test_three_lines_to_a_stream(bucket: Bucket) -> None:
    put(bucket, Document(b"three", b'{"lines":1}', is_json=True))
    rows = [row for batch in bucket.changes(until="now") for row in batch.to_pylist()]
    assert b"three" in [row["key"] for row in rows]
    follow = bucket.follow(bucket.tokens_now())
    put(bucket, Document(b"live", b"1"))
    change = next(follow)
    assert isinstance(change, Change)
    assert (change.key, change.value) == (b"live", b"1")
    follow.close()


def test_an_unknown_option_is_named(bucket: Bucket) -> None:
    with pytest.raises(ConfigError, match="option 'untill' is unknown; allowed: active_only"):
        bucket.changes(untill="now")
    with pytest.raises(ConfigError, match=r"vbucket 9, bucket 'default' has 0\.\.3"):
        next(bucket.changes(vbuckets=[9], until="now"))
    with pytest.raises(ConfigError, match="collection 'nowhere' does not exist; there are: _def"):
        next(bucket.changes(collections="nowhere", until="now"))


def test_a_time_starts_at_its_changes_and_not_after(bucket: Bucket) -> None:
    put(bucket, *(Document(b"old-%d" % n, b"1") for n in range(20)))
    rows = [row for batch in bucket.changes(until="now") for row in batch.to_pylist()]
    newest = max(row["cas"] for row in rows)
    time = datetime.fromtimestamp(newest / 1e9, tz=UTC) + timedelta(microseconds=1)
    put(bucket, *(Document(b"new-%d" % n, b"1") for n in range(20)))
    found = [row["key"] for b in bucket.changes(since=time, until="now") for row in b.to_pylist()]
    assert sorted(found) == sorted(b"new-%d" % n for n in range(20))


def test_values_and_deletions_come_as_asked_for(bucket: Bucket) -> None:
    put(bucket, Document(b"gone", b"1"), Document(b"gone", None))
    rows = {
        row["key"]: row
        for batch in bucket.changes(until="now", no_value=True)
        for row in batch.to_pylist()
    }
    assert rows[b"gone"]["event"] == 2
    assert rows[b"gone"]["delete_time"] is not None
    assert not any(row["value"] for row in rows.values())


def test_only_what_is_on_disk_is_handed_out(tmp_path: Path) -> None:
    with running(NodeConfig(buckets=FOUR, data=tmp_path)) as node, connected(node) as bucket:
        assert not bucket.cluster_map.is_memory_only
        put(bucket, *(Document(b"k%d" % n, b"1") for n in range(50)))
        reader = bucket.changes(until="now", persisted_only=True)
        assert sum(batch.num_rows for batch in reader) == 50


# -- logins ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded() -> Iterator[RunningNode]:
    users = Users((User(name="alice", password=SECRET, role=Role.WRITE),))
    with running(NodeConfig(buckets=FOUR, users=users)) as running_node:
        yield running_node


def test_a_login_by_scram_reads_and_follows(guarded: RunningNode) -> None:
    url = f"couchbase://127.0.0.1:{guarded.port}/default"
    with connect(url, user="alice", password=SECRET) as bucket:
        put(bucket, Document(b"k", b"1"))
        assert [b.num_rows for b in bucket.changes(until="now")] == [1]


@pytest.mark.parametrize(("user", "password"), [("alice", "wrong"), ("bob", SECRET)])
def test_a_wrong_user_or_password_looks_the_same(
    guarded: RunningNode, user: str, password: str
) -> None:
    url = f"couchbase://127.0.0.1:{guarded.port}/default"
    with pytest.raises(StatusError, match=f"check user '{user}' and the password") as caught:
        connect(url, user=user, password=password)
    assert password not in str(caught.value)


def test_a_login_that_is_refused_later_ends_the_reader_and_names_it() -> None:
    users = [Users((User(name="alice", password=one, role=Role.WRITE),)) for one in (SECRET, "new")]
    with running(NodeConfig(buckets=FOUR, users=users[0])) as node:
        port = node.port
        url = f"couchbase://127.0.0.1:{port}/default"
        with connect(url, user="alice", password=SECRET) as bucket:
            put(bucket, Document(b"k", b"1"))
        bucket = connect(url, user="alice", password=SECRET)
        reader = bucket.follow(since="beginning")
        first = next(reader)
        assert isinstance(first, Change)
    with bucket, running(NodeConfig(buckets=FOUR, users=users[1], port=port)):
        with pytest.raises(StatusError, match="login was refused") as caught:
            next(reader)
        assert SECRET not in str(caught.value)
        assert reader.tokens.positions[first.vbucket].token.seqno == 1


# -- certificates ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def encrypted(certificate: TlsFiles) -> Iterator[int]:
    with running(NodeConfig(buckets=FOUR, tls=certificate)) as running_node:
        port = running_node.node.ports.tls
        assert port is not None
        yield port


def test_everything_works_inside_tls(encrypted: int, certificate: TlsFiles) -> None:
    tls = Tls(trust=str(certificate.certificate))
    with connect(f"couchbases://127.0.0.1:{encrypted}/default", tls=tls) as bucket:
        put(bucket, *(Document(b"k%d" % n, b"x" * 5000) for n in range(2000)))
        assert sum(batch.num_rows for batch in bucket.changes(until="now")) == 2000
        one = next(bucket.follow(since="beginning"))
        assert isinstance(one, Change)


def test_a_certificate_nobody_vouches_for_is_refused(encrypted: int) -> None:
    url = f"couchbases://127.0.0.1:{encrypted}/default"
    with pytest.raises(CannotConnect, match="is not trusted: self-signed certificate; give the"):
        connect(url)
    with connect(f"{url}?tls_verify=none") as bucket:
        assert bucket.vbuckets == 4


def test_plain_words_to_a_tls_port_are_explained(encrypted: int) -> None:
    with pytest.raises(CannotConnect, match=r"speaks TLS; use couchbases://|data node"):
        connect(f"couchbase://127.0.0.1:{encrypted}/default", connect_seconds=3)


def client_files(directory: Path, name: str) -> Tls:
    """A certificate for a client, signed by itself, which the node trusts as an authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    chain, secret = directory / f"{name}.pem", directory / f"{name}.key"
    chain.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    pkcs8, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    secret.write_bytes(key.private_bytes(serialization.Encoding.PEM, pkcs8, plain))
    return Tls(certificate=str(chain), key=str(secret))


def test_a_client_certificate_logs_in_whom_it_names(certificate: TlsFiles, tmp_path: Path) -> None:
    tls = {name: client_files(tmp_path, name) for name in ("alice", "mallory", "nobody")}
    authority = tmp_path / "authority.pem"
    authority.write_bytes(
        b"".join((tmp_path / f"{name}.pem").read_bytes() for name in ("alice", "nobody"))
    )
    users = Users((User(name="alice", password=SECRET, role=Role.WRITE),))
    files = replace(certificate, client_authority=authority)
    trust = str(certificate.certificate)
    with running(NodeConfig(buckets=FOUR, users=users, tls=files)) as node:
        url = f"couchbases://127.0.0.1:{node.node.ports.tls}/default"
        with connect(url, tls=replace(tls["alice"], trust=trust)) as bucket:
            put(bucket, Document(b"k", b"1"))
            assert [batch.num_rows for batch in bucket.changes(until="now")] == [1]
        with connect(url, tls=Tls(trust=trust), user="alice", password=SECRET) as bucket:
            assert [batch.num_rows for batch in bucket.changes(until="now")] == [1]
        for tls_of_another in (tls["nobody"], Tls()):
            with pytest.raises((StatusError, CannotConnect)) as refused:
                connect(url, tls=replace(tls_of_another, trust=trust))
            assert "user" in str(refused.value)
        with pytest.raises(CannotConnect):
            connect(url, tls=replace(tls["mallory"], trust=trust), connect_seconds=5)
