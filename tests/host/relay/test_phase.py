"""What may be asked of a relay, and when."""

from __future__ import annotations

import pytest

from relay_eps.errors import RelayError, TornStep
from relay_eps.relay.phase import Phase


def test_an_idle_relay_does_everything() -> None:
    Phase().require_idle("anything")


def test_inside_a_step_nothing_else_is_allowed() -> None:
    phase = Phase()
    phase.begin_step()
    with pytest.raises(RelayError, match="save was called inside a step: call it between steps"):
        phase.require_idle("save", torn=True)
    phase.end_step()
    phase.require_idle("save")


def test_a_torn_relay_only_does_what_mends_it() -> None:
    phase = Phase()
    phase.tear("half of it failed")
    assert phase.torn
    with pytest.raises(TornStep, match="save is refused: half of it failed; load a checkpoint"):
        phase.require_idle("save")
    phase.require_idle("load", torn=True)
    phase.mend()
    phase.require_idle("save")


def test_a_closed_relay_does_nothing() -> None:
    phase = Phase()
    phase.close()
    with pytest.raises(RelayError, match="step was called on a relay that is closed: make a new one"):
        phase.require_idle("step", torn=True)


@pytest.mark.parametrize("torn", [False, True])
def test_a_change_that_must_be_whole_leaves_the_phase_as_it_was_or_torn(torn: bool) -> None:
    phase = Phase()
    if torn:
        phase.tear("before")
    with phase.whole("half"):
        assert phase.torn
    assert phase.torn is torn

    @phase.whole("half")
    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with pytest.raises(TornStep, match="half"):
        phase.require_idle("step")
