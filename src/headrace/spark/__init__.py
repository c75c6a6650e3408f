"""spark: change streams into Spark and into tables, exactly once, with rollback as data.

java.py and session.py start Spark. feed.py is what this layer asks of a producer, and
client_feed.py gives it through the client. positions.py holds the rules (whole snapshots, rollback
to a boundary, positions beside the data), progress.py applies them while a task reads, rows.py
turns the columns of the wire into the rows users see. tables/ keeps the `changes` and `state`
tables, landing.py writes their files from tasks, durable.py puts them on the disk, jobs.py runs
tasks on Spark, sync.py is the commit loop, verify.py and lives.py look at what it made. source.py
and its readers are `format("dcp")`; sink.py is its way back.

Nothing here imports pyspark or deltalake before it is used.

Imports: errors, history, wire, columns, client.
"""
