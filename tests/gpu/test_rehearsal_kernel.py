"""The kernel that stands for a collective: how long it lasts, and how much memory it moves."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import pytest

from fakes.gpus import needs

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(200), needs(1)]

MS, MOVED = 2.0, 64 << 20  # bytes, half of them read
"""Slower than the way to the host; of so many bytes, part of a tile is little."""


def occupied(through_host: bool) -> tuple[float, float]:
    """Milliseconds of a call, by CUDA events, and bytes that one read and wrote."""
    import torch

    from scalewise.train.rehearsal_kernel import Occupation

    one = Occupation(torch.device("cuda", 0), 24, through_host)
    stream = torch.cuda.current_stream()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(20):
        one.last(one.plan(MS, MOVED / 2), stream)
    end.record()
    end.synchronize()
    one._target.zero_()
    one._source.fill_(1)
    torch.cuda.synchronize()
    # Over a link of its own pace it moves more while it waits; its host's memory is slow enough.
    one.last(one.plan(MS if through_host else 0.001, MOVED / 2), stream)
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / 20, 8 * float(one._target.sum())


@pytest.mark.parametrize("through_host", [False, True])
def test_it_lasts_as_long_and_moves_as_much_as_asked(through_host: bool) -> None:
    # A context of this process on a GPU would be a stranger to the cells of other tests.
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        ms, moved = pool.submit(occupied, through_host).result()
    assert (ms, moved) == pytest.approx((MS, MOVED), rel=0.05)
