"""``python -m relay_eps.cli``: the same as ``relay-eps``."""

from relay_eps.cli import main

main()
