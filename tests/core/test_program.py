"""What the messages of a program leave behind."""

from __future__ import annotations

import pytest

from bench.core.errors import UsageError
from bench.core.program import Collective, Copied, Exchange, Message, Step, delivered

Program = tuple[tuple[Step, ...], ...]


def test_a_message_arrives_at_the_offset_of_its_receive() -> None:
    program: Program = (
        (Exchange(sends=(Message(1, 8, offset_bytes=16),)),),
        (Exchange(recvs=(Message(0, 8, offset_bytes=32),)),),
    )
    assert delivered(program, 1) == (Copied(source=0, source_offset=16, num_bytes=8, offset_bytes=32),)
    assert delivered(program, 0) == ()


def test_messages_between_the_same_two_match_in_the_order_they_are_posted() -> None:
    program: Program = (
        (Exchange(sends=(Message(1, 8, 0), Message(2, 8, 8), Message(1, 4, 16))),),
        (Exchange(recvs=(Message(0, 8, 0), Message(0, 4, 8))),),
        (Exchange(recvs=(Message(0, 8, 0),)),),
    )
    assert delivered(program, 1) == (Copied(0, 0, 8, 0), Copied(0, 16, 4, 8))
    assert delivered(program, 2) == (Copied(0, 8, 8, 0),)


def test_only_sends_of_the_same_step_are_received() -> None:
    ping, pong = Exchange(sends=(Message(1, 8, 0),)), Exchange(recvs=(Message(1, 8, 0),))
    program: Program = ((ping, pong), (Exchange(recvs=(Message(0, 8),)), Exchange(sends=(Message(0, 8, 24),))))
    assert delivered(program, 0) == (Copied(1, 24, 8, 0),)


def test_an_unknown_collective_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match=r"'brodcast'.*'broadcast'"):
        Collective("brodcast", 8, 8)
    with pytest.raises(UsageError, match=r"'zzz'.*allreduce, .*barrier"):
        Collective("zzz", 8, 8)


def test_a_receive_from_a_collective_is_an_error() -> None:
    program: Program = ((Collective("barrier", 0, 0),), (Exchange(recvs=(Message(0, 8),)),))
    with pytest.raises(ValueError, match=r"\b0\b.*\b0\b.*\b1\b"):
        delivered(program, 1)
