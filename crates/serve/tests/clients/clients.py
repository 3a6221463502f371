"""Python clients against a server whose engine is the agent of `agents.rs`. Run by `.ci/agents`."""

import asyncio
import functools
import os
import sys
import traceback
import warnings

import cancelling

warnings.filterwarnings("ignore")
os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"

HELLO = "Hello! Grüße 🙂."
OPENAI = os.environ["OPENAI_BASE_URL"]
ANTHROPIC = os.environ["ANTHROPIC_BASE_URL"]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def user(text):
    return [{"role": "user", "content": text}]


def sun(city: str) -> str:
    """Returns the weather of a city."""
    return f"{city}:sun"


def openai_plain():
    from openai import BadRequestError, OpenAI

    client = OpenAI()
    assert client.models.list().data[0].id == "scripted"
    answer = client.chat.completions.create(model="any", messages=user("hi"), logprobs=True)
    choice = answer.choices[0]
    assert choice.message.content == HELLO and choice.finish_reason == "stop"
    assert len(choice.logprobs.content) == answer.usage.completion_tokens
    assert client.completions.create(model="any", prompt="hi", max_tokens=100).choices[0].text == HELLO
    answer = client.chat.completions.create(model="any", messages=user("hi"), n=2)
    assert [choice.message.content for choice in answer.choices] == [HELLO, HELLO]
    try:
        client.chat.completions.create(model="any", messages=user("hi"), logit_bias={"5": 1})
        raise AssertionError("logit_bias was accepted")
    except BadRequestError as error:
        assert error.param == "logit_bias", error


def openai_stream():
    from openai import OpenAI

    client = OpenAI()
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(client.chat.completions.create(model="any", messages=user("hi"), **options))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == HELLO and chunks[-1].usage.completion_tokens > 3
    with client.chat.completions.stream(model="any", messages=user("hi")) as stream:
        assert stream.get_final_completion().choices[0].message.content == HELLO


