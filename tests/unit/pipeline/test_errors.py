"""Faults become data at one boundary; user errors and a full disk pass through."""

import errno

import pytest

from pipeline.errors import Failure, InfrastructureError, UserError, boundary


def test_an_infrastructure_fault_is_retried_until_it_works() -> None:
    attempts = iter([InfrastructureError("down"), InfrastructureError("down"), "result"])

    def work() -> str:
        outcome = next(attempts)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    assert boundary(work, retries=2, pause_sec=0) == "result"


def test_a_lasting_fault_ends_as_data() -> None:
    def work() -> str:
        raise InfrastructureError("docker is gone")

    assert boundary(work, retries=1, pause_sec=0) == Failure("infrastructure", "docker is gone")


def test_a_defect_is_not_retried() -> None:
    calls = []

    def work() -> None:
        calls.append(1)
        raise KeyError("x")

    assert boundary(work, pause_sec=0) == Failure("defect", "KeyError: 'x'")
    assert calls == [1]


def test_a_full_disk_is_the_users_to_mend() -> None:
    def work() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(UserError, match="the disk is full: free some space and run the same command again"):
        boundary(work)


def test_a_user_error_passes_through() -> None:
    def work() -> None:
        raise UserError("mend it")

    with pytest.raises(UserError, match="mend it"):
        boundary(work)
