"""demo: a whole pipeline on one machine, in about two minutes: something moving, something true.

A node in a process of its own, a shop that writes to it, the pipeline that lands every change in
tables, a failover with loss in the middle, the rollback on its way into the tables, and at the end
the proof that tables and source agree. Nothing in it is staged: each number is counted or measured
where it comes from.

Imports: wire, client, spark, cli (of which it uses the admin API's client, the node's command and
the runner of `headrace sync`).
"""
