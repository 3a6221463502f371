"""The advantages as their papers have them, in float64.

GRPO 2402.03300, Dr.GRPO 2503.20783, RLOO 2402.14740, REINFORCE++ 2501.03262, GAE 1506.02438, ReMax 2310.10505, OPO
2505.23585, GPG 2504.02546, max over the group 2503.19595, GDPO 2601.05242, RAFT++ 2504.11343, TOPR 2503.14286, GiGPO
2505.10978, PRIME 2502.01456. Statistics of the batch or of all so far with the deviation of the group: 2508.08221.

Throughout: a reward that does not apply leaves every statistic and its episode has advantage 0. So has the only episode
that is left of a group, where an estimator compares the group. Rewards whose spread is below the resolution of float32 are
equal. Standard deviations are taken with n − 1, but for the whitening's.
"""

import torch

from groups import GROUP_SETS
from inputs import column, digits, nested

EPSILON = 1e-4  # added to standard deviations
RESOLUTION = 2.0**-23


def equal(values):
    return len(values) == 0 or max(values) - min(values) <= RESOLUTION * max(abs(v) for v in values)


def mean(values):
    return sum(values) / len(values)


def std(values):
    return float(torch.tensor(values, dtype=torch.float64).std())


def discounted_sums(values, factor):
    """Σ_{s≥t} factor^(s−t) v_s, summed out rather than by recursion."""
    v = torch.as_tensor(values, dtype=torch.float64)
    n = len(v)
    weights = torch.tensor(
        [[factor ** (s - t) if s >= t else 0.0 for s in range(n)] for t in range(n)], dtype=torch.float64
    )
    return (weights @ v).tolist()


def penalty(x, g, e, coef):
    """coef·k1 of each token; without a weight, nothing needs a reference."""
    if coef == 0.0:
        return torch.zeros(x["tokens"][g][e], dtype=torch.float64)
    return coef * (column(x["old"][g][e]) - column(x["reference"][g][e]))


def token_rewards(x, g, e, kl_coef):
    r = -penalty(x, g, e, kl_coef)
    r[-1] += x["rewards"][g][e]
    return r


def penalised(x, g, kl_coef):
    """Rewards of a group's episodes less the KL of all their tokens."""
    return [None if r is None else r - float(penalty(x, g, e, kl_coef).sum()) for e, r in enumerate(x["rewards"][g])]


def compared(rewards, advantage):
    """`advantage(reward, present)` of each; None if it does not apply or no other episode is left."""
    present = [r for r in rewards if r is not None]
    if len(present) < 2:
        return [None] * len(rewards)
    return [None if r is None else 0.0 if equal(present) else advantage(r, present) for r in rewards]


def group_wise(x, formula, kl_coef=0.0):
    return [compared(penalised(x, g, kl_coef), formula) for g in range(len(x["rewards"]))]


def group(r, present):
    return (r - mean(present)) / (std(present) + EPSILON)


def group_mean(r, present):
    return r - mean(present)


def rloo(r, present):
    return r - (sum(present) - r) / (len(present) - 1)


def opo(x):
    out = []
    for rewards, tokens in zip(x["rewards"], x["tokens"]):
        pairs = [(r, n) for r, n in zip(rewards, tokens) if r is not None]
        baseline = sum(r * n for r, n in pairs) / sum(n for _, n in pairs)
        out.append(compared(rewards, lambda r, _: r - baseline))
    return out


def gpg(x):
    groups = [[r for r in g if r is not None] for g in x["rewards"]]
    samples = sum(len(g) for g in groups)
    telling = sum(len(g) for g in groups if not equal(g))
    return group_wise(x, lambda r, present: samples / telling * (r - mean(present)))


def max_at_g(x, divide):
    """max over all − max over all others: what the group's best loses without this episode."""

    def lead(r, present):
        others = list(present)
        others.remove(r)
        return (max(present) - max(others)) / (std(present) + EPSILON if divide else 1.0)

    return group_wise(x, lead)


def gdpo(x):
    """Before whitening."""
    out = []
    for rewards, components in zip(x["rewards"], x["components"]):
        total = [None if r is None else 0.0 for r in rewards]
        if sum(r is not None for r in rewards) < 2:
            total = [None] * len(rewards)
        for k in range(len(components[0])):
            of_name = compared([c[k]["value"] for c in components], group)
            for e, a in enumerate(of_name):
                if a is not None and total[e] is not None:
                    total[e] += components[e][k]["weight"] * a
        out.append(total)
    return out


def raft_pp(x, keep):
    out = []
    for rewards in x["rewards"]:
        present = [r for r in rewards if r is not None]
        best = rewards.index(max(present)) if present else None
        kept = (lambda e, r: r > 0) if keep == "positive" else (lambda e, r: e == best)
        out.append([None if r is None else float(kept(e, r)) for e, r in enumerate(rewards)])
    return out


