"""tables: the Delta tables that `headrace sync` keeps, and how to read them.

delta.py commits files that tasks wrote, one commit per turn. changes.py is the append-only history
with its withdrawals and published positions, state.py the latest living version of each key,
views.py the ways to read both.

Imports: errors, history, spark.
"""
