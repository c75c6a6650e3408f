"""State machines of the protocol: no socket, no clock, no thread, no randomness of their own.

`decision` answers a stream request; `flow` counts windows and noops; `scram` proves who one is;
`stream` follows one vbucket stream at the consumer's end; `handshake` opens a connection;
`consumer` joins them: bytes in, events and bytes out (`events` names what it tells).

Imports: errors, history, wire.
"""
