"""web: the live page of a node, or of any source of change streams, on a loopback port.

`picture.py` is what is seen at one moment and how two moments differ, `happenings.py` what took
place between them, `source.py` what a page needs to ask, `node_source.py` and `client_source.py`
who answers (a node in this process; statistics and our own consumer), `tables.py` the pipeline's
tables, `hub.py` the looking, twice a second, and those who watch, `http.py` one answer of a small
HTTP server, `sessions.py` who is logged in, `server.py` the routes. `static` is the page itself:
plain HTML, CSS and ES modules, used as they are, nothing fetched from elsewhere.

Imports: errors, history, client, node, spark (its tables, when asked for).
"""
