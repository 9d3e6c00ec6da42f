"""Sampling on a few SMs while the rest of the device is busy: the same tokens, and it ends.

Kernels that wait for blocks which never fit beside each other would hang here and nowhere else.
"""

import pytest
import torch

from protocol.sampling import Sampling
from worker.executors.base import SlotInit
from worker.executors.cuda.partitions import Side, make_table
from worker.sampling.sampler import Sampler

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(120)]

DEVICE = torch.device("cuda", 0)
VOCABULARY = 128_256
ROWS = 64
KINDS = (
    Sampling(max_tokens=8, seed=1, temperature=0.0),
    Sampling(max_tokens=8, seed=2, temperature=0.8, top_k=50),
    Sampling(max_tokens=8, seed=3, temperature=1.0, top_p=0.9),
    Sampling(max_tokens=8, seed=4, temperature=1.2, top_k=1000, top_p=0.95, min_p=0.01),
    Sampling(max_tokens=8, seed=5, temperature=0.7, repetition_penalty=1.2),
)


def drawn(side: Side, logits: torch.Tensor) -> list[int]:
    sampler = Sampler(ROWS, VOCABULARY, (), DEVICE)
    for slot in range(ROWS):
        sampler.start(SlotInit(slot, "m", KINDS[slot % len(KINDS)], (1, 2, 3)))
    plan = sampler.plan(tuple(range(ROWS)))
    torch.cuda.synchronize()
    with torch.cuda.stream(side.stream):
        tokens: list[int] = sampler.draw(logits.clone(), plan).tokens.tolist()
    return tokens


@torch.inference_mode()
def test_every_side_draws_the_tokens_of_the_whole_device_beside_a_busy_one() -> None:
    table = make_table(0, (112, 64, 32), require=True)
    logits = torch.randn(ROWS, VOCABULARY, device=DEVICE, dtype=torch.bfloat16) * 4
    expected = drawn(table.pairs[0].decode, logits)
    busy = torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16)
    for pair in table.pairs[1:]:
        for side, other in ((pair.decode, pair.prefill), (pair.prefill, pair.decode)):
            torch.cuda.synchronize()
            with torch.cuda.stream(other.stream):
                for _ in range(20):
                    torch.mm(busy, busy)
            assert drawn(side, logits) == expected, side.sms
