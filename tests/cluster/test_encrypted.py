"""The four commands between nodes that speak TLS only and know their users."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pytest

from headrace.cli.exits import Exit
from headrace.client.bucket import connect
from headrace.client.changes import Change
from headrace.client.writer import Document
from headrace.cluster.cluster_file import read_cluster_file
from headrace.cluster.manager import Cluster
from headrace.node.config import BucketConfig, NodeConfig
from headrace.node.tls import make_certificate
from headrace.node.users import Role, User, Users
from headrace.store import BucketSettings
from headrace.testing import RunningNode, running_node
from headrace.wire.opcodes import VBucketState
from tests.cli.node_for_commands import call

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

S = VBucketState
VBUCKETS: Final = 6
USER: Final = "manager"
READER: Final = "reader"
PASSWORD: Final = "of this test"  # noqa: S105 - of nodes that live for one test
OTHER_PASSWORD: Final = "of node b alone"  # noqa: S105 - as above
COMMANDS: Final = {
    "replicate": ("replicate", "{file}", "--once"),
    "move": ("move", "{file}", "--vbuckets", "1", "--to", "b"),
    "rebalance": ("rebalance", "{file}"),
    "failover": ("failover", "{file}", "c", "--force"),
}


@dataclass
class EncryptedNodes:
    """Nodes without a plain port; b has a password of its own."""

    directory: Path
    running: dict[str, RunningNode] = field(default_factory=dict)

    @property
    def path(self) -> Path:
        return self.directory / "cluster.toml"

    @property
    def trust(self) -> Path:
        return self.directory / "tls" / "certificate.pem"

    def port(self, name: str) -> int:
        port = self.running[name].node.ports.tls
        assert port is not None
        return port

    def write_files(
        self,
        *,
        user: str = USER,
        password: str = PASSWORD,
        trust: str = "tls/certificate.pem",
        scheme: str = "couchbases",
    ) -> None:
        lines = ["replicas = 1", 'credentials = "manager.toml"']
        for name in self.running:
            lines += [f"[nodes.{name}]", f'url = "{scheme}://127.0.0.1:{self.port(name)}"']
            lines += ['credentials = "b.toml"'] if name == "b" else []
        self.path.write_text("\n".join(lines) + "\n")
        for file, secret in (("manager.toml", password), ("b.toml", OTHER_PASSWORD)):
            said = f'user = "{user}"\npassword = "{secret}"\n'
            said += f'trust = "{trust}"\n' if trust else ""
            (self.directory / file).write_text(said)

    def call(self, command: str, code: int = 0) -> str:
        """Run one of the commands; what it said on standard error."""
        words = [word.format(file=self.path) for word in COMMANDS[command]]
        return call(*words, code=code).stderr

    def states(self) -> list[dict[str, VBucketState | None]]:
        """Vbucket -> node -> the state of its copy, as a manager sees it."""

        async def main() -> list[dict[str, VBucketState | None]]:
            cluster = Cluster(read_cluster_file(self.path), "default")
            try:
                found = {name: await cluster.nodes[name].copies(VBUCKETS) for name in self.running}
            finally:
                await cluster.close()
            return [
                {name: copies[number].state for name, copies in found.items()}
                for number in range(VBUCKETS)
            ]

        return asyncio.run(main())


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[EncryptedNodes]:
    found = EncryptedNodes(tmp_path)
    tls = make_certificate(tmp_path / "tls")
    with ExitStack() as stack:
        for name in "abc":
            password = OTHER_PASSWORD if name == "b" else PASSWORD
            # Whoever only reads is the same everywhere: a consumer has one password.
            users = Users(
                (
                    User(name=USER, password=password, role=Role.ADMIN),
                    User(name=READER, password=PASSWORD, role=Role.WRITE),
                )
            )
            config = NodeConfig(
                port=None,
                tls=tls,
                users=users,
                data=tmp_path / name,
                node_name=name,
                buckets=(BucketConfig(settings=BucketSettings(vbuckets=VBUCKETS)),),
            )
            found.running[name] = stack.enter_context(running_node(config=config))
        found.write_files()
        yield found


def test_replicas_moves_balance_and_failover_work_inside_tls(nodes: EncryptedNodes) -> None:
    trust = f"?trust_certificate={nodes.trust}"
    url = f"couchbases://127.0.0.1:{nodes.port('a')},127.0.0.1:{nodes.port('b')}/default{trust}"
    with connect(url, user=READER, password=PASSWORD) as bucket, bucket.writer() as writer:
        for number in range(60):
            writer.put(Document(b"key-%d" % number, b"1"))
    nodes.call("replicate")
    assert sorted(nodes.states()[1].values(), key=str) == [S.ACTIVE, S.REPLICA, None]
    nodes.call("move")
    assert nodes.states()[1]["b"] is S.ACTIVE
    nodes.call("rebalance")
    owners = [name for row in nodes.states() for name, state in row.items() if state is S.ACTIVE]
    assert sorted(owners) == ["a", "a", "b", "b", "c", "c"]
    nodes.call("failover")
    with connect(url, user=READER, password=PASSWORD) as bucket:
        changes = bucket.follow(since="beginning", until="now")
        held = {one.key for one in changes if isinstance(one, Change)}
        assert held == {b"key-%d" % number for number in range(60)}
        assert {node.port for node in bucket.cluster_map.nodes} <= {
            nodes.port(one) for one in "abc"
        }
    assert {row["c"] for row in nodes.states()} <= {S.DEAD, S.REPLICA, None}, "c serves nothing"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_password_is_one_sentence(nodes: EncryptedNodes, command: str) -> None:
    nodes.write_files(password="guessed")  # noqa: S106 - wrong on purpose
    said = nodes.call(command, Exit.FAILED)
    assert said.count("\n") == 1
    assert f"'{USER}'" in said
    assert "guessed" not in said
    assert [row["a"] for row in read_states(nodes)] == [S.ACTIVE] * VBUCKETS


def read_states(nodes: EncryptedNodes) -> list[dict[str, VBucketState | None]]:
    nodes.write_files()
    return nodes.states()


@pytest.mark.parametrize("command", COMMANDS)
def test_a_user_who_may_only_write_changes_nothing(nodes: EncryptedNodes, command: str) -> None:
    nodes.write_files(user=READER)
    (nodes.directory / "b.toml").write_text((nodes.directory / "manager.toml").read_text())
    said = nodes.call(command, Exit.FAILED)
    assert said.count("\n") == 1
    assert [row["a"] for row in read_states(nodes)] == [S.ACTIVE] * VBUCKETS


@pytest.mark.parametrize("command", COMMANDS)
def test_a_certificate_nobody_vouches_for_is_one_sentence(
    nodes: EncryptedNodes, command: str
) -> None:
    nodes.write_files(trust="")
    said = nodes.call(command, Exit.FAILED)
    assert said.count("\n") == 1
    assert "certificate" in said


@pytest.mark.parametrize("command", COMMANDS)
def test_talking_without_tls_to_a_node_that_wants_it_is_one_sentence(
    nodes: EncryptedNodes, command: str
) -> None:
    nodes.write_files(scheme="couchbase")
    said = nodes.call(command, Exit.FAILED)
    assert said.count("\n") == 1
    assert "TLS" in said
