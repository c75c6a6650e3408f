"""UPR/DCP, Couchbase's Database Change Protocol, in Python.

Layers, bytes at the bottom; each may import those before it in its row and nothing above:

    errors, history    words and rules without input or output
    wire               bytes <-> frames <-> messages, dialects as tables
    protocol           state machines: no clock, no socket, no thread
    store, columns     durable vbuckets; frames -> Arrow columns
    client, node       consumers and the embedded server
    cli                the `headrace` command

Importing this package loads none of them. `headrace.connect` and the other names of `PUBLIC` are
loaded when they are used; everything else names the layer it takes from, as in
`from headrace.wire.codec import decode`.

Imports: nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, Final

__all__ = [
    "Bucket",
    "Change",
    "Kind",
    "Rollback",
    "Tls",
    "TokenFile",
    "TokenSet",
    "Trouble",
    "__version__",
    "connect",
]

__version__ = "0.1.0"

PUBLIC: Final = {
    "Bucket": "headrace.client.bucket",
    "Change": "headrace.client.changes",
    "Kind": "headrace.client.changes",
    "Rollback": "headrace.client.changes",
    "Tls": "headrace.client.access",
    "TokenFile": "headrace.client.tokens",
    "TokenSet": "headrace.client.tokens",
    "Trouble": "headrace.client.changes",
    "connect": "headrace.client.bucket",
}
"""Name -> the module it is loaded from when it is first used."""


def __getattr__(name: str) -> Any:  # noqa: ANN401 - one function stands for names of every type
    """Load a public name; nothing is loaded before."""
    if name not in PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(PUBLIC[name]), name)
