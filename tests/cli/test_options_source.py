"""Options of the commands that talk to a bucket, against nodes that run."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import pytest

from headrace.cli import watch
from headrace.cli.capture import Forwarder
from headrace.cli.finding import good
from headrace.client.bucket import connect
from headrace.client.tokens import TokenFile
from headrace.client.writer import Document
from headrace.node.config import NodeConfig
from headrace.node.tls import make_certificate
from headrace.node.users import read_users
from tests.cli.node_for_commands import call, put
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
from tests.node.running import SMALL, running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytest.importorskip("cryptography", reason="the extra `tls` makes the node's certificate")

TOKENS_OF: Final = {"{users}": "{user_tokens}"}
SOURCE: Final[dict[str, Value]] = {
    "--user": Value(
        "alice --password-file {secret}", "bob --password-file {secret}", url="{users}"
    ),
    "--password-file": Value("{secret} --user alice", url="{users}"),
    "--bucket": Value("default", "nope", url="{bare}"),
    "--trust": Value("{certificate}", "{tmp}/missing", url="{tls}"),
    "--certificate": Value(
        "{certificate} --key {key} --trust {certificate}", "{tmp}/missing", url="{tls}"
    ),
    "--key": Value(
        "{key} --certificate {certificate} --trust {certificate}",
        "{tmp}/missing --certificate {certificate}",
        url="{tls}",
    ),
    "--no-verify": Value(url="{tls}"),
    "--connect-seconds": Value("5"),
    "--dialect": Value("dcp-7", "dcp-99"),
}
"""The options of `headrace.cli.connecting.source_options`."""


@contextlib.contextmanager
def shown_once() -> Iterator[None]:
    """The page is there, and Ctrl-C comes at once."""
    show = watch.show

    async def brief(*words: Any, ready: Callable[[str], None], **more: Any) -> None:  # noqa: ANN401 - passed on
        task: asyncio.Task[None] | None = None

        def told(url: str) -> None:
            ready(url)
            assert task is not None
            task.cancel()

        task = asyncio.ensure_future(show(*words, ready=told, **more))
        with contextlib.suppress(asyncio.CancelledError):
            await task

    with mock.patch("headrace.cli.watch.show", brief):
        yield


@contextlib.contextmanager
def interrupted() -> Iterator[None]:
    """What would wait for Ctrl-C gets it at once."""
    threads = mock.Mock()
    threads.Event.return_value.wait.side_effect = KeyboardInterrupt
    with mock.patch("headrace.cli.replay.threading", threads):
        yield


@contextlib.contextmanager
def interrupted_while_listening() -> Iterator[None]:
    """Ctrl-C comes when the command listens, and only then."""
    main = threading.main_thread().ident
    assert main is not None

    def enter(forwarder: Forwarder) -> Forwarder:
        timer = threading.Timer(0.2, lambda: signal.pthread_kill(main, signal.SIGINT))
        timer.start()
        return forwarder

    with mock.patch.object(Forwarder, "__enter__", enter):
        yield


URL: Final = Value("{url}", "http://nowhere", base="{URL}")
FILE: Final = {"--xattrs": Value(), "--sync-writes": Value(), "--compression": Value()}

TABLES: Final[dict[str, Table]] = {
    "tail": Table(
        "{url} --since beginning --until now",
        {
            "URL": Value("{url}", "couchbase://127.0.0.1:1/default", base="{URL} --until now"),
            **SOURCE,
            "--since": Value("beginning", "yesterday-ish", base="{url} --until now"),
            "--until": Value("now", "tomorrow-ish", base="{url}"),
            "--tokens": Value("{tmp}/new.tokens", "{broken}", base="{url} --until now"),
            "--json": Value(),
            "--arrow": Value("{tmp}/rows.arrow", "{file}/rows.arrow"),
            "--parquet": Value("{tmp}/parquet", "{file}"),
            "--rows-per-file": Value("100", base="{url} --until now --parquet {tmp}/parquet2"),
            "--limit": Value("3"),
            "--vbucket": Value("1", "99"),
            "--collection": Value("_default._default", "shop.none"),
            "--scope": Value("_default", "none"),
            "--key-prefix": Value("k", ANY_TEXT),
            "--value-contains": Value("1", ANY_TEXT),
            "--field": Value("n=1", "no-equals-sign"),
            "--kind": Value("mutation"),
            "--no-value": Value(),
            **FILE,
            "--out-of-order": Value(),
            "--history": Value(),
            "--persisted-only": Value(url="{durable}"),
            "--name": Value("a-reader", f"'{'x' * 300}'"),
        },
    ),
    "status": Table(
        "{url} --once",
        {
            "URL": URL,
            **SOURCE,
            "--once": Value(),
            "--json": Value(),
            "--tokens": Value("{tokens}", "{broken}"),
            "--all": Value(),
            "--interval": Value("0.5"),
        },
    ),
    "watch": Table(
        "{url}",
        {
            "URL": URL,
            **SOURCE,
            "--port": Value("0"),
            "--no-follow": Value(),
            "--tables": Value("{tmp}"),
            "--url-file": Value("{tmp}/page.url", "{file}/inner"),
        },
        around=shown_once,
    ),
    "load": Table(
        "{url} --generate 20 --prefix made-",
        {
            "URL": Value("{url}", "http://nowhere", base="{URL} --generate 5"),
            **SOURCE,
            "FILE": Value("{lines}", "{tmp}/missing", base="{url} {FILE}"),
            "--format": Value("jsonl", base="{url} {lines}"),
            "--key-field": Value("'user::{{id}}'", "'user::{{none}}'", base="{url} {lines}"),
            "--generate": Value("5", base="{url}"),
            "--keys": Value("3"),
            "--size": Value("64"),
            "--skew": Value("1"),
            "--deletes": Value("0.5"),
            "--expiring": Value("0.5 --expiry 100"),
            "--expiry": Value("100 --expiring 0.5"),
            "--prefix": Value("other-", f"'{'x' * 300}'"),
            "--seed": Value("7"),
            "--rate": Value("500.5", "0"),
            "--collection": Value("_default._default", "shop.none"),
        },
    ),
    "tokens check": Table(
        "{url} {tokens}",
        {
            "URL": Value("{url}", "http://nowhere", base="{URL} {tokens}"),
            **{
                name: replace(value, base=f"{{url}} {TOKENS_OF.get(value.url or '', '{tokens}')}")
                for name, value in SOURCE.items()
            },
            "FILE": Value("{tokens}", "{broken}", base="{url} {FILE}"),
            "--all": Value(),
            "--json": Value(),
        },
    ),
    "capture": Table(
        "{url} {tmp}/talk.pcap",
        {
            "URL": Value("{url}", "http://nowhere", base="{URL} {tmp}/talk.pcap"),
            **SOURCE,
            "OUT": Value("{tmp}/other.pcap", "{file}/inner.pcap", base="{url} {OUT}"),
            "--since": Value("now", "yesterday-ish"),
            "--until": Value("now", "tomorrow-ish"),
            "--listen": Value("0"),
            **FILE,
        },
        around=interrupted_while_listening,
    ),
    "replay": Table(
        "{recorded}",
        {
            "FILE": Value("{recorded}", "{tmp}/missing", base="{FILE}"),
            "--listen": Value("0"),
            "--to": Value("{url}", "http://nowhere"),
            "--user": Value("alice", "bob", base="{recorded} --to {users}"),
            "--connection": Value("1", "99"),
            "--dialect": Value("dcp-7", "dcp-99"),
            "--port-file": Value("{tmp}/port", "{file}/inner"),
        },
        around=interrupted,
        environment={"HEADRACE_PASSWORD": "correct horse"},
    ),
    "doctor": Table(
        "{url}",
        {
            "URL": Value("{url}", "http://nowhere", base="{URL}"),
            **SOURCE,
            "--data": Value("{tmp}", "{file}"),
            "--spark": Value(),
            "--json": Value(),
        },
        around=lambda: mock.patch(
            "headrace.cli.installation.spark_session",
            return_value=good("spark session", "not started here; test_doctor.py does"),
        ),
    ),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    tmp = tmp_path_factory.mktemp("source")
    made = secrets(tmp)
    (tmp / "lines.jsonl").write_text('{"id": 1}\n{"id": 2}\n', encoding="utf-8")
    users = tmp / "users.toml"
    users.write_text('[users.alice]\npassword = "correct horse"\nrole = "admin"\n')
    users.chmod(0o600)
    files = make_certificate(tmp / "tls")
    with (
        running(NodeConfig(buckets=(SMALL,), tls=files, tls_port=0)) as plain,
        running(NodeConfig(buckets=(SMALL,), users=read_users(users))) as secured,
        running(NodeConfig(buckets=(SMALL,), data=tmp / "data")) as durable,
    ):
        bare = f"couchbase://127.0.0.1:{plain.port}"
        put(f"{bare}/default", *(Document(b"k%d" % n, b'{"n": 1}') for n in range(40)))
        with connect(f"{bare}/default") as bucket:
            TokenFile(tmp / "my.tokens").save(bucket.tokens_now())
        with connect(
            f"couchbase://127.0.0.1:{secured.port}/default",
            user="alice",
            password=(tmp / "secret").read_text(encoding="utf-8").strip(),
        ) as bucket:
            TokenFile(tmp / "user.tokens").save(bucket.tokens_now())
        call("capture", f"{bare}/default", str(tmp / "recorded.pcap"))
        yield {
            **made,
            "tmp": str(tmp),
            "url": f"{bare}/default",
            "bare": bare,
            "tls": f"couchbases://127.0.0.1:{plain.node.ports.tls}/default",
            "users": f"couchbase://127.0.0.1:{secured.port}/default",
            "durable": f"couchbase://127.0.0.1:{durable.port}/default",
            "certificate": str(files.certificate),
            "key": str(files.key),
            "tokens": str(tmp / "my.tokens"),
            "user_tokens": str(tmp / "user.tokens"),
            "lines": str(tmp / "lines.jsonl"),
            "recorded": str(tmp / "recorded.pcap"),
        }


@pytest.mark.parametrize("case", good_cases(TABLES), ids=str)
def test_a_good_value_works(case: Case, world: World) -> None:
    check_good(case, world)


@pytest.mark.parametrize("case", bad_cases(TABLES), ids=str)
def test_a_bad_value_is_one_sentence(case: Case, world: World) -> None:
    check_bad(case, world)
