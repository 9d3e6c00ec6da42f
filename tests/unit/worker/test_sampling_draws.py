"""Draws follow the request's parameters and (seed, index), and nothing else in the batch."""

import math

import pytest
import torch
from torch import Tensor

from protocol.sampling import LogitBias, Sampling
from worker.executors.base import SlotInit
from worker.sampling import filters
from worker.sampling.random import uniform
from worker.sampling.sampler import Sampler, sampled_tokens

VOCAB = 50
EOS = (2,)
CPU = torch.device("cpu")


def sampling(**changes: object) -> Sampling:
    return Sampling(**{"max_tokens": 100, "seed": 1, **changes})  # type: ignore[arg-type]


def greedy(**changes: object) -> Sampling:
    return sampling(temperature=0.0, **changes)


def sampler(
    *wishes: Sampling, prompt: tuple[int, ...] = (), output: tuple[int, ...] = ()
) -> Sampler:
    made = Sampler(max_slots=max(8, len(wishes)), vocab_size=VOCAB, eos_token_ids=EOS, device=CPU)
    for slot, wish in enumerate(wishes):
        made.start(SlotInit(slot, "m", wish, prompt, output))
    return made


def logits(*favourites: int, rows: int = 1) -> Tensor:
    """Rows whose most likely tokens are `favourites`, in that order, one logit apart."""
    row = torch.zeros(VOCAB)
    for place, token in enumerate(favourites):
        row[token] = 10.0 - place
    return row.repeat(rows, 1)


def noise(rows: int, seed: int) -> Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def draw(made: Sampler, values: Tensor, *slots: int) -> list[int]:
    return made.draw(values.clone(), made.plan(slots)).tokens.tolist()


# --- the generator ---


def test_uniform_is_the_published_hash_in_64_bits() -> None:
    def mix(z: int) -> int:
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return z ^ (z >> 31)

    pairs = [(0, 0), (1, 0), (0, 1), (2**63 - 1, 7), (123456789, 2**31)]
    got = uniform(torch.tensor([s for s, _ in pairs]), torch.tensor([i for _, i in pairs]))
    golden = 0x9E3779B97F4A7C15
    for (seed, index), value in zip(pairs, got.tolist(), strict=True):
        bits = mix((mix((seed + golden) % 2**64) + (index + 1) * golden) % 2**64)
        assert value == (bits >> 11) / 2**53


def test_uniform_covers_the_interval_evenly_along_seeds_and_indices() -> None:
    many = torch.arange(100_000)
    for values in (uniform(many, torch.zeros_like(many)), uniform(torch.zeros_like(many), many)):
        assert values.min() >= 0.0
        assert values.max() < 1.0
        counts = torch.histc(values.float(), bins=20, min=0, max=1)
        assert (counts - 5000).abs().max() < 5 * math.sqrt(5000)


# --- draws and the batch ---


def test_same_seed_draws_the_same_tokens_in_any_batch() -> None:
    wish = sampling(seed=77, temperature=1.3, top_p=0.95)
    alone, crowded = sampler(wish), sampler(greedy(), sampling(seed=5, top_k=3), wish, greedy())
    one, many = [], []
    for step in range(40):
        values = noise(1, step)
        one += draw(alone, values, 0)
        others = noise(3, 1000 + step)
        batch = torch.stack((others[0], values[0], others[1], others[2]))
        many.append(draw(crowded, batch, 3, 2, 0, 1)[1])
    assert one == many
    assert len(set(one)) > 10


def test_resumed_request_goes_on_with_the_next_draw() -> None:
    wish = sampling(seed=9)
    whole = sampler(wish)
    tokens = [draw(whole, noise(1, step), 0)[0] for step in range(10)]
    resumed = sampler(wish, output=tuple(tokens[:6]))
    assert [draw(resumed, noise(1, step), 0)[0] for step in range(6, 10)] == tokens[6:]


def test_different_seeds_draw_differently() -> None:
    flat = torch.zeros(1, VOCAB)
    drawn = {
        tuple(draw(made, flat, 0)[0] for _ in range(8))
        for made in (sampler(sampling(seed=seed)) for seed in range(20))
    }
    assert len(drawn) == 20