def normalized(x, mean_from, std_from, before):
    """Each statistic over the group, the batch, or all rewards `before` and those of the batch."""
    batch = [r for g in x["rewards"] for r in g if r is not None]

    def statistic(source, of, present, nothing):
        return {
            "group": lambda: of(present),
            "batch": lambda: of(batch),
            "running": lambda: of(before + batch),
            "none": lambda: nothing,
        }[source]()

    out = []
    for rewards in x["rewards"]:
        present = [r for r in rewards if r is not None]
        alone = len(present) < 2 and "group" in (mean_from, std_from)
        row = []
        for r in rewards:
            if r is None or alone:
                row.append(None)
            elif mean_from == "group" and equal(present):
                row.append(0.0)
            else:
                divisor = 1.0 if std_from == "none" else statistic(std_from, std, present, None) + EPSILON
                row.append((r - statistic(mean_from, mean, present, 0.0)) / divisor)
        out.append(row)
    return out


def moments(values):
    """What is carried from batch to batch: number, mean, Σ(R − mean)², smallest and largest."""
    if not values:
        return {"count": 0, "mean": 0.0, "m2": 0.0, "low": 0.0, "high": 0.0}
    m = mean(values)
    squares = sum((v - m) ** 2 for v in values)
    mean_and_squares = {"mean": digits([m])[0], "m2": digits([squares])[0]}
    return {"count": len(values), **mean_and_squares, "low": min(values), "high": max(values)}


def gae(x, gamma, lam, kl_coef=0.0):
    """(advantages before whitening, returns)."""
    advantage, returns = [], []
    for g, rewards in enumerate(x["rewards"]):
        advantage.append([])
        returns.append([])
        for e, reward in enumerate(rewards):
            if reward is None:
                advantage[-1].append(None)
                returns[-1].append(None)
                continue
            v = column(x["values"][g][e])
            last = x["last_value"][g][e]
            after = torch.cat([v[1:], column([0.0 if last is None else last])])
            delta = token_rewards(x, g, e, kl_coef) + gamma * after - v
            a = discounted_sums(delta, gamma * lam)
            advantage[-1].append(a)
            returns[-1].append(digits([p + float(q) for p, q in zip(a, v)]))
    return advantage, returns


def reinforce_pp(x, gamma, kl_coef):
    of = lambda g, e: discounted_sums(token_rewards(x, g, e, kl_coef), gamma)
    return [[None if r is None else of(g, e) for e, r in enumerate(rewards)] for g, rewards in enumerate(x["rewards"])]


def gigpo(x, gamma, weight, divide, episode_weight=1.0, over_batch=False, others=False):
    """Both levels are divided by their standard deviation, or neither: the paper's F_norm. Over the batch, steps are
    compared with those of all groups, which the paper does not do. Nor does it compare a step with the others from its state
    and, once, with the mean over all steps, those of states that occur once included."""
    formula = group if divide else group_mean
    needs_group = episode_weight != 0.0 or not over_batch
    alike = {}  # state -> its steps' returns, over the group or the batch
    for g, (rewards, steps) in enumerate(zip(x["rewards"], x["steps"])):
        returns = [discounted_sums([s["reward"] for s in of_episode], gamma) for of_episode in steps]
        if needs_group and sum(r is not None for r in rewards) < 2:
            continue
        for e, of_episode in enumerate(steps):
            for s, step in enumerate(of_episode):
                if rewards[e] is not None and step["state"] is not None:
                    place = "batch" if over_batch else g
                    alike.setdefault((place, step["state"]), {})[g, e, s] = returns[e][s]
    of_steps = {}
    for (place, _), members in alike.items():
        if others:
            every = [value for (p, _), own in alike.items() if p == place for value in own.values()]
            scale = (std(every) + 1e-4) if divide else 1.0
            for key, value in members.items():
                rest = [other for k, other in members.items() if k != key]
                against = mean([*rest, mean(every)])
                of_steps[key] = 0.0 if max(every) == min(every) else (value - against) / scale
            continue
        for key, a in zip(members, compared(list(members.values()), formula)):
            of_steps[key] = a or 0.0  # a state seen once
    out = []
    for g, (rewards, tokens, steps) in enumerate(zip(x["rewards"], x["tokens"], x["steps"])):
        of_episodes = compared(rewards, formula)
        if not needs_group:
            of_episodes = [None if r is None else 0.0 for r in rewards]
        row = []
        for e, of_episode in enumerate(steps):
            if of_episodes[e] is None:
                row.append(None)
                continue
            a = [None] * tokens[e]
            for s, step in enumerate(of_episode):
                for t in range(step["start"], step["end"]):
                    a[t] = episode_weight * of_episodes[e] + weight * of_steps.get((g, e, s), 0.0)
            row.append(a)
        out.append(row)
    return out


