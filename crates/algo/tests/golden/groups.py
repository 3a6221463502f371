"""Groups of episodes as inputs of advantages, shared by the golden programs.

A set has, per group and episode: `rewards` (null does not apply), `tokens`, `old` and `reference` per token; and where an
estimator reads them `values` per token with `last_value` (null: the episode ended, a number: it was cut off),
`baseline` (per group, the greedy episode's reward), `components` ({weight, value}), `steps` ({start, end, reward,
state}), `prm` and `prm_reference` per token and `outcome`.
"""

import numpy as np

from inputs import make, sequences

BASE = [
    [1.0, 0.0, 0.0, 1.0],
    [0.25, 0.5, -1.0, 2.0],
    [0.0, 0.95, 0.95, 0.95],
    [1.0, 1.0, 1.0, 1.0],
    [0.5, None, 0.0, 1.0],
    [None, None, 0.7, None],
]
BASE_TOKENS = [[3, 1, 2, 4], [2, 5, 1, 3], [1, 2, 2, 6], [3, 3, 1, 2], [2, 4, 1, 1], [2, 1, 3, 2]]


def episodes(seed, tokens, name):
    """One list of numbers per episode, nested as `tokens` is."""
    x = make(seed, [n for g in tokens for n in g], 0.2)
    ranges = iter(sequences(x["lengths"]))
    return [[[x[name][i] for i in next(ranges)] for _ in g] for g in tokens]


def group_set(seed, rewards, tokens, **more):
    return {
        "rewards": rewards,
        "tokens": tokens,
        "old": episodes(seed, tokens, "old"),
        "reference": episodes(seed, tokens, "reference"),
        **more,
    }


def judged(seed, tokens):
    """Values of a critic, and of some episodes the value after the end: those were cut off."""
    rng = np.random.RandomState(seed)
    values = [[np.round(rng.randn(n) * 0.7, 4).tolist() for n in g] for g in tokens]
    last = [[round(float(rng.randn()), 4) if rng.rand() < 0.4 else None for _ in g] for g in tokens]
    return {"values": values, "last_value": last, "truncated": [[v is not None for v in g] for g in last]}


def contrast():
    rewards = [[0.0, 1.0, 0.5, -1.0], [2.0, 0.25, 2.0], [0.1, -0.3, None, 0.4]]
    tokens = [[2, 3, 1, 4], [1, 5, 2], [3, 2, 2, 1]]
    return group_set(12, rewards, tokens, baseline=[0.5, 1.0, -0.2])


def near_equal():
    f = lambda x: float(np.float32(x))
    rewards = [
        [0.0] + [f(0.95)] * 7,
        [0.3, 0.1 + 0.2, 0.3],
        [1.0, 1.0 + 1e-7, 1.0, 1.0],
        [1.0, 1.0 + 1e-6, 1.0, 1.0],
        [1e6, 1e6 + 0.01, 1e6],
    ]
    tokens = [[2, 1, 3, 1, 2, 4, 1, 2], [1, 2, 2], [3, 1, 1, 2], [2, 1, 1, 1], [2, 2, 1]]
    return group_set(13, rewards, tokens, baseline=[0.0, 0.3, 1.0, 1.0, 0.0])


def all_equal():
    return group_set(
        14, [[1.0, 1.0, 1.0], [0.0, 0.0], [-0.5, -0.5, None]], [[2, 1, 3], [1, 4], [2, 2, 1]], baseline=[1.0, 0.0, -0.5]
    )


def named():
    """Rewards by name; a component that does not apply leaves the others."""
    weights = [1.0, 0.5, 0.25]
    values = [
        [[1.0, 0.2, 3.0], [0.0, 0.8, 1.0], [1.0, 0.5, None], [0.0, 0.1, 2.0]],
        [[1.0, 0.3, 0.5], [1.0, 0.9, 0.5], [1.0, 0.6, 0.5]],
        [[0.0, None, 1.0], [1.0, 0.4, 4.0], [None, None, None]],
        [[1.0, 0.5, 1.0], [None, None, None]],
    ]
    tokens = [[2, 3, 1, 4], [1, 5, 2], [3, 2, 2], [2, 1]]
    total = lambda e: None if all(v is None for v in e) else sum(w * v for w, v in zip(weights, e) if v is not None)
    components = [[[{"weight": w, "value": v} for w, v in zip(weights, e)] for e in g] for g in values]
    return group_set(15, [[total(e) for e in g] for g in values], tokens, components=components)


def stepped():
    """Episodes in steps of (tokens, reward, state before it); an episode's reward is the sum of its steps'."""
    played = [
        [
            [(2, 0.0, "start"), (1, 0.0, "door"), (2, 1.0, "hall")],
            [(1, 0.0, "start"), (3, -0.1, "door"), (1, 0.0, "door"), (1, 0.5, "cave")],  # a state twice in one episode
            [(2, 0.0, "start"), (2, 0.0, "hall")],
            [(3, 0.2, "start"), (1, 0.0, None)],  # no other step in the same state
        ],
        [
            [(1, 1.0, "start"), (2, 0.0, "end")],  # equal totals: the steps alone tell
            [(2, 0.0, "start"), (1, 1.0, "end")],
            [(1, 0.5, "start"), (1, 0.5, "end")],
        ],
        [
            [(2, 0.4, "x")],
            [(1, 0.4, "x"), (1, 0.0, "y")],
            [(3, 0.4, "x"), (2, 0.6, "y")],
            [(2, 9.0, "x"), (1, 9.0, "y")],  # does not apply
        ],
        [[(1, 1.0, "x")], [(2, 3.0, "x")]],  # one of two is left
    ]
    tokens = [[sum(n for n, _, _ in e) for e in g] for g in played]
    rewards = [[round(sum(r for _, r, _ in e), 12) for e in g] for g in played]
    rewards[2][3] = rewards[3][1] = None
    steps = []
    for g in played:
        steps.append([])
        for e in g:
            start, of_episode = 0, []
            for n, reward, state in e:
                of_episode.append({"start": start, "end": start + n, "reward": reward, "state": state})
                start += n
            steps[-1].append(of_episode)
    return group_set(16, rewards, tokens, steps=steps)


def process():
    rewards = [[1.0, 0.0, 0.0, 1.0], [1.0, 1.0, 1.0], [0.0, None, 1.0], [None, 1.0]]
    tokens = [[3, 1, 2, 4], [2, 5, 1], [3, 2, 2], [2, 3]]
    outcome = [[r or 0.0 for r in g] for g in rewards]
    return group_set(
        17,
        rewards,
        tokens,
        prm=episodes(18, tokens, "logprob"),
        prm_reference=episodes(18, tokens, "reference"),
        outcome=outcome,
    )


GROUP_SETS = {
    "base": group_set(11, BASE, BASE_TOKENS, baseline=[0.5, 0.25, 0.95, 1.0, 0.0, 0.3], **judged(19, BASE_TOKENS)),
    "contrast": contrast(),
    "near equal": near_equal(),
    "all equal": all_equal(),
    "named": named(),
    "steps": stepped(),
    "process": process(),
}
