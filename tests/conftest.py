"""What all tests share: how hypothesis draws its examples."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# `make test` draws the same examples on every machine, so that a failure is the change's own. New examples are drawn
# with `pytest --hypothesis-profile=explore`; a failure then prints the line that replays it.
# No deadlines: the machines that run this are shared, and a slow example is no failure.
settings.register_profile("fixed", derandomize=True, deadline=None, database=None)
settings.register_profile(
    "explore", deadline=None, print_blob=True, max_examples=1000, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("fixed")