def prime(x, gamma, beta):
    out = []
    for g, rewards in enumerate(x["rewards"]):
        present = [e for e, r in enumerate(rewards) if r is not None]
        q = {e: beta * (column(x["prm"][g][e]) - column(x["prm_reference"][g][e])) for e in present}
        row = []
        for e, reward in enumerate(rewards):
            others = [j for j in present if j != e]
            if reward is None or not others:
                row.append(None)
                continue
            process = discounted_sums(q[e] - mean([float(q[j].mean()) for j in others]), gamma)
            outcome = reward - mean([rewards[j] for j in others])
            row.append([p + outcome for p in process])
        out.append(row)
    return out


def whitened(x, rows):
    """(A − mean)/std over the batch's policy tokens, population variance of at least 1e-8."""
    flat = [a for row in rows for e in row if e is not None for a in e]
    if equal(flat):
        return [[None if e is None else [0.0] * len(e) for e in row] for row in rows]
    t = torch.tensor(flat, dtype=torch.float64)
    m, s = t.mean(), t.var(unbiased=False).clamp(min=1e-8).sqrt()
    return [[None if e is None else [float((a - m) / s) for a in e] for e in row] for row in rows]


def per_token(x, rows):
    spread = lambda a, n: a if isinstance(a, list) or a is None else [a] * n
    return [[spread(a, n) for a, n in zip(row, tokens)] for row, tokens in zip(rows, x["tokens"])]


def case(name, method, settings, on, rows, whiten=False, **more):
    x = GROUP_SETS[on]
    rows = per_token(x, rows)
    if whiten:
        rows = whitened(x, rows)
    expected = [
        [digits(e if e is not None else [0.0] * n) for e, n in zip(row, tokens)]
        for row, tokens in zip(rows, x["tokens"])
    ]
    return {"name": name, "method": method, "settings": nested(settings), "groups": on, "advantage": expected, **more}


def in_reward(coef):
    return {"kl": {"coef": coef, "placement": "reward"}}


def group_cases():
    cases = []
    for on in ["base", "contrast", "near equal", "all equal"]:
        x = GROUP_SETS[on]
        after = "" if on == "base" else f" {on}"
        wise = lambda formula, kl_coef=0.0: group_wise(x, formula, kl_coef)
        cases += [
            case(f"grpo{after}", "grpo", {}, on, wise(group)),
            case(f"grpo, KL in the reward{after}", "grpo", in_reward(0.1), on, wise(group, 0.1)),
            case(f"grpo, whitened{after}", "grpo", {"whiten": True}, on, wise(group), True),
            case(f"dr_grpo{after}", "dr_grpo", {}, on, wise(group_mean)),
            case(f"rloo without KL{after}", "rloo", {"kl": {"coef": 0.0}}, on, wise(rloo)),
            case(f"rloo{after}", "rloo", {}, on, wise(rloo, 0.05)),
            case(f"reinforce_pp{after}", "reinforce_pp", {}, on, reinforce_pp(x, 1.0, 0.01), True),
            case(f"reinforce_pp_baseline{after}", "reinforce_pp_baseline", {}, on, wise(group_mean), True),
            case(
                f"remax{after}",
                "remax",
                {},
                on,
                [[None if r is None else r - b for r in g] for g, b in zip(x["rewards"], x["baseline"])],
            ),
            case(f"opo{after}", "opo", {}, on, opo(x)),
            case(f"gpg{after}", "gpg", {}, on, gpg(x)),
            case(f"max_at_g{after}", "max_at_g", {}, on, max_at_g(x, False)),
            case(f"max_at_g, by the deviation{after}", "max_at_g", {"divide_by_std": True}, on, max_at_g(x, True)),
            case(f"raft_pp{after}", "raft_pp", {}, on, raft_pp(x, "positive")),
            case(f"topr{after}", "topr", {}, on, [[None if r is None else r - 0.5 for r in g] for g in x["rewards"]]),
        ]
    x = GROUP_SETS["base"]
    return cases + [
        case("raft_pp, best", "raft_pp", {"keep": "best"}, "contrast", raft_pp(GROUP_SETS["contrast"], "best")),
        case(
            "topr, another baseline",
            "topr",
            {"baseline": 0.25},
            "base",
            [[None if r is None else r - 0.25 for r in g] for g in x["rewards"]],
        ),
        case(
            "reinforce_pp, discounted",
            "reinforce_pp",
            {"gamma": 0.9, **in_reward(0.2)},
            "base",
            reinforce_pp(x, 0.9, 0.2),
            True,
        ),
        case(
            "reinforce_pp, not whitened",
            "reinforce_pp",
            {"gamma": 0.5, "whiten": False},
            "base",
            reinforce_pp(x, 0.5, 0.01),
        ),
        case(
            "reinforce_pp_baseline, KL in the reward",
            "reinforce_pp_baseline",
            in_reward(0.1),
            "base",
            group_wise(x, group_mean, 0.1),
            True,
        ),
    ]


