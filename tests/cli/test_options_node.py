"""Options of the commands that run a node and make it fail."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import pytest

from headrace.client.bucket import connect
from headrace.client.writer import Document
from headrace.errors import HeadraceError
from headrace.node.config import NodeConfig
from headrace.node.fault_table import LEVERS
from headrace.node.server import Node
from headrace.node.tls import make_certificate
from headrace.testing import running_node
from tests.cli.node_for_commands import put
from tests.cli.option_kit import (
    ANY_TEXT,
    Case,
    Table,
    Value,
    World,
    bad_cases,
    check_bad,
    check_good,
    good_cases,
    secrets,
)
from tests.node.running import SMALL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.testing import RunningNode

pytest.importorskip("cryptography", reason="the extra `tls` makes the node's certificate")

READER: Final = "a-reader"
WAIT_SECONDS_MAX: Final = 30.0


@contextlib.contextmanager
def served_once() -> Iterator[None]:
    """The node listens, says so, and is told to stop."""
    serve = Node.serve

    async def brief(self: Node, *, ready: Callable[[Node], None], **more: Any) -> None:  # noqa: ANN401 - passed on
        task: asyncio.Task[None] | None = None

        def told(node: Node) -> None:
            ready(node)
            assert task is not None
            task.cancel()

        task = asyncio.ensure_future(serve(self, ready=told, **more))
        with contextlib.suppress(asyncio.CancelledError):
            await task

    with mock.patch.object(Node, "serve", brief), mock.patch("headrace.node.logs.configure"):
        yield


SERVE: Final = Table(
    "--memory --port 0 --vbuckets 2",
    {
        "--data": Value("{tmp}/data", base="--port 0 --vbuckets 2"),
        "--memory": Value(base="--port 0 --vbuckets 2"),
        "--host": Value("127.0.0.1", "no.such.host.invalid"),
        "--port": Value("0", "70000"),
        "--name": Value("first", ANY_TEXT),
        "--vbuckets": Value("4", "5000"),
        "--bucket": Value("orders", "no/slash"),
        "--config": Value("{config}", "{broken}", base=""),
        "--users": Value("{users}", "{file}"),
        "--tls-cert": Value("{certificate} --tls-key {key} --tls-port 0", "{file} --tls-key {key}"),
        "--tls-key": Value(
            "{key} --tls-cert {certificate} --tls-port 0", "{file} --tls-cert {certificate}"
        ),
        "--tls-client-ca": Value(
            "{certificate} --tls-cert {certificate} --tls-key {key} --tls-port 0",
            "{file} --tls-cert {certificate} --tls-key {key} --tls-port 0",
        ),
        "--tls-self-signed": Value("--tls-port 0"),
        "--tls-port": Value("0 --tls-self-signed", "70000 --tls-self-signed"),
        "--tls-only": Value("--tls-self-signed --tls-port 0"),
        "--metrics-port": Value("0", "70000"),
        "--admin-port": Value("0", "70000"),
        "--admin-file": Value("{tmp}/admin.json", "{file}/inner"),
        "--web": Value("0", "70000"),
        "--web-host": Value("127.0.0.1 --web 0", "no.such.host.invalid --web 0"),
        "--tables": Value("{tmp} --web 0"),
        "--scenario": Value("{scenario}", "{file}"),
        "--log-format": Value("json"),
        "--log-level": Value("error"),
        "--port-file": Value("{tmp}/port", "{file}/inner"),
        "--flush": Value(),
        "--lww": Value(),
        "--memory-quota-mb": Value("64", "0"),
    },
    around=served_once,
)

ADMIN: Final = {"HEADRACE_ADMIN": "{admin}", "HEADRACE_ADMIN_TOKEN": "{token}"}
BASES: Final[dict[str, str]] = {
    "failover": "--vbucket 0 --lose 1",
    "rollback": "--vbucket 0 --seqno 5",
    "purge": "",
    "drop-cursor": "",
    "pause": f"--connection {READER} --seconds 0.05",
    "slow": f"--connection {READER} --rate 100000",
    "resume": f"--connection {READER}",
    "cut": f"--connection {READER}",
    "refuse": "--opcode get --status ETMPFAIL",
    "delay-commits": "--seconds 0",
    "stop-persistence": "",
    "start-persistence": "",
    # A commit that this node will never make: armed, and lifted again by `clear`.
    "crash": "--commits 2000000",
    "set-state": "--vbucket 3 --state active",
    "clear": "",
}
PARAMETERS: Final[dict[str, Value]] = {
    "--vbucket": Value("3", "2000"),
    "--seqno": Value("5", "few"),
    "--lose": Value("0", "few"),
    "--bucket": Value("default", "nope"),
    "--count": Value("2", "0"),
    "--connection": Value(READER, "''"),
    "--seconds": Value("0.05", "soon"),
    "--rate": Value("100000", "0"),
    "--size": Value("10", "-1"),
    "--middle": Value(),
    "--opcode": Value("get", "no-such-opcode"),
    "--status": Value("ETMPFAIL", "SUCCESS"),
    "--commits": Value("2000000", "-1"),
    "--durable": Value(),
    "--state": Value("active", "sleepy"),
    "--when": Value("'after 1000s'", "'at midnight'"),
    "--json": Value(),
}
# Where an option needs others beside it than the lever's base has.
SPECIAL: Final[dict[str, Value]] = {
    "failover --seqno": Value("5", "few", base="--vbucket 2"),
    "failover --vbucket": Value("3", "2000", base="--lose 1"),
}


def lever_table(name: str) -> Table:
    options = [f"--{parameter.name}" for parameter in LEVERS[name].parameters]
    return Table(
        BASES[name],
        {
            option: SPECIAL.get(f"{name} {option}", PARAMETERS[option])
            for option in (*options, "--when", "--json")
        },
        environment=ADMIN,
    )


TABLES: Final[dict[str, Table]] = {
    "serve": SERVE,
    "fault": Table(
        "{OPTIONS} show vbuckets",
        {
            "--admin": Value("{admin_file}", "{broken}"),
            "--token-file": Value("{token_file}", "{tmp}/missing"),
            "--json": Value(),
        },
        environment=ADMIN,
    ),
    "fault list": Table("", {"--json": Value()}),
    "fault line": Table(
        "'now: clear'",
        {"TEXT": Value("'now: clear'", "'now: fly'", base="{TEXT}"), "--json": Value()},
        environment=ADMIN,
    ),
    "fault show": Table(
        "connections",
        {"PAGE": Value("scenario", base="{PAGE}"), "--json": Value()},
        environment=ADMIN,
    ),
    **{f"fault {name}": lever_table(name) for name in LEVERS},
}


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """A node with a disk, documents, an admin API and one consumer that always comes back."""
    data = tmp_path_factory.mktemp("node")
    with running_node(config=NodeConfig(buckets=(SMALL,), admin_port=0, data=data)) as started:
        url = f"{started.connection_string}/default"
        put(url, *(Document(b"k%d" % n, b"{}") for n in range(200)))
        with connect(url) as bucket:
            reader = bucket.follow(since="beginning", name=READER)

            def read() -> None:
                with contextlib.suppress(HeadraceError):
                    for _ in reader:
                        pass

            thread = threading.Thread(target=read, daemon=True)
            thread.start()
            yield started
            reader.close()
            thread.join(WAIT_SECONDS_MAX)


@pytest.fixture
def world(node: RunningNode, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    tmp = tmp_path_factory.mktemp("options")
    admin = node.node.admin
    assert admin is not None
    files = make_certificate(tmp / "tls")
    texts = {
        "config": "memory = true\nport = 0\nvbuckets = 2\n",
        "users": '[users.alice]\npassword = "correct horse"\n',
        "scenario": "after 1000s: clear\n",
        "admin_file": f'{{"url": "{admin.url}", "token": "{admin.token}"}}',
        "token_file": admin.token,
    }
    for name, text in texts.items():
        (tmp / name).write_text(text, encoding="utf-8")
        (tmp / name).chmod(0o600)
    wait_for_reader(node)
    yield {
        **secrets(tmp),
        **{name: str(tmp / name) for name in texts},
        "tmp": str(tmp),
        "admin": admin.url,
        "token": admin.token,
        "certificate": str(files.certificate),
        "key": str(files.key),
    }
    node.faults.clear()


def wait_for_reader(node: RunningNode) -> None:
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not any(
        connection.session.stream_name.startswith(READER.encode()) and connection.session.producer
        for connection in node.faults.on_loop(node.faults.connections)
    ):
        assert time.monotonic() < deadline, "the consumer did not come back"
        time.sleep(0.02)


@pytest.mark.parametrize("case", good_cases(TABLES), ids=str)
def test_a_good_value_works(case: Case, world: World) -> None:
    check_good(case, world)


@pytest.mark.parametrize("case", bad_cases(TABLES), ids=str)
def test_a_bad_value_is_one_sentence(case: Case, world: World) -> None:
    check_bad(case, world)
