"""Connection strings as the SDKs have them.

    couchbase://host[:port][,host[:port]...][/bucket][?option=value&...]
    couchbases://...                                  the same inside TLS

Rules
- Ports left out are 11210, 11207 inside TLS. IPv6 addresses stand in brackets.
- A string without a scheme is couchbase://.
- An option nobody knows, or one given twice, is refused: a misspelt option that is ignored is
  worse than none. Names the SDKs use for the same thing are synonyms.
- Errors name the part of the string that is wrong and what is allowed there.
- User and password never stand in the string: strings end in logs.

Imports: errors.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from headrace.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

PORT: Final = 11210
TLS_PORT: Final = 11207
HOSTS_MAX: Final = 64
SCHEMES: Final = {"couchbase": False, "couchbases": True}
NETWORKS: Final = ("auto", "default", "external")

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_HOST: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,253}[A-Za-z0-9_.])?")
_BUCKET: Final = re.compile(r"[A-Za-z0-9_.%-]{1,100}")


@dataclass(frozen=True, slots=True, order=True)
class NodeAddress:
    """Where a node listens for us."""

    host: str
    port: int

    def __str__(self) -> str:
        """As it stands in a connection string."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """What a connection string says."""

    nodes: tuple[NodeAddress, ...]
    tls: bool = False
    bucket: str | None = None
    options: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        """The connection string again, options left out."""
        scheme = "couchbases" if self.tls else "couchbase"
        hosts = ",".join(str(node) for node in self.nodes)
        return f"{scheme}://{hosts}/{self.bucket}" if self.bucket else f"{scheme}://{hosts}"


def parse_address(text: str) -> Address:
    """Read a connection string, or say which part of it is wrong."""
    if not text.strip():
        raise ConfigError(
            "the connection string is empty; wanted is couchbase://host[:port][,host...][/bucket]"
        )
    rest, tls = _scheme(text.strip())
    rest, _, query = rest.partition("?")
    hosts, slash, path = rest.partition("/")
    return Address(
        nodes=_nodes(hosts, TLS_PORT if tls else PORT),
        tls=tls,
        bucket=_bucket(path) if slash and path else None,
        options=_options(query),
    )


def _scheme(text: str) -> tuple[str, bool]:
    found = _SCHEME.match(text)
    if found is None:
        if "://" in text:
            raise ConfigError(f"scheme {text.partition('://')[0]!r}; allowed: {_names(SCHEMES)}")
        return text, False
    tls = SCHEMES.get(found.group(1).lower())
    if tls is None:
        raise ConfigError(f"scheme {found.group(1)!r}; allowed: {_names(SCHEMES)}")
    return text[found.end() :], tls


def _nodes(text: str, port: int) -> tuple[NodeAddress, ...]:
    if "@" in text:
        raise ConfigError(
            "the connection string holds a user; user and password are given beside it, so that "
            "the string can be logged"
        )
    parts = [part.strip() for part in re.split(r"[,;]", text)]
    if len(parts) > HOSTS_MAX:
        raise ConfigError(f"{len(parts)} hosts, allowed 1..{HOSTS_MAX}")
    return tuple(dict.fromkeys(_node(part, port) for part in parts))


def _node(text: str, port: int) -> NodeAddress:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        if not bracket or not re.fullmatch(r"[0-9A-Fa-f:.%\w]+", host):
            raise ConfigError(f"host {text!r}; an IPv6 address stands in brackets: [::1]:11210")
    elif text.count(":") > 1:
        raise ConfigError(f"host {text!r}; an IPv6 address stands in brackets: [::1]:11210")
    else:
        host, colon, rest = text.partition(":")
        rest = colon + rest
        if not _HOST.fullmatch(host):
            raise ConfigError(f"host {host!r}; allowed: a name or an address, at least one")
    if not rest:
        return NodeAddress(host, port)
    number = rest.removeprefix(":")
    if not rest.startswith(":") or not number.isdecimal() or not 1 <= int(number) <= 0xFFFF:
        raise ConfigError(f"port {number!r} of host {host!r}; allowed: 1..65535")
    return NodeAddress(host, int(number))


def _bucket(path: str) -> str:
    name = unquote(path.rstrip("/"))
    if not _BUCKET.fullmatch(name):
        raise ConfigError(
            f"bucket {name!r}; allowed: 1 to 100 letters, digits and _ . % -, and nothing after it"
        )
    return name


def _options(query: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in query.split("&") if query else ():
        spelt, equals, value = part.partition("=")
        if not equals:
            raise ConfigError(f"option {spelt!r} has no value; wanted is {spelt}=value")
        name = SYNONYMS.get(spelt, spelt)
        check = OPTIONS.get(name)
        if check is None:
            raise ConfigError(f"option {spelt!r} is unknown; allowed: {_names(OPTIONS)}")
        if name in found:
            raise ConfigError(f"option {name!r} stands twice")
        found[name] = check(spelt, unquote(value))
    return found


def _one_of(allowed: dict[str, str]) -> Callable[[str, str], str]:
    def check(name: str, value: str) -> str:
        if value.lower() not in allowed:
            raise ConfigError(f"option {name}={value}; allowed: {_names(allowed)}")
        return allowed[value.lower()]

    return check


def _seconds(name: str, value: str) -> str:
    """A time as the SDKs write it: seconds, or a number with ms, s or m."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m)?", value)
    if found is None or float(found.group(1)) <= 0:
        raise ConfigError(f"option {name}={value}; allowed: a time such as 2.5, 2500ms, 10s, 1m")
    return str(float(found.group(1)) * {"ms": 0.001, "s": 1.0, "m": 60.0}[found.group(2) or "s"])


def _text(name: str, value: str) -> str:
    if not value:
        raise ConfigError(f"option {name} is empty; give a path or a name")
    return value


_YES_NO: Final = {"true": "true", "on": "true", "1": "true", "false": "", "off": "", "0": ""}

OPTIONS: Final[dict[str, Callable[[str, str], str]]] = {
    "network": _one_of({name: name for name in NETWORKS}),
    "kv_connect_timeout": _seconds,
    "trust_certificate": _text,
    "client_certificate": _text,
    "client_key": _text,
    "tls_verify": _one_of({"peer": "peer", "none": "none", "no_verify": "none", "on": "peer"}),
    "compression": _one_of(_YES_NO),
    "dialect": _text,
}
"""Option -> what checks and settles its value."""

SYNONYMS: Final = {
    "connect_timeout": "kv_connect_timeout",
    "config_total_timeout": "kv_connect_timeout",
    "truststorepath": "trust_certificate",
    "certpath": "client_certificate",
    "keypath": "client_key",
    "ssl": "tls_verify",
    "enable_compression": "compression",
}


def _names(table: dict[str, bool] | dict[str, str] | dict[str, Callable[[str, str], str]]) -> str:
    return ", ".join(table)
