"""Comparisons of distributions in chunks, against whole distributions and automatic derivatives."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from rloom.torch import comparison
from rloom.torch.comparison import Comparison, Divergence, Head, Kind, most_probable
from torch import Tensor

ROWS, WIDTH, TOKENS = 7, 5, 11


@pytest.fixture(autouse=True)
def _chunks_of_three_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "chunk_rows", lambda vocabulary, device: 3)


def head(tokens: int, width: int, seed: int) -> Head:
    numbers = torch.Generator().manual_seed(seed)
    hidden, weight, bias = (
        torch.randn(*shape, generator=numbers, dtype=torch.float64)
        for shape in ((ROWS, width), (tokens, width), (tokens,))
    )
    return Head(hidden.requires_grad_(), weight.requires_grad_(), bias.requires_grad_())


def logprobs(own: Head, tokens: int, inverse: float | Tensor) -> Tensor:
    logits = torch.nn.functional.linear(own.hidden, own.weight, own.bias)
    return torch.log_softmax(logits[:, :tokens] * inverse, -1)


def gradients(value: Tensor, own: Head) -> list[Tensor]:
    assert own.bias is not None
    d = torch.linspace(-1, 2, value.numel(), dtype=value.dtype).view(value.shape)
    return list(torch.autograd.grad((d * value).sum(), [own.hidden, own.weight, own.bias]))


def check(found: Tensor, expected: Tensor, own: Head) -> None:
    assert torch.allclose(found, expected, rtol=1e-12, atol=1e-12)
    for a, b in zip(gradients(found, own), gradients(expected, own), strict=True):
        assert torch.allclose(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", get_args(Kind))
@pytest.mark.parametrize("tokens", [(TOKENS, TOKENS + 2), (TOKENS + 3, TOKENS)])
def test_divergences_are_those_of_whole_distributions(kind: Kind, tokens: tuple[int, int]) -> None:
    student, teacher, divergence = (
        head(tokens[0], WIDTH, 1),
        head(tokens[1], 3, 2),
        Divergence(kind, 0.3, 0.7),
    )
    lp, lq = (logprobs(own, TOKENS, 0.7) for own in (student, teacher))
    p, q = lp.exp(), lq.exp().detach()
    lq = lq.detach()
    mixture = (0.3 * q + 0.7 * p).log()
    expected = {
        "forward_kl": (q * (lq - lp)).sum(1),
        "reverse_kl": (p * (lp - lq)).sum(1),
        "jensen_shannon": 0.3 * (q * (lq - mixture)).sum(1) + 0.7 * (p * (lp - mixture)).sum(1),
    }[kind]
    check(Comparison(teacher, divergence).scores(student), expected, student)


@pytest.mark.parametrize("kind", get_args(Kind))
def test_equal_distributions_have_no_divergence_and_no_gradient(kind: Kind) -> None:
    own = head(TOKENS, WIDTH, 1)
    found = Comparison(Head(own.hidden, own.weight, own.bias), Divergence(kind, 0.3, 1.3)).scores(own)
    assert found.abs().max() < 1e-15
    assert max(d.abs().max() for d in gradients(found, own)) < 1e-14


def test_tokens_without_probability_are_no_numbers_problem() -> None:
    own, other = head(TOKENS, WIDTH, 1), head(TOKENS, WIDTH, 2)
    with torch.no_grad():
        for each, token in ((own, 2), (other, 4)):
            assert each.bias is not None
            each.bias[token] = -1e4
    for kind in ("forward_kl", "jensen_shannon"):
        found = Comparison(other, Divergence(kind, 0.5, 1.0)).scores(own)
        assert all(torch.isfinite(x).all() for x in (found, *gradients(found, own)))


def test_candidates_have_their_log_probabilities() -> None:
    own, numbers = head(TOKENS, WIDTH, 1), torch.Generator().manual_seed(3)
    ids = torch.stack([torch.randperm(TOKENS, generator=numbers)[:4] for _ in range(ROWS)])
    inverse = torch.linspace(0.5, 1.5, ROWS, dtype=torch.float64)
    compared = Comparison(candidates=ids, inv_temperature=inverse)
    expected = logprobs(own, TOKENS, inverse[:, None]).gather(1, ids)
    check(compared.scores(own), expected, own)
    rows = torch.tensor([5, 1])
    some = Head(own.hidden[rows], own.weight, own.bias)
    assert torch.allclose(compared.only(rows).scores(some), expected[rows])


def test_the_most_probable_tokens_come_in_order() -> None:
    own = head(TOKENS, WIDTH, 1)
    ids, found = most_probable(own, 4, TOKENS - 2, 0.7)
    expected = logprobs(own, TOKENS - 2, 0.7)
    assert torch.equal(ids, expected.topk(4).indices)
    assert torch.allclose(found, expected.gather(1, ids))
    # Of equal ones the smaller id, and all if there are no more.
    even = Head(own.hidden, torch.zeros_like(own.weight), None)
    ids, found = most_probable(even, TOKENS + 5, TOKENS, 1.0)
    assert torch.equal(ids, torch.arange(TOKENS).expand(ROWS, TOKENS))
    assert most_probable(Head(own.hidden[:0], own.weight, own.bias), 4, TOKENS, 1.0)[0].shape == (0, 4)
