"""headrace serve: run a node until it is told to stop.

Options come from the command line, or from a TOML file (``--config``) whose keys are the options'
names; the command line wins. Passwords are never on the command line: ``--users FILE`` (see
docs/guide/serve.md). Without a users file everyone on this machine has full access, and a login is
printed for clients that insist on one.

Imports: errors, node, store, wire.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import tempfile
import tomllib
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.node.config import NodeConfig, TlsFiles
    from headrace.node.server import Node
    from headrace.web.page import Page

ADMINISTRATOR: Final = "Administrator"
WEB_PORT: Final = 8300
CONFIG_SIZE_MAX: Final = 1024 * 1024
LOG_LEVELS: Final = ("debug", "info", "warning", "error")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Every choice of the command, from either source; None: not said."""

    data: Path | None = None
    memory: bool | None = None
    host: str | None = None
    port: int | None = None
    node_name: str | None = None
    vbuckets: int | None = None
    bucket: tuple[str, ...] = ()
    users: Path | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    tls_self_signed: bool | None = None
    tls_port: int | None = None
    tls_only: bool | None = None
    metrics_port: int | None = None
    admin_port: int | None = None
    admin_file: Path | None = None
    web: int | None = None
    web_host: str | None = None
    tables: tuple[Path, ...] = ()
    scenario: Path | None = None
    log_format: str | None = None
    log_level: str | None = None
    port_file: Path | None = None
    flush: bool | None = None
    lww: bool | None = None
    memory_quota_mb: int | None = None


_PATHS: Final = frozenset(
    {"data", "users", "tls_cert", "tls_key", "tls_client_ca", "port_file", "admin_file", "scenario"}
)
_KINDS: Final[dict[str, type]] = {
    **dict.fromkeys(_PATHS, str),
    **dict.fromkeys(("memory", "tls_self_signed", "tls_only", "flush", "lww"), bool),
    **dict.fromkeys(("port", "vbuckets", "tls_port", "metrics_port", "admin_port", "web"), int),
    "memory_quota_mb": int,
    **dict.fromkeys(("host", "node_name", "web_host", "log_format", "log_level"), str),
    "bucket": list,
    "tables": list,
}


def read_config(path: Path) -> Options:
    """The options of a TOML file; paths in it are relative to the file."""
    try:
        if path.stat().st_size > CONFIG_SIZE_MAX:
            raise ConfigError(f"config file {path} is over {CONFIG_SIZE_MAX} bytes")
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"config file {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"config file {path} is not TOML: {error}") from error
    values: dict[str, object] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        kind = _KINDS.get(name)
        if kind is None:
            known = ", ".join(sorted(_KINDS))
            raise ConfigError(f"config file {path}: {key!r} is unknown; allowed: {known}")
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise ConfigError(f"config file {path}: {key} is {value!r}, needs {kind.__name__}")
        if name in _PATHS:
            values[name] = path.parent / str(value)
        elif name == "tables":
            values[name] = tuple(path.parent / str(one) for one in table[key])
        elif isinstance(value, list):
            values[name] = tuple(str(one) for one in value)
        else:
            values[name] = value
    return Options(**values)  # type: ignore[arg-type]


def merged(options: Options, config: Path | None) -> Options:
    """The options of both sources; what the command line says wins."""
    if config is None:
        return options
    base = read_config(config)
    said = {
        field.name: value
        for field in fields(options)
        if (value := getattr(options, field.name)) not in (None, ())
    }
    return replace(base, **said)


def node_config(options: Options, tls: TlsFiles | None) -> tuple[NodeConfig, str]:
    """The node's configuration, and the password made for it ("" with a users file)."""
    from headrace.node.config import BucketConfig, ConflictResolution, NodeConfig
    from headrace.node.fault_script import read_scenario_file
    from headrace.node.users import Role, User, Users, read_users
    from headrace.store import BucketSettings

    if bool(options.memory) == (options.data is not None):
        raise ConfigError("give either --data DIR or --memory")
    settings = BucketSettings(vbuckets=64 if options.vbuckets is None else options.vbuckets)
    if options.memory_quota_mb is not None:
        settings = replace(settings, memory_quota=options.memory_quota_mb * 1024 * 1024)
    resolution = ConflictResolution.LAST_WRITE if options.lww else ConflictResolution.REVISION
    buckets = tuple(
        BucketConfig(
            name=name,
            settings=settings,
            conflict_resolution=resolution,
            as_created=options.vbuckets is None and options.memory_quota_mb is None,
        )
        for name in options.bucket or ("default",)
    )
    users = read_users(options.users) if options.users is not None else None
    password = "" if users is not None else secrets.token_urlsafe(12)
    login = None
    if users is None:
        login = Users((User(name=ADMINISTRATOR, password=password, role=Role.ADMIN),))
    config = NodeConfig(
        host=options.host or "127.0.0.1",
        port=None if options.tls_only else (11210 if options.port is None else options.port),
        node_name=options.node_name or "",
        tls_port=11207 if options.tls_port is None else options.tls_port,
        tls=tls,
        data=options.data,
        buckets=buckets,
        users=users,
        login=login,
        metrics_port=options.metrics_port,
        admin_port=0 if options.admin_port is None and options.admin_file else options.admin_port,
        web_port=options.web,
        web_host=options.web_host or "127.0.0.1",
        scenario=() if options.scenario is None else read_scenario_file(options.scenario),
        flush=bool(options.flush),
    )
    return config, password