def normalized_cases():
    cases = []
    before = [0.3, -0.2, 1.5, 0.8, 0.0]
    on = "contrast"
    x = GROUP_SETS[on]
    batch = [r for g in x["rewards"] for r in g if r is not None]
    states = {"running_before": moments(before), "running_after": moments(before + batch)}
    for m in ["group", "batch", "running", "none"]:
        for s in ["group", "batch", "running", "none"]:
            settings = {"advantage": "normalized", "mean_from": m, "std_from": s}
            more = states if "running" in (m, s) else {}
            cases.append(
                case(f"mean of {m}, deviation of {s}", "grpo", settings, on, normalized(x, m, s, before), **more)
            )
    for s in ["group", "batch", "none"]:  # also groups with equal rewards and of one
        settings = {"advantage": "normalized", "mean_from": "group", "std_from": s}
        cases.append(
            case(
                f"mean of group, deviation of {s} base",
                "grpo",
                settings,
                "base",
                normalized(GROUP_SETS["base"], "group", s, []),
            )
        )
    settings = {"advantage": "normalized", "mean_from": "running", "std_from": "running"}
    states = {"running_before": moments([]), "running_after": moments(batch)}
    cases.append(
        case("running, the first batch", "grpo", settings, on, normalized(x, "running", "running", []), **states)
    )
    return cases


def learned_cases():
    cases = []
    x = GROUP_SETS["base"]
    for gamma, lam, kl_coef, whiten in [
        (1.0, 0.95, 0.0, True),
        (1.0, 1.0, 0.0, False),
        (0.9, 0.8, 0.0, False),
        (0.99, 0.0, 0.0, True),
        (0.95, 0.9, 0.1, True),
        (0.95, 0.9, 0.1, False),
    ]:
        settings = {"gamma": gamma, "lambda": lam, "whiten": whiten, **(in_reward(kl_coef) if kl_coef else {})}
        if (gamma, lam, kl_coef) == (1.0, 0.95, 0.0):
            settings = {}
        rows, returns = gae(x, gamma, lam, kl_coef)
        name = (
            f"ppo, gamma {gamma}, lambda {lam}"
            + (f", KL {kl_coef}" if kl_coef else "")
            + ("" if whiten else ", not whitened")
        )
        cases.append(case(name, "ppo", settings, "base", rows, whiten, returns=returns))
    x = GROUP_SETS["process"]
    for gamma, beta in [(1.0, 0.05), (0.9, 0.05), (1.0, 0.5), (0.0, 0.5)]:
        settings = {} if (gamma, beta) == (1.0, 0.05) else {"gamma": gamma, "beta": beta}
        cases.append(case(f"prime, gamma {gamma}, beta {beta}", "prime", settings, "process", prime(x, gamma, beta)))
    return cases


def advantages():
    cases = group_cases() + normalized_cases() + learned_cases()
    x = GROUP_SETS["steps"]
    for gamma, weight, divide in [
        (0.95, 1.0, True),
        (0.95, 1.0, False),
        (0.5, 0.3, True),
        (1.0, 2.0, False),
        (0.95, 0.0, True),
    ]:
        settings = {"gamma": gamma, "step_weight": weight, "divide_by_std": divide}
        cases.append(
            case(
                f"gigpo, gamma {gamma}, weight {weight}{', by deviations' if divide else ''}",
                "gigpo",
                settings,
                "steps",
                gigpo(x, gamma, weight, divide),
            )
        )
    cases.append(case("gigpo", "gigpo", {}, "steps", gigpo(x, 0.95, 1.0, True)))
    for episodes, divide in [(0.0, False), (0.0, True), (0.5, True)]:
        settings = {"states_from": "batch", "episode_weight": episodes, "divide_by_std": divide}
        name = f"gigpo over the batch, weight of episodes {episodes}{', by deviations' if divide else ''}"
        cases.append(case(name, "gigpo", settings, "steps", gigpo(x, 0.95, 1.0, divide, episodes, True)))
    for divide in (False, True):
        settings = {"states_from": "batch_others", "divide_by_std": divide}
        name = f"gigpo against the others of the batch{', by deviations' if divide else ''}"
        cases.append(case(name, "gigpo", settings, "steps", gigpo(x, 0.95, 1.0, divide, 1.0, True, True)))
    x = GROUP_SETS["named"]
    cases.append(case("gdpo", "gdpo", {}, "named", gdpo(x), True))
    cases.append(case("gdpo, not whitened", "gdpo", {"whiten": False}, "named", gdpo(x)))
    return cases
