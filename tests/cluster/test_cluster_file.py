"""Cluster files: what they say, and the sentence when they say something else."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from headrace.client.address import NodeAddress
from headrace.cluster.cluster_file import read_cluster_file, two_nodes
from headrace.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

GOOD = """
revision = 3
buckets = ["default", "orders"]
replicas = 1
credentials = "who.toml"

[nodes.a]
url = "couchbase://127.0.0.1:11210"

[nodes.b]
url = "couchbase://127.0.0.1:11310"
credentials = "b.toml"

[nodes.c]
url = "couchbase://[::1]:11410"
leaving = true
"""


def write(directory: Path, text: str, name: str = "cluster.toml") -> Path:
    path = directory / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_file_says_nodes_buckets_replicas_and_who_logs_in(tmp_path: Path) -> None:
    write(tmp_path, 'user = "admin"\npassword = "one"\n', "who.toml")
    write(tmp_path, 'user = "bob"\npassword = "two"\n', "b.toml")
    file = read_cluster_file(write(tmp_path, GOOD))
    assert file.names == ("a", "b", "c")
    assert file.staying == ("a", "b")
    assert (file.revision, file.replicas, file.buckets) == (3, 1, ("default", "orders"))
    assert file.node("c").address == NodeAddress("::1", 11410)
    assert (file.node("a").access.user, file.node("b").access.user) == ("admin", "bob")
    assert "one" not in repr(file), "a secret is in no log"
    assert file.beside("moves.json") == tmp_path / "cluster.toml.moves.json"


def test_json_says_the_same(tmp_path: Path) -> None:
    said = {"nodes": {"a": {"url": "couchbase://h:1"}, "b": {"url": "h:2"}}, "replicas": 1}
    file = read_cluster_file(write(tmp_path, json.dumps(said), "cluster.json"))
    assert [str(node.address) for node in file.nodes] == ["h:1", "h:2"]
    assert file.bucket(None) == "default"


NODE = '[nodes.a]\nurl = "couchbase://h:1"\n'


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "has None nodes; wanted are 1..64"),
        ("nodes = 3", "has 3 nodes"),
        ("revision = 0\n" + NODE, "revision is 0, allowed: 1.."),
        ("replicas = true\n" + NODE, "replicas is True, allowed: 0..3"),
        ("replicas = 1\n" + NODE, "wants 1 replicas on 1 nodes"),
        ("buckets = []\n" + NODE, "buckets is []; wanted is a list"),
        ('buckets = ["a", "a"]\n' + NODE, "a bucket stands twice"),
        ('buckets = ["a/b"]\n' + NODE, "bucket 'a/b'; allowed"),
        ("replica = 1\n" + NODE, "'replica' is unknown; allowed: revision, buckets"),
        (NODE + 'uri = "x"', "node a: 'uri' is unknown; allowed: url"),
        (NODE + "leaving = 1", "leaving is 1; allowed: true, false"),
        (NODE + "leaving = true", "every node is leaving"),
        ("[nodes.a]\nurl = 7", "url is 7; wanted is couchbase://host:port"),
        ('[nodes.a]\nurl = "couchbase://h:1,g:2"', "wanted is one host and no bucket"),
        ('[nodes.a]\nurl = "couchbase://h:1/b"', "wanted is one host and no bucket"),
        ('[nodes.a]\nurl = "http://h:1"', "scheme 'http'; allowed"),
        ('[nodes."a b"]\nurl = "couchbase://h:1"', "node name 'a b'; allowed"),
        (NODE + NODE.replace("nodes.a", "nodes.b"), "nodes a and b are both at h:1"),
        ("x = ", "is no TOML"),
        (NODE + 'credentials = "nowhere"', "nowhere cannot be read"),
        (NODE + "credentials = 1", "credentials is 1; wanted is the path"),
    ],
)
def test_a_file_that_cannot_be_used_says_what_was_found_and_what_is_allowed(
    tmp_path: Path, text: str, sentence: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        read_cluster_file(write(tmp_path, text))
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("user = 1", "user is no text"),
        ("who = 1", "'who' is unknown; allowed: user, password"),
        ("verify = 1", "verify is 1; allowed: true, false"),
        ('password = "x"', "a password is given without a user"),
    ],
)
def test_credentials_that_cannot_be_used_say_so(tmp_path: Path, text: str, sentence: str) -> None:
    write(tmp_path, text, "who.toml")
    path = write(tmp_path, 'credentials = "who.toml"\n' + NODE)
    with pytest.raises(ConfigError, match=sentence):
        read_cluster_file(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cluster file .*nothing\.toml cannot be read"):
        read_cluster_file(tmp_path / "nothing.toml")


def test_a_node_or_bucket_nobody_has_is_answered_with_those_there_are(tmp_path: Path) -> None:
    file = read_cluster_file(write(tmp_path, 'buckets = ["x", "y"]\n' + NODE))
    with pytest.raises(ConfigError, match=r"node 'z' is not in .* there are a"):
        file.node("z")
    with pytest.raises(ConfigError, match="there are x, y"):
        file.bucket(None)
    assert file.bucket("y") == "y"


def test_two_urls_make_a_file_of_two_nodes() -> None:
    file = two_nodes("couchbase://h:1", "couchbase://h:2", bucket="orders")
    assert (file.names, file.buckets) == (("source", "target"), ("orders",))
    with pytest.raises(ConfigError, match="are both at"):
        two_nodes("couchbase://h:1", "couchbase://h:1", bucket=None)
