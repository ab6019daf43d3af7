"""The EPS as gateware, in Amaranth: float units and AdamA lanes; memory movers, core and board tops are still to come.

`floats` are the units, `lane` puts them together, `verilog` writes the result, `synthesis` says what it costs. Nothing
in this package may import `relay_eps`: the golden model meets the gateware in the tests.
"""
