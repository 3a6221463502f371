"""Reference results of PyTorch for the operations of a decoder layer: python layers.py > layers.json

Inputs are small multiples of 1/64, so that the file holds them exactly; results are f32 with nine digits.
"""

import json

import torch

torch.manual_seed(0)


def numbers(*shape):
    return torch.randint(-64, 65, shape).to(torch.float32) / 64


def listed(tensor):
    return [float(f"{x:.9g}") for x in tensor.detach().flatten().tolist()]


def rms_norm():
    rows, d, eps = 3, 20, 1e-6
    x, w, dy = numbers(rows, d).requires_grad_(), numbers(d).requires_grad_(), numbers(rows, d)
    y = torch.nn.functional.rms_norm(x, (d,), w, eps)
    y.backward(dy)
    return dict(rows=rows, d=d, eps=eps, x=listed(x), w=listed(w), dy=listed(dy), y=listed(y), dx=listed(x.grad), dw=listed(w.grad))


def rope():
    heads, e, theta, positions = 2, 12, 10000.0, [0, 1, 5, 300]
    inv_freq = 1.0 / theta ** (torch.arange(0, e, 2, dtype=torch.float32) / e)
    x, dy = numbers(len(positions), heads, e).requires_grad_(), numbers(len(positions), heads, e)
    angle = torch.tensor(positions, dtype=torch.float32)[:, None] * inv_freq[None, :]
    angle = torch.cat([angle, angle], dim=-1)[:, None, :]
    rotated = torch.cat([-x[..., e // 2 :], x[..., : e // 2]], dim=-1)
    y = x * angle.cos() + rotated * angle.sin()
    y.backward(dy)
    return dict(heads=heads, e=e, positions=positions, inv_freq=listed(inv_freq), x=listed(x), dy=listed(dy), y=listed(y), dx=listed(x.grad))


def swiglu():
    rows, f = 3, 19
    gate_up, dy = (numbers(rows, 2 * f) * 4).requires_grad_(), numbers(rows, f)
    gate, up = gate_up.chunk(2, dim=-1)
    y = torch.nn.functional.silu(gate) * up
    y.backward(dy)
    return dict(rows=rows, f=f, gate_up=listed(gate_up), dy=listed(dy), y=listed(y), dgate_up=listed(gate_up.grad))


def attention():
    heads, kv_heads, e, lengths = 4, 2, 6, [1, 17]
    tokens = sum(lengths)
    q, k, v = (numbers(tokens, n, e).requires_grad_() for n in (heads, kv_heads, kv_heads))
    d_out = numbers(tokens, heads, e)
    out, start = [], 0
    for n in lengths:
        one = slice(start, start + n)
        parts = (x[one].transpose(0, 1)[None] for x in (q, k, v))
        out.append(torch.nn.functional.scaled_dot_product_attention(*parts, is_causal=True, enable_gqa=True)[0].transpose(0, 1))
        start += n
    out = torch.cat(out)
    out.backward(d_out)
    return dict(heads=heads, kv_heads=kv_heads, e=e, lengths=lengths, q=listed(q), k=listed(k), v=listed(v), d_out=listed(d_out), out=listed(out), dq=listed(q.grad), dk=listed(k.grad), dv=listed(v.grad))


def adamw():
    n, steps = 7, 4
    settings = dict(lr=0.01, beta1=0.9, beta2=0.95, eps=1e-8, weight_decay=0.1)
    w = numbers(n).requires_grad_()
    start, grads = listed(w), []
    optimizer = torch.optim.AdamW([w], lr=settings["lr"], betas=(settings["beta1"], settings["beta2"]), eps=settings["eps"], weight_decay=settings["weight_decay"])
    for _ in range(steps):
        w.grad = numbers(n)
        grads.append(listed(w.grad))
        optimizer.step()
    state = optimizer.state[w]
    return dict(settings, start=start, grads=grads, w=listed(w), m=listed(state["exp_avg"]), v=listed(state["exp_avg_sq"]))


def adamw_fused():
    """Gradients of many magnitudes, with initial weights of zero, so that the first weights equal the first update."""
    n, steps = 37, 5
    settings = dict(lr=0.001, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.01)
    w = torch.zeros(n).requires_grad_()
    optimizer = torch.optim.AdamW([w], lr=settings["lr"], betas=(settings["beta1"], settings["beta2"]), eps=settings["eps"], weight_decay=settings["weight_decay"], fused=True)
    sizes = 2.0 ** torch.randint(-12, 7, (n,))
    grads, weights, means, squares = [], [], [], []
    for _ in range(steps):
        w.grad = (numbers(n).abs() + 0.25) * sizes
        grads.append(listed(w.grad))
        optimizer.step()
        state = optimizer.state[w]
        weights.append(listed(w))
        means.append(listed(state["exp_avg"]))
        squares.append(listed(state["exp_avg_sq"]))
    return dict(settings, grads=grads, w=weights, m=means, v=squares)


print(json.dumps({f.__name__: f() for f in (rms_norm, rope, swiglu, attention, adamw, adamw_fused)}))
