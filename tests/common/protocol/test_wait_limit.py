"""A wait limit ends the wait that is too long, that one alone, and hides no cancellation from outside."""

from __future__ import annotations

import asyncio

import pytest

from covspec.common.protocol.wait_limit import WaitLimit


async def forever() -> None:
    await asyncio.Event().wait()


async def test_a_wait_that_is_too_long_is_ended() -> None:
    limit = WaitLimit(0.02)
    for _ in range(2):
        with pytest.raises(TimeoutError), limit:
            await forever()
        task = asyncio.current_task()
        assert task is not None and not task.cancelling()
    limit.close()


async def test_every_wait_has_the_whole_time() -> None:
    limit = WaitLimit(0.05)
    for _ in range(8):
        with limit:
            await asyncio.sleep(0.015)
    limit.close()


async def test_the_time_between_waits_does_not_count() -> None:
    limit = WaitLimit(0.02)
    with limit:
        pass
    await asyncio.sleep(0.05)
    with limit:
        await asyncio.sleep(0.001)
    with pytest.raises(TimeoutError), limit:
        await forever()
    limit.close()


async def test_an_error_inside_passes() -> None:
    limit = WaitLimit(1.0)
    with pytest.raises(KeyError), limit:
        raise KeyError
    limit.close()


async def test_a_cancellation_from_outside_stays_one() -> None:
    limit = WaitLimit(10.0)

    async def wait() -> None:
        with limit:
            await forever()

    task = asyncio.ensure_future(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
    limit.close()


async def test_a_cancellation_in_the_same_moment_wins() -> None:
    limit = WaitLimit(0.01)

    async def wait() -> None:
        with limit:
            await forever()

    task = asyncio.ensure_future(wait())
    await asyncio.sleep(0)
    asyncio.get_running_loop().call_at(limit._due_s, task.cancel)
    with pytest.raises(asyncio.CancelledError):
        await task
    limit.close()


async def test_an_outer_time_limit_ends_an_inner_wait() -> None:
    limit = WaitLimit(10.0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            with limit:
                await forever()
    limit.close()


async def test_a_closed_limit_keeps_no_timer() -> None:
    limit = WaitLimit(60.0)
    with limit:
        pass
    limit.close()
    assert not [h for h in asyncio.get_running_loop()._scheduled if not h.cancelled()]  # type: ignore[attr-defined]