def test_draws_follow_the_distribution() -> None:
    made = sampler(*(sampling(temperature=2.0, seed=seed) for seed in range(4000)))
    values = torch.full((4000, VOCAB), -torch.inf)
    values[:, [4, 9, 30]] = torch.tensor([0.0, 2.0, 4.0])
    drawn = torch.tensor(draw(made, values, *range(4000)))
    wanted = torch.softmax(torch.tensor([0.0, 1.0, 2.0]), 0)
    shares = torch.tensor([(drawn == token).float().mean() for token in (4, 9, 30)])
    assert (shares - wanted).abs().max() < 0.03
    assert set(drawn.tolist()) == {4, 9, 30}


def test_greedy_takes_the_largest_whatever_its_filters() -> None:
    made = sampler(greedy(top_k=1, top_p=0.1, min_p=0.9))
    values = noise(1, 3)
    assert draw(made, values, 0) == [int(values.argmax())]


def test_tiny_temperature_is_greedy_and_not_an_overflow() -> None:
    made = sampler(sampling(temperature=1e-30))
    assert draw(made, logits(17, 4), 0) == [17]


def test_slot_taken_again_forgets_the_request_before() -> None:
    made = sampler(
        greedy(
            logit_bias=(LogitBias(7, 100.0), LogitBias(8, 99.0)),
            frequency_penalty=2.0,
            min_tokens=5,
        ),
        greedy(logit_bias=(LogitBias(1, 0.5), LogitBias(2, 0.5), LogitBias(3, 0.5))),
    )
    assert draw(made, torch.cat((logits(2), logits(5))), 0, 1) == [7, 5]
    made.start(SlotInit(0, "m", greedy(logit_bias=(LogitBias(9, 0.1),)), ()))
    assert draw(made, torch.cat((logits(2), logits(5))), 0, 1) == [2, 5]


# --- filters ---


def support(**changes: object) -> set[int]:
    values = torch.full((400, VOCAB), -torch.inf)
    values[:, [3, 1, 4, 5]] = torch.log(torch.tensor([0.5, 0.25, 0.15, 0.1]))
    made = sampler(*(sampling(temperature=1.0, seed=seed, **changes) for seed in range(400)))
    return set(draw(made, values, *range(400)))


def test_filters_keep_what_they_should() -> None:
    assert support() == {3, 1, 4, 5}
    assert support(top_k=2) == {3, 1}
    assert support(top_k=1000) == {3, 1, 4, 5}
    assert support(top_p=0.5) == {3}
    assert support(top_p=0.7) == {3, 1}
    assert support(top_p=0.76) == {3, 1, 4}
    assert support(min_p=0.25) == {3, 1, 4}
    assert support(top_k=3, top_p=0.8) == {3, 1}
    assert support(min_p=1.0) == {3}


def test_top_k_and_top_p_equal_a_sort() -> None:
    values = noise(16, 11)
    top_k = torch.arange(1, 17)
    kept = filters.keep_top_k(values, top_k) > -torch.inf
    for row, k in enumerate(top_k.tolist()):
        assert set(kept[row].nonzero().flatten().tolist()) == set(
            values[row].topk(k).indices.tolist()
        )
    top_p = torch.linspace(0.05, 0.99, 16)
    kept = filters.keep_top_p(values, top_p) > -torch.inf
    probabilities, order = values.softmax(-1).sort(-1, descending=True)
    for row, p in enumerate(top_p.tolist()):
        count = int((probabilities[row].cumsum(-1) < p).sum()) + 1
        assert set(kept[row].nonzero().flatten().tolist()) == set(order[row, :count].tolist())


@pytest.mark.parametrize("spread", [0.01, 3.0])
def test_candidates_and_bisection_find_the_same_threshold(spread: float) -> None:
    """The flat rows need more tokens than the candidates, the others fewer."""
    size = 4 * filters._CANDIDATES
    values = torch.randn(6, size, generator=torch.Generator().manual_seed(8)) * spread
    keys, probabilities = filters._ordered_keys(values), values.softmax(-1)
    wanted = torch.linspace(0.1, 0.9, 6)
    assert torch.equal(
        filters._among_candidates(keys, probabilities, wanted),
        filters._bisect(keys, probabilities, wanted),
    )
    counts = torch.tensor([1.0, 2.0, 1000.0, 1024.0, 1025.0, 4096.0])
    assert torch.equal(
        filters._among_candidates(keys, None, counts), filters._bisect(keys, None, counts)
    )


def test_neutral_filters_change_nothing() -> None:
    values = noise(3, 12)
    assert torch.equal(filters.keep_top_k(values, torch.zeros(3, dtype=torch.int64)), values)
    assert torch.equal(filters.keep_top_p(values, torch.ones(3)), values)
    assert torch.equal(filters.keep_min_p(values, torch.zeros(3)), values)


