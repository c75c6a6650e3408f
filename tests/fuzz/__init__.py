"""Broken bytes against the decoders, by seed: `make fuzz [SECONDS=60] [SEED=n] [ONLY=target]`.

A target is a file `tests/fuzz/target_<name>.py` with a function

    def attempt(random: Random) -> None

that draws everything it needs from `random` and raises when it finds a fault. Faults are: an
exception that is not one of our own errors, two roads that should agree and do not, a limit that
does not hold. The same seed gives the same attempt on every machine, so a failure is repeated with
`make fuzz SEED=n ONLY=target`.
"""
