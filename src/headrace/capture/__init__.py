"""capture: recorded conversations -> bytes of each direction -> frames.

source.py opens a file and guesses what it is; pcap.py and pcapng.py read packets, packets.py finds
the TCP segment in each, reassembly.py puts directions back together; hexdump.py and raw.py read
files without packets; walk.py cuts frames and decodes them; writer.py writes pcap. All of it is a
pipeline of iterators with named limits, so a capture may be larger than memory.

Imports: errors, wire.
"""