def openai_tools():
    import json

    from openai import OpenAI

    client = OpenAI()
    tools = [{"type": "function", "function": {"name": "weather", "parameters": CITY}}]
    for question, cities in [("here", ["Oslo"]), ("both", ["Oslo", "Rome"])]:
        messages = user(question)
        answer = client.chat.completions.create(model="any", messages=messages, tools=tools)
        message = answer.choices[0].message
        assert answer.choices[0].finish_reason == "tool_calls"
        assert [json.loads(c.function.arguments)["city"] for c in message.tool_calls] == cities
        messages.append(message)
        for call in message.tool_calls:
            result = sun(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        answer = client.chat.completions.create(model="any", messages=messages, tools=tools)
        expected = " ".join(f"{city}:sun" for city in cities)
        assert answer.choices[0].message.content == f"The weather: {expected}.", answer
        with client.chat.completions.stream(model="any", messages=user(question), tools=tools) as stream:
            calls = stream.get_final_completion().choices[0].message.tool_calls
        assert [json.loads(call.function.arguments)["city"] for call in calls] == cities


def openai_responses():
    import json

    from openai import OpenAI

    client = OpenAI()
    assert client.responses.create(model="any", input="hi").output_text == HELLO
    with client.responses.stream(model="any", input="hi") as stream:
        assert stream.get_final_response().output_text == HELLO
    tools = [{"type": "function", "name": "weather", "parameters": CITY, "strict": False}]
    items = user("both")
    answer = client.responses.create(model="any", input=items, tools=tools, store=False)
    calls = [item for item in answer.output if item.type == "function_call"]
    assert [json.loads(call.arguments)["city"] for call in calls] == ["Oslo", "Rome"]
    items += answer.output
    for call in calls:
        output = sun(**json.loads(call.arguments))
        items.append({"type": "function_call_output", "call_id": call.call_id, "output": output})
    answer = client.responses.create(model="any", input=items, tools=tools)
    assert answer.output_text == "The weather: Oslo:sun Rome:sun.", answer.output_text
    with client.responses.stream(model="any", input=user("both"), tools=tools) as stream:
        kinds = [item.type for item in stream.get_final_response().output]
    assert kinds == ["message", "function_call", "function_call"], kinds


def anthropic():
    from anthropic import Anthropic, BadRequestError

    client = Anthropic()
    limits = {"model": "any", "max_tokens": 4000}
    answer = client.messages.create(**limits, system="s", messages=user("hi"))
    assert answer.content[0].text == HELLO and answer.stop_reason == "end_turn"
    with client.messages.stream(**limits, messages=user("hi")) as stream:
        assert stream.get_final_text() == HELLO
    assert client.messages.count_tokens(model="any", messages=user("hi")).input_tokens == 38
    tools = [{"name": "weather", "description": "d", "input_schema": CITY}]
    messages = user("both")
    with client.messages.stream(**limits, messages=messages, tools=tools) as stream:
        answer = stream.get_final_message()
    calls = [block for block in answer.content if block.type == "tool_use"]
    assert [call.input["city"] for call in calls] == ["Oslo", "Rome"] and answer.stop_reason == "tool_use"
    messages.append({"role": "assistant", "content": answer.content})
    results = [{"type": "tool_result", "tool_use_id": c.id, "content": sun(**c.input)} for c in calls]
    messages.append({"role": "user", "content": results})
    answer = client.messages.create(**limits, messages=messages, tools=tools)
    assert answer.content[0].text == "The weather: Oslo:sun Rome:sun."
    try:
        client.messages.create(**limits, messages=user("hi"), tools=tools, tool_choice={"type": "any"})
        raise AssertionError("tool_choice was accepted")
    except BadRequestError as error:
        assert "tool_choice" in str(error)


async def openai_agents():
    from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool
    from openai import AsyncOpenAI

    @function_tool
    def weather(city: str) -> str:
        "Returns the weather."
        return sun(city)

    chat = OpenAIChatCompletionsModel(model="any", openai_client=AsyncOpenAI())
    for model in ["any", chat]:
        agent = Agent(name="A", instructions="be brief", tools=[weather], model=model)
        for question, expected in [("here", "Oslo:sun"), ("both", "Oslo:sun Rome:sun")]:
            result = await Runner.run(agent, question)
            assert result.final_output == f"The weather: {expected}.", result.final_output
            streamed = Runner.run_streamed(agent, question)
            async for _ in streamed.stream_events():
                pass
            assert streamed.final_output == f"The weather: {expected}."


def langgraph():
    from langchain_openai import ChatOpenAI
    from langgraph.prebuilt import create_react_agent

    def weather(city: str) -> str:
        "Returns the weather."
        return sun(city)

    agent = create_react_agent(ChatOpenAI(model="any"), [weather])
    result = agent.invoke({"messages": [("user", "both")]})
    assert result["messages"][-1].content == "The weather: Oslo:sun Rome:sun."
    pieces = [m.content for m, _ in agent.stream({"messages": [("user", "here")]}, stream_mode="messages")]
    assert "".join(pieces).endswith("The weather: Oslo:sun."), pieces


async def pydantic_ai():
    from pydantic_ai import Agent
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    openai = OpenAIProvider(base_url=OPENAI, api_key="unused")
    own = AnthropicProvider(base_url=ANTHROPIC, api_key="unused")
    models = [
        OpenAIChatModel("any", provider=openai),
        OpenAIResponsesModel("any", provider=openai),
        AnthropicModel("any", provider=own),
    ]
    for model in models:
        agent = Agent(model, instructions="be brief")
        agent.tool_plain(name="weather")(sun)
        assert (await agent.run("both")).output == "The weather: Oslo:sun Rome:sun."
        async with agent.run_stream("here") as stream:
            assert await stream.get_output() == "The weather: Oslo:sun."


async def autogen():
    from autogen_agentchat.agents import AssistantAgent
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    async def weather(city: str) -> str:
        "Returns the weather."
        return sun(city)

    info = {"vision": False, "function_calling": True, "json_output": False, "family": "unknown"}
    client = OpenAIChatCompletionClient(model="any", model_info=info | {"structured_output": False})
    for reflects in [True, False]:
        agent = AssistantAgent("a", client, tools=[weather], reflect_on_tool_use=reflects)
        assert "Oslo:sun" in (await agent.run(task="both")).messages[-1].to_text()


def litellm():
    import litellm

    options = {"model": "openai/any", "api_base": OPENAI, "api_key": "unused"}
    answer = litellm.completion(messages=user("hi"), **options)
    assert answer.choices[0].message.content == HELLO
    chunks = litellm.completion(messages=user("hi"), stream=True, **options)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == HELLO


def smolagents():
    from smolagents import OpenAIModel, ToolCallingAgent, tool

    @tool
    def weather(city: str) -> str:
        """Returns the weather.

        Args:
            city: Name of the city.
        """
        return sun(city)

    # Its default, "required", cannot be honoured.
    model = OpenAIModel(model_id="any", api_base=OPENAI, api_key="unused", tool_choice="auto")
    agent = ToolCallingAgent(tools=[weather], model=model, max_steps=3, verbosity_level=0)
    assert "Oslo:sun" in str(agent.run("here"))


CASES = [
    openai_plain,
    openai_stream,
    openai_tools,
    openai_responses,
    anthropic,
    openai_agents,
    langgraph,
    pydantic_ai,
    autogen,
    litellm,
    smolagents,
]


def main():
    failed = 0
    cases = {case.__name__: case for case in CASES}
    for name in [*cancelling.ANSWERS, *cancelling.STREAMS]:
        cases[f"cancelled {name}"] = functools.partial(cancelling.run, name, ANTHROPIC, keeps=False)
    for name, case in cases.items():
        try:
            result = case()
            if asyncio.iscoroutine(result):
                asyncio.run(result)
            print(f"ok      {name}", flush=True)
        except Exception:
            failed += 1
            print(f"FAILED  {name}", flush=True)
            traceback.print_exc()
    sys.exit(failed > 0)


main()