@contextlib.contextmanager
def tls_files(options: Options) -> Iterator[TlsFiles | None]:
    """The certificate to serve with: given, made for this run, or none."""
    from headrace.node.config import TlsFiles
    from headrace.node.tls import make_certificate

    if (options.tls_cert is None) != (options.tls_key is None):
        raise ConfigError("--tls-cert and --tls-key go together")
    if options.tls_cert is not None and options.tls_self_signed:
        raise ConfigError("give either --tls-cert and --tls-key or --tls-self-signed")
    authority = options.tls_client_ca
    if authority is not None and options.tls_cert is None and not options.tls_self_signed:
        raise ConfigError("--tls-client-ca needs --tls-cert and --tls-key, or --tls-self-signed")
    if options.tls_cert is not None and options.tls_key is not None:
        files = TlsFiles(certificate=options.tls_cert, key=options.tls_key)
        yield replace(files, client_authority=authority)
    elif not options.tls_self_signed:
        yield None
    elif options.data is not None:
        files = make_certificate(options.data / ".tls", host=options.host or "127.0.0.1")
        yield replace(files, client_authority=authority)
    else:
        with tempfile.TemporaryDirectory(prefix="headrace-tls-") as directory:
            files = make_certificate(Path(directory), host=options.host or "127.0.0.1")
            yield replace(files, client_authority=authority)


def page_of(node: Node, options: Options) -> Page:
    """The live page of a node; nothing of it is loaded where nobody asks for it."""
    from headrace.web.page import Page

    return Page(node, tables=options.tables)


def announcement(node: Node, password: str, page: str = "") -> str:
    """Where the node listens and how to connect: lines to copy."""
    host = node.config.host
    lines = []
    names = ", ".join(node.hosts)
    where = "in memory" if node.config.data is None else f"in {node.config.data}"
    lines.append(f"headrace serves {names} {where}")
    schemes = [("couchbase", node.ports.plain, ""), ("couchbases", node.ports.tls, " (TLS)")]
    for scheme, port, word in schemes:
        if port is not None:
            lines.append(f"  listening on {host}:{port}{word}: {scheme}://{host}:{port}")
    if node.config.tls is not None:
        lines.append(f"  certificate   {node.config.tls.certificate}")
    if node.metrics_port is not None:
        lines.append(f"  metrics       http://127.0.0.1:{node.metrics_port}/metrics")
    if page:
        lines.append(f"  live page     {page}")
    if node.admin is not None:
        lines.append(f"  faults        export HEADRACE_ADMIN={node.admin.url}")
        lines.append(f"                export HEADRACE_ADMIN_TOKEN={node.admin.token}")
    user, secret = (ADMINISTRATOR, password) if password else ("USER", "PASSWORD")
    if password:
        lines.append("  access        open to everyone on this machine; for clients that log in:")
        lines.append(f"                {user} / {password}")
    port = node.ports.plain if node.ports.plain is not None else node.ports.tls
    scheme = "couchbase" if node.ports.plain is not None else "couchbases"
    lines.append("connect:")
    lines.append(
        f"  Cluster('{scheme}://{host}:{port}', "
        f"ClusterOptions(PasswordAuthenticator('{user}', '{secret}')))"
    )
    bucket = next(iter(node.hosts))
    words = [f"headrace tail {scheme}://{host}:{port}/{bucket}"]
    if not password:
        words.append("--user USER")
    if node.ports.plain is None and node.config.tls is not None:
        words.append(f"--trust {node.config.tls.certificate}")
    lines.append("  " + " ".join(words))
    return "\n".join(lines)


def write_port_file(path: Path, node: Node) -> None:
    """Write the port, in one step, for scripts that wait for it."""
    port = node.ports.plain if node.ports.plain is not None else node.ports.tls
    draft = path.with_name(path.name + ".new")
    try:
        draft.write_text(f"{port}\n", encoding="ascii")
        draft.replace(path)
    except OSError as error:
        raise ConfigError(f"port file {path} cannot be written: {error.strerror}") from error


