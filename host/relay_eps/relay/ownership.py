"""Notices what was done to the model's parameters behind the relay's back.

The server holds the one copy of the weights that counts. A parameter that was given other memory, another type, or that
was exchanged for another one would compute with weights that the server does not know, and never change; one that was
frozen or unfrozen would be trained, or not, against its owner's wish. None of it shows in the loss.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from relay_eps.errors import RelayError
from relay_eps.relay.layers import EpsLayer


class Ownership:
    """The parameters of a model as the relay left them.

    Values copied into a parameter in place are no affair of this class: they land in the server's own memory where the
    parameter lies there, and torch refuses them elsewhere.
    """

    def __init__(self, model: nn.Module, layers: Sequence[EpsLayer]) -> None:
        self._model = model
        self._trainable = {id(p): eps.trainable for eps in layers for p in eps.parameters}
        self._parameters = tuple(model.parameters())
        self._addresses: tuple[int, ...] = ()
        self.note()

    def note(self) -> None:
        """The parameters lie where the relay put them."""
        self._addresses = tuple(p.data_ptr() for p in self._parameters)

    def check(self) -> None:
        """Raise RelayError, naming the parameter, if one is not as it was left."""
        now = tuple(self._model.parameters())
        same = len(now) == len(self._parameters) and all(a is b for a, b in zip(now, self._parameters, strict=True))
        if not same:
            kept = {id(p) for p in self._parameters}
            new = [name for name, p in self._model.named_parameters() if id(p) not in kept]
            raise RelayError(
                f"{new[0] if new else 'a parameter'} was {'exchanged' if new else 'taken out of the model'} after the "
                "relay was made, which trains the parameter that was there: close this relay and make a new one; to "
                "replace values alone, use relay.load_state_dict"
            )
        for parameter, address in zip(self._parameters, self._addresses, strict=True):
            if parameter.data_ptr() != address:
                raise RelayError(
                    f"{self._name(parameter)} was given other memory or another type after the relay was made, which "
                    "holds its weights: close this relay (the weights go back into the model) and make a new one; to "
                    "replace values, use relay.load_state_dict"
                )
            if parameter.requires_grad is not self._trainable[id(parameter)]:
                how = "unfrozen" if parameter.requires_grad else "frozen"
                raise RelayError(
                    f"{self._name(parameter)} was {how} after the relay was made: close this relay (the weights go "
                    "back into the model) and make a new one"
                )

    def _name(self, parameter: nn.Parameter) -> str:
        return next(name for name, p in self._model.named_parameters() if p is parameter)
