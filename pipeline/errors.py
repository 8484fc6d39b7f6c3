"""The error model: user errors, infrastructure errors; a failed rollout is neither, it is data.

UserError: somebody must change something; one sentence with the remedy, exit code 2.
InfrastructureError: docker, disk or server failed; retried, never scored as the model's failure, exit code 3 when
retries run out. Anything else is a defect of treadle and surfaces with its traceback, exit code 1.
"""

import errno
import logging
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

T = TypeVar("T")
log = logging.getLogger(__name__)


class UserError(Exception):
    """The caller can mend this; the message is one sentence with the remedy."""


class InfrastructureError(Exception):
    """A machine part failed; the same work may succeed when repeated."""


class Failure(NamedTuple):
    """An exception turned into data at the one boundary."""

    kind: str
    """infrastructure | defect."""
    reason: str


DISK_FULL = "the disk is full: free some space and run the same command again, finished work is kept"


def boundary(work: Callable[[], T], *, retries: int = 2, pause_sec: float = 1.0) -> T | Failure:
    """Call -> its result, or the Failure that it ended in after retries of infrastructure faults.

    Raises: UserError and a full disk pass through: repeating them cannot help.
    """
    for attempt in range(retries + 1):
        try:
            return work()
        except UserError:
            raise
        except InfrastructureError as error:
            log.warning("infrastructure fault attempt=%d error=%s", attempt + 1, error)
            failure = Failure("infrastructure", str(error))
            if attempt < retries:
                time.sleep(pause_sec * 2**attempt)
        except Exception as error:
            # The only broad handler: an item's defect must not end the other items.
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                raise UserError(DISK_FULL) from error
            log.exception("defect in an item")
            return Failure("defect", f"{type(error).__name__}: {error}")
    return failure
