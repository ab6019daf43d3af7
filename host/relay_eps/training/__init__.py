"""Training runs of the byte-level GPT: settings, the loop, a run's folder and its events; no command line in it.

Import from the modules: `config`, `events` and `reports` need no torch, so that a command line can start quickly.
"""
