"""Parameters mean what OpenAI's API says, and a request's draws are its own."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import TopKLogitsWarper, TopPLogitsWarper

from otelctx.errors import InvalidRequest
from otelctx.inference import sampling
from otelctx.inference.sampling import Params, RowState, Sampler

VOCAB = 600  # more than the shortcut of top-p looks at
SAMPLER = Sampler()


def lines(seed: int, count: int, *, spread: float = 3.0) -> torch.Tensor:
    return torch.randn(count, VOCAB, generator=torch.Generator().manual_seed(seed)) * spread


def draw(logits: torch.Tensor, params: Params, times: int) -> Counter[int]:
    """How often each id is drawn from one line of logits, each time by a request with another seed."""
    rows = [RowState(replace(params, seed=(params.seed or 0) + n)) for n in range(times)]
    return Counter(SAMPLER.sample(logits.expand(times, -1), rows))


@pytest.mark.parametrize("temperature", [0, 0.0, 1e-6])
def test_without_temperature_the_likeliest_token_is_taken(temperature: float) -> None:
    """And other filters or a seed change nothing."""
    logits = lines(1, 3)
    rows = [RowState(Params(temperature=temperature, top_p=0.1, top_k=5, seed=at)) for at in range(3)]
    assert SAMPLER.sample(logits, rows) == logits.argmax(-1).tolist()


def test_defaults_are_openais() -> None:
    """Plain sampling from the whole distribution."""
    assert Params() == Params(temperature=1, top_p=1, top_k=0, seed=None, frequency_penalty=0, presence_penalty=0)
    assert not Params().greedy


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", 2.1),
        ("temperature", float("nan")),
        ("temperature", True),
        ("temperature", "1"),
        ("top_p", 1.01),
        ("top_p", -1),
        ("top_k", -1),
        ("top_k", 1.5),
        ("frequency_penalty", 2.5),
        ("presence_penalty", -2.5),
        ("seed", 1.0),
        ("seed", True),
    ],
)
def test_values_out_of_range_are_the_clients_error(name: str, value: Any) -> None:
    """HTTP 400 with the parameter's name."""
    with pytest.raises(InvalidRequest, match=name) as caught:
        Params(**{name: value})
    assert (caught.value.status, caught.value.param) == (400, name)


@pytest.mark.parametrize("seed", [0, -5, 2**80])
def test_the_same_seed_gives_the_same_tokens(seed: int) -> None:
    """Any int is a seed, and another seed gives other tokens."""
    logits = lines(2, 12)

    def tokens(params: Params) -> list[int]:
        row = RowState(params)
        return [SAMPLER.sample(line[None], [row])[0] for line in logits]

    assert tokens(Params(seed=seed)) == tokens(Params(seed=seed))
    assert tokens(Params(seed=seed)) != tokens(Params(seed=seed + 1))


def test_without_a_seed_requests_differ() -> None:
    """Two users with the same prompt don't get the same answer."""
    logits = lines(3, 20)
    one, other = RowState(Params()), RowState(Params())
    assert SAMPLER.sample(logits, [one] * 20) != SAMPLER.sample(logits, [other] * 20)


ANY = st.builds(
    Params,
    temperature=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
    top_p=st.sampled_from([0.0, 0.3, 0.9, 1.0]),
    top_k=st.sampled_from([0, 1, 7]),
    seed=st.integers(0, 3),
    frequency_penalty=st.sampled_from([0.0, 1.5]),
    presence_penalty=st.sampled_from([0.0, -2.0]),
)


@given(st.lists(ANY, min_size=1, max_size=6), st.integers(0, 5))
def test_neighbours_change_nothing(params: list[Params], seed: int) -> None:
    """Each row draws in a batch what it draws alone, over several steps, whatever the others ask for."""
    together = [RowState(one) for one in params]
    alone = [RowState(one) for one in params]
    for step in range(3):
        logits = lines(seed + 100 * step, len(params))
        batch = SAMPLER.sample(logits, together)
        assert batch == [SAMPLER.sample(logits[at : at + 1], [row])[0] for at, row in enumerate(alone)]


def test_one_seed_does_not_reach_another_request_or_torch() -> None:
    """No global random state is read or moved."""
    before = torch.get_rng_state()
    seeded, free = RowState(Params(seed=1)), RowState(Params(seed=2))
    logits = lines(4, 1)
    alone = [SAMPLER.sample(logits, [RowState(Params(seed=1))])[0]]
    SAMPLER.sample(logits, [free])
    torch.manual_seed(99)
    assert [SAMPLER.sample(logits, [seeded])[0]] == alone
    torch.set_rng_state(before)
    SAMPLER.sample(logits, [free])
    assert torch.equal(torch.get_rng_state(), before)


