"""The garbage collector is off only while many objects are built, also if that fails."""

from __future__ import annotations

import gc

import pytest

from bench.core import collector


def test_the_collector_is_on_again_after_an_error() -> None:
    with pytest.raises(ValueError, match="damaged"), collector.paused():
        assert not gc.isenabled()
        raise ValueError("damaged")
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    with collector.paused():
        with collector.paused():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()
