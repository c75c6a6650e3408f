"""The simulation: nodes, a manager, writers and consumers on one clock, network and disk.

See tests/sim/README.md. `python -m tests.sim.world` runs seeds.
"""
