"""Rows of KV memory: handed out in order, given back, refused when the queue is full; quotas per client."""

from __future__ import annotations

import asyncio

import pytest

from covspec.common.errors import Overloaded
from covspec.edge.batching.admission import Admission, Quota


class Time:
    now = 100.0

    def __call__(self) -> float:
        return self.now


async def test_rows_are_reused_in_the_order_of_asking() -> None:
    admission = Admission(2, 8)
    first, second = await admission.acquire(), await admission.acquire()
    assert {first, second} == {0, 1} and admission.num_taken == 2
    waiting = [asyncio.ensure_future(admission.acquire()) for _ in range(3)]
    await asyncio.sleep(0)
    assert admission.num_waiting == 3
    admission.release(second)
    assert await waiting[0] == second
    admission.release(first)
    assert await waiting[1] == first
    waiting[2].cancel()
    await asyncio.sleep(0)
    admission.release(first)
    admission.release(second)
    assert (admission.num_taken, admission.num_waiting) == (0, 0)


async def test_a_full_queue_refuses_with_a_hint() -> None:
    time = Time()
    admission = Admission(1, 1, time)

    async def come(read: asyncio.Event) -> int:
        with admission.place():
            await read.wait()
            return await admission.acquire()

    read, unread = asyncio.Event(), asyncio.Event()
    read.set()
    first = asyncio.ensure_future(come(unread))
    waiting = asyncio.ensure_future(come(unread))
    await asyncio.sleep(0)
    # One row and one place in the queue: two pictures are being read, no third one is.
    with pytest.raises(Overloaded, match="try again"):
        await come(read)
    unread.set()
    row = await first
    await asyncio.sleep(0)
    assert admission.num_waiting == 1
    with pytest.raises(Overloaded, match="try again") as refused:
        await come(read)
    assert refused.value.retry_after_s >= 0.5
    time.now += 60
    admission.release(row)
    assert await waiting == row
    assert admission.retry_after_s() > refused.value.retry_after_s / 2


async def test_a_row_given_to_someone_who_left_is_not_lost() -> None:
    admission = Admission(1, 4)
    row = await admission.acquire()
    leaver = asyncio.ensure_future(admission.acquire())
    await asyncio.sleep(0)
    admission.release(row)
    leaver.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaver
    assert admission.num_taken == 0
    assert await admission.acquire() == row


def test_a_quota_is_per_client_and_refills() -> None:
    time = Time()
    quota = Quota(10.0, time)
    quota.spend("a", 100)
    with pytest.raises(Overloaded, match="quota") as refused:
        quota.spend("a", 5)
    assert refused.value.reason == "QUOTA"
    assert refused.value.retry_after_s == pytest.approx(0.5)
    quota.spend("b", 100)
    time.now += 0.5
    quota.spend("a", 5)


def test_no_quota_means_no_limit() -> None:
    quota = Quota(0.0)
    for _ in range(10):
        quota.spend("a", 1 << 20)
