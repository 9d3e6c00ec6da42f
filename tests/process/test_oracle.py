"""The judge of answers accepts what the model writes, and nothing else."""

import pytest
import torch

from tests.process import oracle
from tests.process.oracle import Differs, judge

pytestmark = [pytest.mark.process, pytest.mark.model, pytest.mark.timeout(300)]

LENGTH = 12


@pytest.fixture(scope="module", params=["The capital of France is", "La lune est belle, 月は"])
def case(request: pytest.FixtureRequest) -> tuple[tuple[int, ...], list[int], str]:
    """A prompt, and the reference's own greedy answer as ids and as text."""
    prompt = oracle.encode(request.param)
    made = oracle.model().generate(
        torch.tensor([prompt]), max_new_tokens=LENGTH, min_new_tokens=LENGTH, do_sample=False
    )
    ids = made[0, len(prompt) :].tolist()
    data = b"".join(oracle.token_bytes()[token] for token in ids)
    return prompt, ids, data.decode("utf-8", "replace")


def test_the_references_own_answer_is_accepted_with_its_ids(case) -> None:
    prompt, ids, text = case
    verdict = judge(prompt, text, LENGTH)
    assert verdict.ids == ids
    assert verdict.ties == 0


def test_another_character_anywhere_is_found(case) -> None:
    prompt, _, text = case
    for position in (0, len(text) // 2, len(text) - 1):
        wrong = text[:position] + ("x" if text[position] != "x" else "y") + text[position + 1 :]
        with pytest.raises(Differs):
            judge(prompt, wrong, LENGTH)


def test_a_missing_and_a_doubled_end_are_found(case) -> None:
    prompt, _, text = case
    with pytest.raises(Differs):
        judge(prompt, text[:-2], LENGTH)
    with pytest.raises(Differs):
        judge(prompt, text + text[-2:], LENGTH)
