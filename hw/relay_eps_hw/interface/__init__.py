"""What the host sees of the EPS core, as data: registers, descriptors, records and codes. No Amaranth is needed here.

The gateware's decoder, the host's constants, the pages of the docs and the fragments for the vendors' tools are made
of these tables.
"""
