"""The relay engine: one layer at a time on the device, weights and moments in an eager parameter server (torch)."""

from relay_eps.relay.batch import Whole
from relay_eps.relay.engine import Relay, StepResult
from relay_eps.relay.layers import RelayLayer
from relay_eps.relay.randomness import seed_generators
from relay_eps.relay.scaling import LossScale
from relay_eps.relay.slots import ModelledLink

__all__ = ["LossScale", "ModelledLink", "Relay", "RelayLayer", "StepResult", "Whole", "seed_generators"]
