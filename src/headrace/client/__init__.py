"""client: consumers of change streams, and the few other things a client asks a node.

The front door: bucket.py (connect, Bucket), reader.py (what a batch and its tokens are), options.py
and plan.py (from options to a running reader).

Without a socket: topology.py knows which node has which vbucket, courses.py what every vbucket's
stream is to do next, bulk.py turns a receive buffer into rows and events, shelf.py holds rows until
their snapshot is whole, gate.py until they are on disk, intake.py is the queue to the application,
steering.py what both skins decide. The skins: link.py and runner.py block, aio.py is asyncio.

Beside them: address.py, access.py and dial.py (getting in), kv.py (questions), writer.py
(documents), manifest.py, filters.py, changes.py, tokens.py, probe.py, health.py.

Imports: columns, errors, history, protocol, wire.
"""