def write_admin_file(path: Path, node: Node) -> None:
    """Write where the admin API listens and its token, for `headrace fault --admin FILE`."""
    assert node.admin is not None
    draft = path.with_name(path.name + ".new")
    content = json.dumps({"url": node.admin.url, "token": node.admin.token}) + "\n"
    try:
        draft.unlink(missing_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(content)
        draft.replace(path)
    except OSError as error:
        raise ConfigError(f"admin file {path} cannot be written: {error.strerror}") from error


def run(options: Options) -> None:
    """Serve until SIGTERM or SIGINT."""
    from headrace.node.logs import FORMATS, configure
    from headrace.node.server import Node

    form = options.log_format or FORMATS[0]
    level = (options.log_level or "info").lower()
    if level not in LOG_LEVELS:
        raise ConfigError(f"log level {level!r} is unknown; allowed: {', '.join(LOG_LEVELS)}")
    configure(form, level=logging.getLevelNamesMapping()[level.upper()])
    with tls_files(options) as tls:
        config, password = node_config(options, tls)
        node = Node(config)
        page = page_of(node, options) if options.web is not None else None

        def ready(started: Node) -> None:
            if options.port_file is not None:
                write_port_file(options.port_file, started)
            if options.admin_file is not None:
                write_admin_file(options.admin_file, started)
            click.echo(announcement(started, password, page.url if page is not None else ""))

        asyncio.run(node.serve(ready=ready, beside=page))


_FILE: Final = click.Path(path_type=Path, dir_okay=False)


@click.command("serve")
@click.option("--data", type=click.Path(path_type=Path, file_okay=False), help="Keep data in DIR.")
@click.option("--memory", is_flag=True, default=None, help="Keep data in memory alone.")
@click.option("--host", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("--port", type=int, help="Port; 0 takes any free one.  [default: 11210]")
@click.option("--name", "node_name", help="Name in cluster maps.  [default: host:port]")
@click.option("--vbuckets", type=int, help="Vbuckets of a new bucket, 1..1024.  [default: 64]")
@click.option("--bucket", multiple=True, metavar="NAME", help="A bucket; may be repeated.")
@click.option("--config", type=_FILE, help="TOML file with these options.")
@click.option("--users", type=_FILE, help="File of users and passwords; needed beyond loopback.")
@click.option("--tls-cert", type=_FILE, help="Certificate chain, PEM.")
@click.option("--tls-key", type=_FILE, help="Its private key, PEM.")
@click.option(
    "--tls-client-ca", type=_FILE, help="Authority of client certificates, PEM: they log in."
)
@click.option("--tls-self-signed", is_flag=True, default=None, help="Make a certificate.")
@click.option("--tls-port", type=int, help="Port for TLS; 0: any.  [default: 11207]")
@click.option("--tls-only", is_flag=True, default=None, help="Do not listen without TLS.")
@click.option("--metrics-port", type=int, help="Prometheus metrics on loopback; 0: any.")
@click.option("--admin-port", type=int, help="Faults on demand, on loopback; 0: any.")
@click.option("--admin-file", type=_FILE, help="Write the admin URL and token here.")
@click.option(
    "--web",
    type=int,
    is_flag=False,
    flag_value=WEB_PORT,
    metavar="[PORT]",
    help=f"Live page on loopback; 0: any port.  [{WEB_PORT} without a number]",
)
@click.option("--web-host", metavar="HOST", help="Show it elsewhere; needs --users and TLS.")
@click.option(
    "--tables",
    type=click.Path(path_type=Path, file_okay=False),
    multiple=True,
    help="Tables of `headrace sync` to show there; may be repeated.",
)
@click.option("--scenario", type=_FILE, help="Faults said in advance, one per line.")
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    help="How log lines are written.  [default: text]",
)
@click.option(
    "--log-level", type=click.Choice(LOG_LEVELS), help="The least that is logged.  [default: info]"
)
@click.option("--port-file", type=_FILE, help="Write the port here once it listens.")
@click.option("--flush", is_flag=True, default=None, help="Let FLUSH empty a bucket.")
@click.option("--lww", is_flag=True, default=None, help="Conflicts: the last write wins.")
@click.option("--memory-quota-mb", type=int, help="Memory of each bucket.  [default: 256]")
def command(config: Path | None, **values: object) -> None:
    """Run a node: documents in, change streams out."""
    run(merged(Options(**values), config))  # type: ignore[arg-type]
