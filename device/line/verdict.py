"""Receives the edge's answers and believes nothing that the protocol does not allow."""

from __future__ import annotations

import logging

from ...common.errors import EdgeFailure
from ...common.protocol.messages import EdgeMessage, GoAway, Opened, Verdict
from .edge_link import DecodeStream

logger = logging.getLogger(__name__)


async def receive_opened(stream: DecodeStream) -> Opened:
    message = await stream.receive(_is_notice)
    if not isinstance(message, Opened):
        raise broken(f"{type(message).__name__} instead of Opened")
    return message


async def receive_verdict(stream: DecodeStream, round_: int) -> Verdict:
    """The verdict of this round. Verdicts of earlier rounds, come late or twice, are dropped."""

    def stale(message: EdgeMessage) -> bool:
        if isinstance(message, Verdict) and message.round < round_:
            logger.warning("dropped a verdict of round %d in round %d", message.round, round_)
            return True
        return _is_notice(message)

    message = await stream.receive(stale)
    if not isinstance(message, Verdict):
        raise broken(f"{type(message).__name__} instead of a verdict")
    if message.round != round_:
        raise broken(f"a verdict of round {message.round} in round {round_}")
    return message


def check_verdict(
    verdict: Verdict, committed_len: int, num_drafted: int, vocab_size: int, num_final: int = 0
) -> None:
    """Raises EdgeFailure unless the verdict can be one on `num_drafted` tokens behind `committed_len`.

    num_final: tokens at the draft's front that are not to be judged.
    """
    n, token_id = verdict.num_accepted, verdict.token_id
    if not num_final <= n <= num_drafted:
        final = f", {num_final} of them final" if num_final else ""
        raise broken(f"{n} tokens accepted of {num_drafted}{final}")
    if token_id is not None and token_id >= vocab_size:
        raise broken(f"token id {token_id} of a vocabulary of {vocab_size}")
    agreed = committed_len + n + (token_id is not None)
    if verdict.committed_len != agreed:
        raise broken(f"{verdict.committed_len} committed tokens where there are {agreed}")
    silent = token_id is None and verdict.row is None and not verdict.candidates
    if silent and verdict.finish is None:
        raise broken("a verdict without a token, a row or candidates that does not end the answer")
    if token_id is None and verdict.finish is None and n == num_drafted:
        raise broken("a correction where nothing was rejected")


def broken(what: str) -> EdgeFailure:
    """The error for an edge that does not keep to the protocol."""
    return EdgeFailure(
        f"the edge broke the protocol: {what}; install matching versions of covspec on both ends"
    )


def _is_notice(message: EdgeMessage) -> bool:
    """Whether it is a message that needs no reaction now."""
    if isinstance(message, GoAway):
        logger.warning("the edge will stop in %.0f s: %s", message.grace_s, message.reason)
        return True
    return False
