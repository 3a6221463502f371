"""Python clients in sessions. Run by `.ci/agents`: each case of `agents.rs` with the URL of a session of its own.

The environment variable RLOOM_SESSIONS is a JSON object from the names of cases to URLs. A name that ends with ` lost` runs the
case over a proxy that loses the first answer to each request; one that begins with `cancelled ` is of cancelling.py.
"""

import asyncio
import json
import os
import sys
import traceback
import urllib.parse
import warnings

import cancelling
import losing

warnings.filterwarnings("ignore")
os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
os.environ["OPENAI_API_KEY"] = os.environ["ANTHROPIC_API_KEY"] = "unused"

HELLO = "Hello! Grüße 🙂."
BOTH = "The weather: Oslo:sun Rome:sun."
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def user(text):
    return [{"role": "user", "content": text}]


def sun(city: str) -> str:
    """Returns the weather of a city."""
    return f"{city}:sun"


def openai_client(url):
    from openai import OpenAI

    return OpenAI(base_url=f"{url}/v1")


def openai_plain(url):
    client = openai_client(url)
    answer = client.chat.completions.create(model="any", messages=user("hi"), temperature=0.3)
    assert answer.choices[0].message.content == HELLO
    assert answer.model_extra["rloom"] == {"temperature": 1.0}, answer
    messages = [*user("hi"), answer.choices[0].message, *user("again")]
    assert client.chat.completions.create(model="any", messages=messages).choices[0].message.content == HELLO


def openai_tools(url):
    client = openai_client(url)
    tools = [{"type": "function", "function": {"name": "weather", "parameters": CITY}}]
    messages = user("both")
    message = client.chat.completions.create(model="any", messages=messages, tools=tools).choices[0].message
    messages.append(message)
    for call in message.tool_calls:
        # Serialised again, as many programs do.
        arguments = json.loads(call.function.arguments)
        call.function.arguments = json.dumps(arguments, indent=1)
        messages.append({"role": "tool", "tool_call_id": call.id, "content": sun(**arguments)})
    answer = client.chat.completions.create(model="any", messages=messages, tools=tools)
    assert answer.choices[0].message.content == BOTH


def openai_stream(url):
    client = openai_client(url)
    tools = [{"type": "function", "function": {"name": "weather", "parameters": CITY}}]
    messages = user("both")
    with client.chat.completions.stream(model="any", messages=messages, tools=tools) as stream:
        message = stream.get_final_completion().choices[0].message
    calls = [{"id": c.id, "type": "function", "function": {"name": c.function.name, "arguments": c.function.arguments}} for c in message.tool_calls]
    messages.append({"role": "assistant", "content": message.content, "tool_calls": calls})
    for call in message.tool_calls:
        messages.append({"role": "tool", "tool_call_id": call.id, "content": sun(**json.loads(call.function.arguments))})
    with client.chat.completions.stream(model="any", messages=messages, tools=tools) as stream:
        assert stream.get_final_completion().choices[0].message.content == BOTH


def openai_choices(url):
    client = openai_client(url)
    answer = client.chat.completions.create(model="any", messages=user("hi"), n=3)
    messages = [*user("hi"), answer.choices[1].message, *user("again")]
    client.chat.completions.create(model="any", messages=messages)


def openai_completions(url):
    client = openai_client(url)
    first = client.completions.create(model="any", prompt="hi", max_tokens=100).choices[0].text
    client.completions.create(model="any", prompt=f"hi{first}\nAnd?", max_tokens=100)


def openai_responses(url):
    client = openai_client(url)
    tools = [{"type": "function", "name": "weather", "parameters": CITY, "strict": False}]
    items = user("both")
    answer = client.responses.create(model="any", input=items, tools=tools, store=False)
    items += answer.output
    for call in answer.output:
        if call.type == "function_call":
            output = sun(**json.loads(call.arguments))
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": output})
    with client.responses.stream(model="any", input=items, tools=tools) as stream:
        assert stream.get_final_response().output_text == BOTH


