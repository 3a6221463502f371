"""Python clients that cancel an answer while the engine of `agents.rs` computes it, each by its own means.

RLOOM_ENGINE is an address where each connection gets two numbers: requests that are computed, and clients that have disconnected.
A whole answer is cancelled before its first byte, a stream after its first piece.
"""

import asyncio
import contextlib
import gc
import os
import socket


def user(text):
    return [{"role": "user", "content": text}]


def numbers():
    host, port = os.environ["RLOOM_ENGINE"].split(":")
    with socket.create_connection((host, int(port))) as connection, connection.makefile() as answer:
        live, gone = answer.read().split()
        return int(live), int(gone)


async def until(what, is_met):
    for _ in range(3000):
        if is_met():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"{what} did not happen: {numbers()}")


class Engine:
    """The engine, as it was before the client's request."""

    def __init__(self):
        self.live, self.gone = numbers()

    async def computes(self):
        await until("the start", lambda: numbers()[0] == self.live + 1)

    async def is_left(self, goes_on):
        """Waits until the client has disconnected; the answer is computed further or not at all."""
        await until("the disconnection", lambda: numbers() == (self.live + goes_on, self.gone + 1))

    async def cancel(self, call):
        """Cancels the task of a call that is computed."""
        task = asyncio.ensure_future(call)
        await self.computes()
        task.cancel()
        await is_cancelled(task)


async def cancel_reader(texts):
    """Reads the pieces of a stream in a task, which is cancelled once it waits for more than the engine gives."""
    read = []

    async def reader():
        async for text in texts:
            read.append(text)

    task = asyncio.create_task(reader())
    await until("a word", lambda: "word" in "".join(read))
    # `asyncio.wait_for` of Python 3.11 loses a cancellation that comes together with a piece: the call then ends by a timeout.
    seen = 0
    while seen != len(read):
        seen = len(read)
        await asyncio.sleep(0.3)
    task.cancel()
    await is_cancelled(task)


async def is_cancelled(task):
    try:
        raise AssertionError(f"an answer: {await task}")
    except asyncio.CancelledError:
        pass


async def openai(engine, url, api, streams=False):
    from openai import AsyncOpenAI, OpenAI

    kind = OpenAI if streams else AsyncOpenAI
    client = kind(base_url=f"{url}/v1", api_key="unused")
    if api == "chat":
        call = client.chat.completions.create(model="any", messages=user("slow"), stream=streams)
    elif api == "completions":
        call = client.completions.create(model="any", prompt="slow", max_tokens=1000, stream=streams)
    else:
        call = client.responses.create(model="any", input="slow", stream=streams)
    if not streams:
        return await engine.cancel(call)
    next(call), next(call)
    call.close()


async def anthropic(engine, url, streams=False):
    from anthropic import Anthropic, AsyncAnthropic

    request = {"model": "any", "max_tokens": 1000, "messages": user("slow")}
    if not streams:
        return await engine.cancel(AsyncAnthropic(base_url=url, api_key="unused").messages.create(**request))
    with Anthropic(base_url=url, api_key="unused").messages.stream(**request) as stream:
        next(stream.text_stream)


async def openai_agents(engine, url, api, streams=False):
    from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner
    from openai import AsyncOpenAI

    kind = OpenAIResponsesModel if api == "responses" else OpenAIChatCompletionsModel
    model = kind(model="any", openai_client=AsyncOpenAI(base_url=f"{url}/v1", api_key="unused"))
    agent = Agent(name="A", instructions="be brief", model=model)
    if not streams:
        return await engine.cancel(Runner.run(agent, "slow"))
    run = Runner.run_streamed(agent, "slow")
    async for event in run.stream_events():
        if event.type == "raw_response_event":
            run.cancel()


