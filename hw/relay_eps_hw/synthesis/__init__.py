"""What the logic costs: area by Yosys, and the clock on an ECP5 by nextpnr."""
