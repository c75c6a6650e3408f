from __future__ import annotations

import pytest

from headrace.capture.conversation import Connection, Direction, Endpoint, RoleEvidence


def test_the_reverse_of_the_reverse_is_the_direction_itself() -> None:
    for direction in Direction:
        assert direction.reverse.reverse is direction
    assert Direction.CLIENT_TO_SERVER.reverse is Direction.SERVER_TO_CLIENT
    assert Direction.UNKNOWN.reverse is Direction.UNKNOWN


@pytest.mark.parametrize(
    ("endpoint", "text"),
    [(Endpoint("127.0.0.1", 11210), "127.0.0.1:11210"), (Endpoint("::1", 11210), "[::1]:11210")],
)
def test_an_endpoint_is_written_so_that_its_port_can_be_told_apart(
    endpoint: Endpoint, text: str
) -> None:
    assert str(endpoint) == text


def test_a_connection_is_named_by_its_ends_client_first() -> None:
    ends = Endpoint("10.0.0.1", 4), Endpoint("10.0.0.2", 5)
    connection = Connection(3, *ends, RoleEvidence.HANDSHAKE, complete_start=True)
    assert str(connection) == "10.0.0.1:4 > 10.0.0.2:5"


def test_a_file_without_connections_is_named_by_itself() -> None:
    connection = Connection(1, None, None, RoleEvidence.NONE, complete_start=True, name="x.hex")
    assert str(connection) == "x.hex"
