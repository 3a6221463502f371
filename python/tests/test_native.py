"""The extension module computes what the Rust crates compute, bit for bit."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from rloom import NativeError
from rloom._native import LossStep, WeightDigest, digest_order

CASES = json.loads((Path(__file__).parent / "data" / "losses.json").read_text())


NAMES = ("logprob", "entropy", "value", "last_value")


def scores(case: dict[str, Any]) -> list[dict[str, bytes]]:
    return [dict(zip(NAMES, map(bytes.fromhex, parts), strict=False)) for parts in case["scores"]]


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case["name"]))
def test_a_loss_has_the_bits_of_the_controller(case: dict[str, Any]) -> None:
    step = LossStep.from_bytes(bytes.fromhex(case["step"]))
    assert [step.inert(0), step.inert(1)] == case["inert"]
    if case["scope"] == "step":
        return
    grads = [step.evaluate(i, given) for i, given in enumerate(scores(case))]
    assert [[g.d_logprob.hex(), g.d_entropy.hex(), g.d_value.hex()] for g in grads] == case["grads"]
    assert [g.terms.to_bytes().hex() for g in grads] == case["terms"]
    assert [struct.pack("<d", g.terms.loss).hex() for g in grads] == case["losses"]


def test_a_bad_array_is_named() -> None:
    step = LossStep.from_bytes(bytes.fromhex(CASES[0]["step"]))
    with pytest.raises(ValueError, match="^entropy: 7 bytes are no array of f32"):
        step.evaluate(0, {"logprob": bytes(12), "entropy": bytes(7)})


def test_errors_of_the_loss_become_exceptions() -> None:
    step = LossStep.from_bytes(bytes.fromhex(CASES[0]["step"]))
    with pytest.raises(NativeError, match="2 entries for 3 policy tokens|3 entries for 2 policy tokens"):
        step.evaluate(0, {"logprob": bytes(12), "entropy": bytes(8)})
    with pytest.raises(NativeError, match="micro-batch"):
        step.evaluate(2, {})
    with pytest.raises(NativeError, match="could not decode the loss of an optimiser step from 3 bytes"):
        LossStep.from_bytes(b"abc")


def test_an_errors_hint_is_its_second_line() -> None:
    (case,) = (case for case in CASES if case["scope"] == "step")
    step = LossStep.from_bytes(bytes.fromhex(case["step"]))
    with pytest.raises(NativeError, match="\nhint: "):
        step.evaluate(0, scores(case)[0])


def test_pieces_have_the_digest_of_the_whole() -> None:
    digest = WeightDigest()
    digest.update(b"1234")
    digest.update(b"56789")
    assert digest.value == 0xE3069283  # CRC-32C's check value


def test_tensors_are_digested_in_the_order_of_the_model() -> None:
    names = [
        "score.weight",
        "lm_head.weight",
        "model.layers.10.input_layernorm.weight",
        "model.layers.9.mlp.down_proj.weight",
        "model.embed_tokens.weight",
        "model.layers.9.self_attn.q_proj.weight",
        "model.norm.weight",
    ]
    assert digest_order(names) == [names[i] for i in (4, 5, 3, 2, 6, 1, 0)]
