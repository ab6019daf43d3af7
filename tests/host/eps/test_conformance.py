"""The conformance suite on the servers in host memory, in every wire format."""

from __future__ import annotations

import pytest

from relay_eps.eps import Format, GoldenEPS, SoftwareEPS
from tests.host.eps.conformance import ServerConformance
from tests.host.eps.conformance_refusals import MakeServer


class TestGolden(ServerConformance):
    @pytest.fixture(scope="class", params=list(Format))
    @classmethod
    def make_server(cls, request: pytest.FixtureRequest) -> MakeServer:
        return lambda: GoldenEPS(wire=request.param)


class TestSoftware(ServerConformance):
    @pytest.fixture(scope="class", params=list(Format))
    @classmethod
    def make_server(cls, request: pytest.FixtureRequest) -> MakeServer:
        return lambda: SoftwareEPS(wire=request.param, threads=2)
