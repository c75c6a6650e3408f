"""UPR/DCP, Couchbase's Database Change Protocol, in Python.

Layers, bytes at the bottom; each may import those before it in its row and nothing above:

    errors, history    words and rules without input or output
    wire               bytes <-> frames <-> messages, dialects as tables
    protocol           state machines: no clock, no socket, no thread
    store, columns     durable vbuckets; frames -> Arrow columns
    client, node       consumers and the embedded server
    cli                the `headrace` command

Importing this package loads none of them: an import names the layer it takes from, as in
`from headrace.wire.codec import decode`.

Imports: nothing.
"""

__all__ = ["__version__"]

__version__ = "0.1.0"