def test_draws_follow_the_distribution() -> None:
    """Each token as often as its probability says, within five standard deviations."""
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0, float("-inf")]])
    times = 20_000
    counts = draw(logits, Params(seed=7, temperature=0.8), times)
    for token, share in enumerate((logits[0] / 0.8).softmax(-1).tolist()):
        assert abs(counts[token] - share * times) <= 5 * (share * (1 - share) * times) ** 0.5
    assert counts[4] == 0


@given(st.integers(0, 50), st.sampled_from([0.05, 0.5, 0.9, 0.99]), st.sampled_from([0.1, 1.0, 4.0]))
def test_top_p_keeps_what_transformers_keeps(seed: int, top_p: float, spread: float) -> None:
    """The shortcut over the likeliest 256 tokens, and the sort where the nucleus is wider, give the same set."""
    logits = lines(seed, 3, spread=spread)
    kept = sampling._nucleus(logits, top_p).isfinite()
    expected = TopPLogitsWarper(top_p)(torch.empty(0, dtype=torch.long), logits).isfinite()
    # A token whose mass ends within rounding of the bound may fall on either side.
    assert int((kept != expected).sum(-1).max()) <= 1
    assert bool(kept.any(-1).all())


def test_a_wide_nucleus_is_found_too() -> None:
    """A flat line next to a steep one: only the flat one needs the sort, and neither is cut short."""
    logits = torch.stack([torch.zeros(VOCAB) + torch.arange(VOCAB) * 1e-4, lines(1, 1, spread=20.0)[0]])
    kept = sampling._nucleus(logits, 0.9).isfinite().sum(-1).tolist()
    assert 530 <= kept[0] <= 545
    assert kept[1] < 10


def test_top_p_zero_is_the_likeliest_token() -> None:
    """At least one token always stays."""
    logits = lines(5, 4)
    rows = [RowState(Params(top_p=0, seed=at)) for at in range(4)]
    assert SAMPLER.sample(logits, rows) == logits.argmax(-1).tolist()


def test_top_k_keeps_k() -> None:
    """Also where k exceeds the vocabulary."""
    logits = lines(6, 1, spread=0.1)
    allowed = set(TopKLogitsWarper(7)(torch.empty(0, dtype=torch.long), logits).isfinite()[0].nonzero()[:, 0].tolist())
    assert set(draw(logits, Params(top_k=7, seed=1), 500)) == allowed
    draw(logits, Params(top_k=VOCAB + 5, seed=1), 5)


def test_penalties_are_openais() -> None:
    """logit − count · frequency − (count > 0) · presence, over what this request has generated."""
    logits = torch.zeros(1, 5)
    row = RowState(Params(frequency_penalty=0.5, presence_penalty=1.25))
    row.counts.update([2, 2, 4])
    scores = sampling._penalise(logits, [row])
    assert scores.tolist() == [[0, 0, -0.5 * 2 - 1.25, 0, -0.5 - 1.25]]
    assert not logits.any()


def test_penalties_reach_greedy_rows_too() -> None:
    """The same token isn't taken for ever, and a row without penalties beside it takes it again."""
    logits = torch.tensor([[3.0, 2.9, 0.0]] * 2)
    penalised = Params(temperature=0, presence_penalty=1)
    rows = [RowState(penalised), RowState(replace(penalised, presence_penalty=0))]
    assert [SAMPLER.sample(logits, rows) for _ in range(3)] == [[0, 0], [1, 0], [0, 0]]


def test_the_callers_logits_are_not_written() -> None:
    """They may be compared or sampled again."""
    logits = lines(8, 2)
    before = logits.clone()
    rows = [RowState(Params(top_p=0.5, top_k=3, temperature=0.5, frequency_penalty=1)) for _ in range(2)]
    for _ in range(3):
        SAMPLER.sample(logits, rows)
    assert torch.equal(logits, before)


def test_one_row_for_each_line() -> None:
    """A mismatch would give one request another's token."""
    with pytest.raises(ValueError, match="2 lines of logits for 1 rows"):
        SAMPLER.sample(lines(9, 2), [RowState(Params())])
