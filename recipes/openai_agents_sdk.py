"""A program with the OpenAI Agents SDK and a calculator, which leases its episodes. Needs openai-agents and rloom.

    rloom train recipes/agent-tools.toml
    python recipes/openai_agents_sdk.py runs/agent-tools/agents/lease.json
"""

import sys
from concurrent.futures import ThreadPoolExecutor

import rloom
from agents import (
    Agent,
    MaxTurnsExceeded,
    ModelBehaviorError,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

# Episodes at a time; a session waits for the engine most of the time.
THREADS = 8


@function_tool
def calculator(expression: str) -> str:
    """Multiply two numbers."""
    left, times, right = expression.partition("*")
    return str(int(left) * int(right)) if times and (left + right).isdigit() else "error"


def play(lease):
    """Leases episodes until the run has ended."""
    for s in rloom.sessions(lease):
        with s:
            client = AsyncOpenAI(base_url=s.base_url, api_key=s.api_key)
            agent = Agent(name="calculator", tools=[calculator], model=OpenAIResponsesModel("policy", client))
            try:
                given = Runner.run_sync(agent, s.task["prompt"], max_turns=3).final_output
            except (MaxTurnsExceeded, ModelBehaviorError):
                # Too many calls, an answer that is cut off, or a tool that does not exist.
                given = ""
            s.reward(1.0 if given.rpartition("####")[2].strip() == s.task["answer"] else 0.0)


if __name__ == "__main__":
    set_tracing_disabled(True)
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(play, sys.argv[1:] * THREADS))
