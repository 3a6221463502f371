"""Distillation losses as TRL computes them, and PyTorch's own KL.

    pip install trl==1.16.0 torch
    python from_trl_distillation.py > distillation.json

Over the whole vocabulary: `GKDTrainer.generalized_jsd_loss` of `trl.experimental.gkd`, with the derivative by the student's logits
by autograd; at the ends, β = 0 and 1, it is compared with `torch.nn.functional.kl_div`. Over the teacher's most probable tokens: `_jsd_divergence` and
`_add_tail_bucket` of `trl.experimental.server_distillation`, with the derivative by the student's log-probabilities of these tokens.
All in float64 on inputs that are rounded to float32. The page of the method says what TRL does in another way.
"""

import json
import sys

import numpy as np
import torch
import torch.nn.functional as F
import trl
from trl.experimental.gkd.gkd_trainer import GKDTrainer
from trl.experimental.server_distillation.server_distillation_trainer import _add_tail_bucket, _jsd_divergence

KINDS = [("forward_kl", 0.0), ("reverse_kl", 1.0), ("jensen_shannon", 0.5), ("jensen_shannon", 0.1), ("jensen_shannon", 0.9)]


def digits(x):
    return [float(f"{v:.10g}") + 0.0 for v in torch.as_tensor(x, dtype=torch.float64).flatten().tolist()]


def logits(seed, tokens, vocabulary, spread):
    values = np.random.RandomState(seed).randn(tokens, vocabulary) * spread
    return torch.tensor(np.round(values, 4).astype(np.float32).astype(np.float64))


def inputs():
    return {
        "near": (a := logits(41, 3, 11, 1.0), a + logits(42, 3, 11, 0.1).float().double()),
        "far": (logits(43, 4, 17, 3.0), logits(44, 4, 17, 3.0)),
        "blocks": (logits(45, 2, 530, 2.0), logits(46, 2, 530, 2.0)),
        "equal": (a, a.clone()),
    }


def as_f32(x):
    return x.float().double()


def vocabulary(name, student, teacher, kind, beta, temperature):
    student = as_f32(student).requires_grad_()
    teacher = as_f32(teacher)
    loss = GKDTrainer.generalized_jsd_loss(student, teacher, beta=beta, temperature=temperature, reduction="sum")
    loss = loss / len(student)
    if beta in (0.0, 1.0):
        p, q = (F.log_softmax(x / temperature, dim=-1) for x in (student, teacher))
        own = F.kl_div(*((p, q) if beta == 0.0 else (q, p)), reduction="batchmean", log_target=True)
        assert torch.allclose(own, loss, rtol=1e-12, atol=1e-15)
    loss.backward()
    return {
        "name": f"{name} {kind} {beta:g} at {temperature:g}",
        "on": name,
        "kind": kind,
        "beta": beta,
        "temperature": temperature,
        "loss": digits(loss)[0],
        "d_logits": digits(student.grad),
    }


def top(name, student, teacher, kind, beta, k):
    teacher_logprobs = F.log_softmax(as_f32(teacher), dim=-1)
    chosen = teacher_logprobs.topk(k, dim=-1).indices
    of_teacher = as_f32(teacher_logprobs.gather(-1, chosen))
    of_student = as_f32(F.log_softmax(as_f32(student), dim=-1).gather(-1, chosen)).requires_grad_()
    valid = torch.ones_like(chosen, dtype=torch.bool)
    p, _ = _add_tail_bucket(of_student, valid)
    q, _ = _add_tail_bucket(of_teacher, valid)
    loss = _jsd_divergence(p, q, beta).sum() / len(student)
    loss.backward()
    return {
        "name": f"{name} {kind} {beta:g} top {k}",
        "kind": kind,
        "beta": beta,
        "k": k,
        "tokens": len(student),
        "student": digits(of_student.detach()),
        "teacher": digits(of_teacher),
        "loss": digits(loss)[0],
        "d_logprob": digits(of_student.grad),
    }


if __name__ == "__main__":
    whole = [
        vocabulary(name, *pair, kind, beta, temperature)
        for name, pair in inputs().items()
        for kind, beta in KINDS
        for temperature in ((1.7,) if name == "blocks" else (1.0, 1.7))
    ]
    named = {
        name: {"tokens": len(student), "student": digits(as_f32(student)), "teacher": digits(as_f32(teacher))}
        for name, (student, teacher) in inputs().items()
    }
    tops = [
        top(name, *pair, kind, beta, k)
        for name, pair in inputs().items()
        for kind, beta in KINDS
        for k in (1, 4)
    ]
    versions = json.dumps({"trl": trl.__version__, "torch": torch.__version__.split("+")[0]})
    lines = lambda cases: ",\n".join(json.dumps(case) for case in cases)
    sys.stdout.write(
        '{"versions": ' + versions + ', "inputs": ' + json.dumps(named) + ', "vocabulary": [\n' + lines(whole)
        + '\n], "top": [\n' + lines(tops) + "\n]}\n"
    )
