"""cluster: several nodes as one: replicas, moves of vbuckets, failover, balance.

The manager stands beside the nodes, as in the original system: a node never dials. The manager
opens both ends of a stream, hands frames from one to the other as they are, and watches them go by.

    cluster_file   what a person wants: nodes, buckets, replicas
    chains         what is: the chain of every vbucket, as a cluster map with its age
    copies         what one node says of its copy of a vbucket, and how two copies compare
    planning       from what is to what is wanted: the fewest moves
    proxy          two byte streams in, two out; no socket, no clock
    steps          the words of a move: events in, actions out
    mover          one move as a table of steps; no socket, no clock
    journal        the moves that are under way, in a file
    nodes, links, manager, runner, replication   the same with sockets

Rules
- A vbucket has one active copy, or none and somebody is told; never two.
- What is decided is decided from what the nodes say, never from what the manager remembers.
- Before states are read to decide an interrupted move, the older connections of the same name are
  ended at both nodes: nothing that was under way can happen after the reading.

Imports: errors, history, wire, protocol, client.
"""