def test_equal_logits_are_kept_together() -> None:
    values = torch.zeros(1, VOCAB)
    kept = filters.keep_top_k(values, torch.tensor([3])) > -torch.inf
    assert int(kept.sum()) == VOCAB


# --- penalties, bias, ends ---


def test_repetition_penalty_counts_prompt_and_output() -> None:
    made = sampler(greedy(repetition_penalty=2.0), prompt=(5,), output=(6,))
    assert draw(made, logits(5, 6, 7), 0) == [7]
    negative = torch.full((1, VOCAB), -9.0)
    negative[0, 5], negative[0, 8] = -3.0, -4.0
    assert draw(made, negative, 0) == [8]


def test_frequency_penalty_grows_with_each_use_and_presence_does_not() -> None:
    made = sampler(greedy(frequency_penalty=0.6))
    assert [draw(made, logits(5, 6), 0)[0] for _ in range(4)] == [5, 5, 6, 5]
    made = sampler(greedy(presence_penalty=0.6))
    assert [draw(made, logits(5, 6), 0)[0] for _ in range(4)] == [5, 5, 5, 5]
    made = sampler(greedy(presence_penalty=1.5))
    assert [draw(made, logits(5, 6), 0)[0] for _ in range(3)] == [5, 6, 5]


def test_presence_and_frequency_ignore_the_prompt() -> None:
    made = sampler(greedy(presence_penalty=2.0, frequency_penalty=2.0), prompt=(5, 5, 5))
    assert draw(made, logits(5, 6), 0) == [5]


def test_logit_bias_moves_single_tokens() -> None:
    bias = (LogitBias(5, -100.0), LogitBias(9, 20.0))
    made = sampler(greedy(logit_bias=bias), greedy())
    assert draw(made, logits(5, 6, rows=2), 0, 1) == [9, 5]


def test_ends_are_held_back_until_min_tokens() -> None:
    made = sampler(greedy(min_tokens=2, stop_token_ids=(7,)))
    assert [draw(made, logits(2, 7, 5), 0)[0] for _ in range(3)] == [5, 5, 2]


def test_ignored_end_of_sequence_is_an_ordinary_token() -> None:
    made = sampler(greedy(min_tokens=2, stop_token_ids=(7,), ignore_eos=True))
    assert draw(made, logits(7, 2), 0) == [2]


def test_ids_outside_the_vocabulary_are_refused() -> None:
    made = sampler(greedy())
    for wish in (
        greedy(logit_bias=(LogitBias(VOCAB, 1.0),)),
        greedy(min_tokens=1, stop_token_ids=(VOCAB,)),
    ):
        with pytest.raises(ValueError, match=f"token id {VOCAB} .* {VOCAB}"):
            made.start(SlotInit(0, "m", wish, ()))
    with pytest.raises(ValueError, match="token id 99"):
        made.start(SlotInit(0, "m", greedy(presence_penalty=1.0), (99,)))


# --- logprobs ---


def test_logprobs_come_after_penalties_and_before_temperature() -> None:
    made = sampler(
        greedy(logprobs=2, presence_penalty=1.0),
        greedy(),
        sampling(temperature=5.0, logprobs=0),
        output=(5,),
    )
    plan = made.plan((0, 1, 2))
    drawn = made.draw(logits(5, 6, rows=3), plan)
    first, second, third = sampled_tokens((0, 1, 2), plan, drawn)
    adjusted = logits(5, 6)[0]
    adjusted[5] -= 1.0
    wanted = adjusted.log_softmax(-1)
    assert first.logprobs is not None
    assert first.logprobs.drawn == pytest.approx(wanted[first.token].item())
    assert set(first.logprobs.top_ids) == {5, 6}
    assert first.logprobs.top == pytest.approx(wanted.topk(2).values.tolist())
    assert second.logprobs is None
    assert third.logprobs is not None
    assert third.logprobs.top_ids == ()
    assert third.logprobs.drawn == pytest.approx(
        logits(5, 6)[0].log_softmax(-1)[third.token].item()
    )


def test_logarithm_of_zero_is_a_number_that_json_can_write() -> None:
    made = sampler(greedy(logprobs=20, min_tokens=1))
    values = torch.full((1, VOCAB), -torch.inf)
    values[0, 5] = 1.0
    plan = made.plan((0,))
    (token,) = sampled_tokens((0,), plan, made.draw(values, plan))
    assert token.logprobs is not None
    assert all(math.isfinite(value) for value in token.logprobs.top)
