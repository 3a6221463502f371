"""Advantages of MAGRPO with cross pairing, computed by CoMLRL 1.4.3 from tables of joint rewards.

    pip install --no-deps comlrl==1.4.3
    python crates/algo/tests/golden/from_comlrl.py > crates/algo/tests/golden/from_comlrl.json

The trainer's own step runs with completions that stand for the rows and columns of a table; the returns that it buffers go
through its own function of the advantage. CoMLRL sums the joint returns of a completion.
"""

import json
from types import SimpleNamespace

import torch
from comlrl.trainers.reinforce.magrpo import MAGRPOTrainer

TABLES = [
    [[1.0, 0.0, 0.5], [0.0, 0.0, 1.0], [0.0, 1.0, 0.0]],
    [[0.3, -0.2, 0.9], [1.1, 0.4, 0.0], [-0.7, 0.25, 0.6]],
    [[0.1, 0.7, 0.4], [0.1, 0.7, 0.4], [0.1, 0.7, 0.4]],
]


def advantages(table):
    """The advantages of the completions of both agents."""
    size = len(table)
    texts = [[str(place) for place in range(size)] for _ in range(2)]

    def generate(agent, batch, agent_idx, **_):
        return {"completions": [texts[agent_idx]], "prompts": ["task"]}

    def reward(first, second):
        return [table[int(a)][int(b)] for a, b in zip(first, second)]

    trainer = SimpleNamespace(
        args=SimpleNamespace(
            num_turns=1,
            num_generations=size,
            max_new_tokens=1,
            joint_mode="cross",
            rollout_buffer_size=1,
        ),
        agents=["a", "b"],
        num_agents=2,
        env_step=0,
        advantage_mode="mean",
        reward_func=reward,
        reward_processor=lambda value: value,
        rollout_buffers=[[], []],
        _generate_completions_with_external_prompts=generate,
        _run_agent_tasks=lambda task: [task(0), task(1)],
        _pack_completions_for_buffer=lambda completions: completions,
        _drain_ready_buffers=lambda ready: None,
    )
    MAGRPOTrainer._train_step_returns(trainer, {})
    returns = [torch.tensor(buffer[0].returns, dtype=torch.float64) for buffer in trainer.rollout_buffers]
    return [MAGRPOTrainer._compute_advantages(trainer, own).tolist() for own in returns]


print(json.dumps({"cases": [{"rewards": table, "advantages": advantages(table)} for table in TABLES]}, indent=1))
