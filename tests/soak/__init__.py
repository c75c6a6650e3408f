"""The node's longest days: `make soak [CRASHES=200] [CONNECTIONS=1000]`.

Small slices of the same run in the suite: tests/node/test_crash.py, tests/node/test_crowd.py.
"""
