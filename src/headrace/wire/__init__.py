"""wire: bytes <-> messages, every generation of the protocol, both directions.

frame.py cuts frames; messages.py (streams), kv.py (documents), subdoc.py and admin.py say what can
be said; layouts.py and kv_layouts.py hold one row per layout and dialect; codec.py reads the rows.
No clock, no socket, no state but the bytes of an unfinished frame.

Imports: errors.
"""