async def langgraph(engine, url, streams=False):
    from langchain_openai import ChatOpenAI
    from langgraph.prebuilt import create_react_agent

    # Its calls without asyncio run in threads, which cannot be cancelled: leaving one waits for its end.
    agent = create_react_agent(ChatOpenAI(model="any", base_url=f"{url}/v1", api_key="unused"), [])
    question = {"messages": [("user", "slow")]}
    if not streams:
        return await engine.cancel(agent.ainvoke(question))
    # Closing the stream waits for the model's next piece; cancelling the task that reads it does not.
    stream = agent.astream(question, stream_mode="messages")
    await cancel_reader(message.content async for message, _ in stream)


async def pydantic_ai(engine, url, api, streams=False):
    from pydantic_ai import Agent
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    if api == "anthropic":
        model = AnthropicModel("any", provider=AnthropicProvider(base_url=url, api_key="unused"))
    else:
        kind = OpenAIChatModel if api == "chat" else OpenAIResponsesModel
        model = kind("any", provider=OpenAIProvider(base_url=f"{url}/v1", api_key="unused"))
    agent = Agent(model, instructions="be brief")
    if not streams:
        return await engine.cancel(agent.run("slow"))
    async with agent.run_stream("slow") as stream:
        await anext(stream.stream_text(delta=True, debounce_by=None))
        await stream.cancel()
        assert stream.cancelled


async def autogen(engine, url):
    from autogen_agentchat.agents import AssistantAgent
    from autogen_core import CancellationToken
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    family = {"vision": False, "function_calling": True, "json_output": False, "family": "unknown", "structured_output": False}
    client = OpenAIChatCompletionClient(model="any", base_url=f"{url}/v1", api_key="unused", model_info=family)
    # Not with streams: `_create_stream_chunks` closes none, so a token that is cancelled between two pieces leaves the
    # connection open.
    token = CancellationToken()
    task = asyncio.create_task(AssistantAgent("a", client).run(task="slow", cancellation_token=token))
    await engine.computes()
    token.cancel()
    await is_cancelled(task)


async def litellm(engine, url, streams=False):
    import litellm

    call = litellm.acompletion(
        model="openai/any", api_base=f"{url}/v1", api_key="unused", messages=user("slow"), stream=streams
    )
    if not streams:
        return await engine.cancel(call)
    stream = await call
    await anext(stream)
    await stream.aclose()


async def smolagents(engine, url, streams=False):
    from smolagents import OpenAIModel, ToolCallingAgent

    # A call that is not streamed cannot be cancelled: `interrupt` is looked at between steps, in `_run_stream`.
    assert streams
    model = OpenAIModel(model_id="any", api_base=f"{url}/v1", api_key="unused", tool_choice="auto")
    agent = ToolCallingAgent(tools=[], model=model, max_steps=1, verbosity_level=0, stream_outputs=True)
    run = agent.run("slow", stream=True)
    next(run)
    # `_run_stream` yields the step in a `finally`: closing it ends the step, and complains.
    with contextlib.suppress(RuntimeError):
        run.close()
    # Its model does not close the stream of the client of OpenAI, which is in a cycle: the garbage collector does.
    gc.collect()


ANSWERS = [
    "openai chat",
    "openai completions",
    "openai responses",
    "anthropic",
    "openai_agents chat",
    "openai_agents responses",
    "langgraph",
    "pydantic_ai chat",
    "pydantic_ai responses",
    "pydantic_ai anthropic",
    "autogen",
    "litellm",
]
STREAMS = [f"{name} stream" for name in [*ANSWERS, "smolagents"] if name != "autogen"]


def run(case, url, keeps):
    """Runs a case; `keeps` says that a stream that has begun is computed to its end."""
    name, *more = case.split()
    streams = more[-1:] == ["stream"]
    arguments = more[:-1] if streams else more

    async def watched():
        engine = Engine()
        await globals()[name](engine, url, *arguments, **({"streams": True} if streams else {}))
        await engine.is_left(keeps and streams)

    asyncio.run(watched())
