"""The EPS as gateware, in Amaranth: float units, AdamA lanes, memory movers, the EPS core and the board tops.

Nothing is here yet. Nothing in this package may import `relay_eps`: the golden model meets the gateware in the tests.
"""
