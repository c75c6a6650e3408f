"""columns: frames -> Arrow columns with no object per message.

schema.py says what a row is, forms.py turns the layout rows of wire into a table of numbers,
kernel.py walks a buffer of frames by that table, block.py is the memory the columns are carved
from, scan.py is the front door. builder.py is the slow and obvious road to the same rows, and the
tests hold the two against each other. The kernel is compiled by numba and its code kept (code.py):
LLVM is loaded when the first Scanner is made or `headrace.columns.scan.warm` is called, numba only
where no kept code fits, and neither by an import.

Imports: errors, wire.
"""
