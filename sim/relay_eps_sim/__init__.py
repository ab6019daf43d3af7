"""The simulated board: the generated Verilog under Verilator with a memory model, behind the host's own driver.

Nothing is here yet; it needs the gateware of `relay_eps_hw` first. This package may import both others.
"""
