"""The embedded node: ordinary and change-stream connections in front of durable vbuckets.

`server` listens and looks after the buckets; `connection` turns a socket into frames and back;
`session` knows who is there and finds the function in `commands` that answers; `bucket_host` joins
a stored bucket with the rules its store does not have (locks, collections, names of change-stream
connections). After OPEN a `producer` answers the change-stream messages of its connection.

Imports: errors, history, wire, protocol, store.
"""
