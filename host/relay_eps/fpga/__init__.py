"""The EPS core on an FPGA, as the host sees it."""
