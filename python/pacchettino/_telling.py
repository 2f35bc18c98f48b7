"""What is told of jobs: to the log, and to the hooks of `on_settled`."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pacchettino import _core

if TYPE_CHECKING:
    from pacchettino._job import Hook, Job

logger = logging.getLogger("pacchettino")
work_logger = logging.getLogger("pacchettino.work")

LENGTH_OF_ID = 36

FIELDS = ("job_id", "attempt", "duration", "outcome")


def _complete(record: logging.LogRecord) -> bool:
    """Have all fields in each record, so that a format can name them."""
    for field in FIELDS:
        record.__dict__.setdefault(field, None)
    return True


logger.addFilter(_complete)
work_logger.addFilter(_complete)


def about(claim: _core.Claim) -> dict[str, object]:
    """The fields of a log record on a claimed job."""
    return {
        "job_id": claim.id,
        "attempt": known_attempt(claim),
        "duration": claim.seconds if claim.has_begun else None,
        "outcome": claim.outcome,
    }


def called(claim: _core.Claim) -> str:
    """What a job is called in the log: by its id, and a file by its name as well."""
    return claim.id if claim.name is None else f"{claim.id} ({claim.name!r})"


def known_attempt(claim: _core.Claim) -> int | None:
    """Which attempt this is, as far as that can be told: after the verdict only if it was asked for before."""
    try:
        return claim.attempt()
    except (OSError, RuntimeError):
        return None


def tell_taken(claim: _core.Claim) -> None:
    """Tell that somebody begins with a job."""
    logger.debug("job %s taken", claim.id, extra=about(claim))


def tell_moved(job: str, what: str, is_done: bool) -> bool:
    """Tell what somebody did to a waiting or finished job, named by its id or its entry, if it was done."""
    if is_done:
        id = job if len(job) == LENGTH_OF_ID else job[4 : 4 + LENGTH_OF_ID]  # after `raw-` or `fle-`
        logger.info("job %s %s", id, what, extra={"job_id": id})
    return is_done


def tell_settled(job: Job, hooks: Iterable[Hook]) -> None:
    """Tell what came of a job, if it has its verdict and nobody told yet. A hook that raises harms nobody else."""
    claim = job._claim
    verdict = claim.take_verdict()
    if verdict is None:
        return
    outcome, seconds = verdict
    logger.info("job %s settled: %s, after %.3f s", claim.id, outcome, seconds, extra=about(claim))
    for hook in hooks:
        try:
            hook(job, outcome, seconds)
        except Exception:
            logger.exception("job %s: a hook of on_settled raised", claim.id, extra=about(claim))