def anthropic(url):
    from anthropic import Anthropic

    client = Anthropic(base_url=url)
    limits = {"model": "any", "max_tokens": 4000, "system": "s"}
    tools = [{"name": "weather", "description": "d", "input_schema": CITY}]
    messages = user("both")
    with client.messages.stream(**limits, messages=messages, tools=tools) as stream:
        answer = stream.get_final_message()
    messages.append({"role": "assistant", "content": answer.content})
    calls = [block for block in answer.content if block.type == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": c.id, "content": sun(**c.input)} for c in calls]
    messages.append({"role": "user", "content": results})
    answer = client.messages.create(**limits, messages=messages, tools=tools)
    assert answer.content[0].text == BOTH


async def openai_agents(url, api):
    from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool
    from openai import AsyncOpenAI

    @function_tool
    def weather(city: str) -> str:
        "Returns the weather."
        return sun(city)

    kind = OpenAIResponsesModel if api == "responses" else OpenAIChatCompletionsModel
    model = kind(model="any", openai_client=AsyncOpenAI(base_url=f"{url}/v1"))
    agent = Agent(name="A", instructions="be brief", tools=[weather], model=model)
    assert (await Runner.run(agent, "both")).final_output == BOTH
    streamed = Runner.run_streamed(agent, "here")
    async for _ in streamed.stream_events():
        pass
    assert streamed.final_output == "The weather: Oslo:sun."


async def openai_handoff(url):
    from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool
    from openai import AsyncOpenAI

    @function_tool
    def weather(city: str) -> str:
        "Returns the weather."
        return sun(city)

    model = OpenAIChatCompletionsModel(model="any", openai_client=AsyncOpenAI(base_url=f"{url}/v1"))
    expert = Agent(name="expert", instructions="know the weather", tools=[weather], model=model)
    lead = Agent(name="lead", instructions="hand over", handoffs=[expert], model=model)
    assert (await Runner.run(lead, "here")).final_output == "The weather: Oslo:sun."


def langgraph(url):
    from langchain_openai import ChatOpenAI
    from langgraph.prebuilt import create_react_agent

    def weather(city: str) -> str:
        "Returns the weather."
        return sun(city)

    agent = create_react_agent(ChatOpenAI(model="any", base_url=f"{url}/v1"), [weather])
    assert agent.invoke({"messages": [("user", "both")]})["messages"][-1].content == BOTH
    for _ in agent.stream({"messages": [("user", "here")]}, stream_mode="messages"):
        pass


async def pydantic_ai(url, api):
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
    agent.tool_plain(name="weather")(sun)
    first = await agent.run("both")
    assert first.output == BOTH
    # A second question in the same conversation.
    async with agent.run_stream("here", message_history=first.all_messages()) as stream:
        await stream.get_output()


async def autogen(url):
    from autogen_agentchat.agents import AssistantAgent
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    family = {"vision": False, "function_calling": True, "json_output": False, "family": "unknown", "structured_output": False}
    client = OpenAIChatCompletionClient(model="any", base_url=f"{url}/v1", api_key="unused", model_info=family)
    agent = AssistantAgent("a", client, tools=[sun_tool()], reflect_on_tool_use=True)
    result = await agent.run(task="both")
    assert result.messages[-1].to_text() == BOTH, result


def sun_tool():
    async def weather(city: str) -> str:
        "Returns the weather."
        return sun(city)

    return weather


def litellm(url):
    import litellm

    options = {"model": "openai/any", "api_base": f"{url}/v1", "api_key": "unused"}
    tools = [{"type": "function", "function": {"name": "weather", "parameters": CITY}}]
    messages = user("both")
    message = litellm.completion(messages=messages, tools=tools, **options).choices[0].message
    messages.append(message)
    for call in message.tool_calls:
        messages.append({"role": "tool", "tool_call_id": call.id, "content": sun(**json.loads(call.function.arguments))})
    chunks = litellm.completion(messages=messages, tools=tools, stream=True, **options)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == BOTH


def smolagents(url):
    from smolagents import OpenAIModel, ToolCallingAgent, tool

    @tool
    def weather(city: str) -> str:
        """Returns the weather.

        Args:
            city: Name of the city.
        """
        return sun(city)

    model = OpenAIModel(model_id="any", api_base=f"{url}/v1", api_key="unused", tool_choice="auto")
    agent = ToolCallingAgent(tools=[weather], model=model, max_steps=3, verbosity_level=0)
    assert "Oslo:sun" in str(agent.run("here"))


def main():
    failed = 0
    for case, url in json.loads(os.environ["RLOOM_SESSIONS"]).items():
        name, *more = case.removesuffix(" lost").split()
        if case.endswith(" lost"):
            address = urllib.parse.urlsplit(url)
            url = losing.start(address.hostname, address.port) + address.path
        before = losing.Losing.lost
        try:
            if name == "cancelled":
                result = cancelling.run(" ".join(more), url, keeps=True)
            else:
                result = globals()[name](url, *more)
            if asyncio.iscoroutine(result):
                asyncio.run(result)
            assert case.endswith(" lost") == (losing.Losing.lost > before), "no answer was lost"
            print(f"ok      {case}", flush=True)
        except Exception:
            failed += 1
            print(f"FAILED  {case}", flush=True)
            traceback.print_exc()
    sys.exit(failed > 0)


main()
