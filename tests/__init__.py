"""The tests; the tree mirrors src/headrace: src/headrace/x/y.py is tested by tests/x/test_y.py."""
