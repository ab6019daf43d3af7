"""The generated Verilog under Verilator, driven from Python. This package may import both others.

`units` and `lanes` run one float unit or an array of lanes on arrays of bits, `core` the whole EPS core among memories.
The simulated board, behind the host's own driver, is still to come.
"""
