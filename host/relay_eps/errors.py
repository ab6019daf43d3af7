"""The errors that users meet. Each message says what went wrong, where, and the way out."""

from __future__ import annotations


class RelayEpsError(Exception):
    """Base of every error that relay-eps raises on purpose; the command line prints it as one sentence."""


class ContractError(RelayEpsError, ValueError):
    """An argument outside the EPS contract: a scalar, a length, a format, a section, an unknown layer."""


class LayerDamaged(RelayEpsError):
    """An operation on an EPS layer failed half way: the layer is refused until every section is rewritten."""


class ServerClosed(RelayEpsError):
    """The server was closed, or is being closed, and takes no more calls."""


class RelayError(RelayEpsError):
    """The relay engine cannot run what it was asked to run."""


class NonFiniteLoss(RelayError):
    """The loss of a micro-batch is NaN or infinite; found before the backward, so nothing was changed."""


class NonFiniteGradient(RelayError):
    """A layer's gradient holds NaN or infinity; it was not folded."""


class TornStep(RelayError):
    """Some layers of a step were updated and others were not; load a checkpoint to go on."""


class CheckpointError(RelayEpsError):
    """A checkpoint is missing, incomplete, corrupted, or belongs to another model."""


class DataError(RelayEpsError):
    """The training data cannot be used: missing, empty or too short."""


class BoardError(RelayEpsError):
    """A board cannot be used, or not any more: not there, the wrong bitstream, a fault, a link that was cut."""


class BoardMemoryFull(BoardError):
    """A buffer does not fit in the bank of the board's memory that it was asked for in."""


class BoardTimeout(BoardError):
    """The board has not answered in the time that it was given."""
