"""A LangGraph agent with a calculator, which leases its episodes. Needs the packages langgraph, langchain-openai
and rloom.

    rloom train recipes/agent-tools.toml
    python recipes/langgraph_agent.py runs/agent-tools/agents/lease.json
"""

import sys
from concurrent.futures import ThreadPoolExecutor

import rloom
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.errors import GraphRecursionError
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

# Episodes at a time; a session waits for the engine most of the time.
THREADS = 8


@tool
def calculator(expression: str) -> str:
    """Multiply two numbers."""
    left, times, right = expression.partition("*")
    return str(int(left) * int(right)) if times and (left + right).isdigit() else "error"


def build(model):
    """The policy and its tools, in turns."""
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode([calculator]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    return graph.compile()


def play(lease):
    """Leases episodes until the run has ended."""
    for s in rloom.sessions(lease):
        with s:
            model = ChatOpenAI(model="policy", base_url=s.base_url, api_key=s.api_key)
            agent = build(model.bind_tools([calculator]))
            messages = [{"role": "user", "content": s.task["prompt"]}]
            try:
                given = agent.invoke({"messages": messages}, {"recursion_limit": 5})["messages"][-1].text
            except GraphRecursionError:
                given = ""
            s.reward(1.0 if given.rpartition("####")[2].strip() == s.task["answer"] else 0.0)


if __name__ == "__main__":
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(play, sys.argv[1:] * THREADS))
