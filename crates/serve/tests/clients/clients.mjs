// JavaScript clients against a server whose engine is the agent of `agents.rs`. Run by `.ci/agents`.

import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, streamText, tool } from "ai";
import OpenAI from "openai";
import { z } from "zod";
import * as cancelling from "./cancelling.mjs";

const HELLO = "Hello! Grüße 🙂.";
const BOTH = "The weather: Oslo:sun Rome:sun.";
const CITY = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const user = (text) => [{ role: "user", content: text }];
const sun = ({ city }) => `${city}:sun`;

async function openai() {
  const client = new OpenAI();
  const plain = await client.chat.completions.create({ model: "any", messages: user("hi") });
  assert.equal(plain.choices[0].message.content, HELLO);
  let text = "";
  for await (const chunk of await client.chat.completions.create({ model: "any", messages: user("hi"), stream: true })) {
    text += chunk.choices[0]?.delta?.content ?? "";
  }
  assert.equal(text, HELLO);
  const tools = [{ type: "function", function: { name: "weather", parameters: CITY } }];
  const messages = user("both");
  const stream = client.chat.completions.stream({ model: "any", messages, tools });
  const message = (await stream.finalChatCompletion()).choices[0].message;
  assert.equal(message.tool_calls.length, 2);
  messages.push(message);
  for (const call of message.tool_calls) {
    messages.push({ role: "tool", tool_call_id: call.id, content: sun(JSON.parse(call.function.arguments)) });
  }
  const last = await client.chat.completions.create({ model: "any", messages, tools });
  assert.equal(last.choices[0].message.content, BOTH);
  const two = await client.chat.completions.create({ model: "any", messages: user("hi"), n: 2 });
  assert.deepEqual(two.choices.map((choice) => choice.message.content), [HELLO, HELLO]);
  const biased = client.chat.completions.create({ model: "any", messages: user("hi"), logit_bias: { 5: 1 } });
  await assert.rejects(biased, { param: "logit_bias" });
}

async function responses() {
  const client = new OpenAI();
  const plain = await client.responses.create({ model: "any", input: "hi" });
  assert.equal(plain.output_text, HELLO);
  const tools = [{ type: "function", name: "weather", parameters: CITY, strict: false }];
  const stream = client.responses.stream({ model: "any", input: "both", tools });
  const calls = (await stream.finalResponse()).output.filter((item) => item.type === "function_call");
  const outputs = calls.map((call) => ({
    type: "function_call_output", call_id: call.call_id, output: sun(JSON.parse(call.arguments)),
  }));
  const echoed = calls.map(({ parsed_arguments, ...call }) => call);
  const last = await client.responses.create({ model: "any", input: [...user("both"), ...echoed, ...outputs], tools });
  assert.equal(last.output_text, BOTH);
}

async function anthropic() {
  const client = new Anthropic();
  const limits = { model: "any", max_tokens: 4000 };
  const plain = await client.messages.create({ ...limits, messages: user("hi") });
  assert.equal(plain.content[0].text, HELLO);
  const tools = [{ name: "weather", input_schema: CITY }];
  const messages = user("both");
  const turn = await client.messages.stream({ ...limits, messages, tools }).finalMessage();
  assert.equal(turn.stop_reason, "tool_use");
  messages.push({ role: "assistant", content: turn.content });
  const calls = turn.content.filter((block) => block.type === "tool_use");
  const content = calls.map((call) => ({ type: "tool_result", tool_use_id: call.id, content: sun(call.input) }));
  messages.push({ role: "user", content });
  const last = await client.messages.create({ ...limits, messages, tools });
  assert.equal(last.content[0].text, BOTH);
}

async function ai() {
  const provider = createOpenAICompatible({ name: "own", baseURL: process.env.OPENAI_BASE_URL });
  const weather = tool({ description: "d", inputSchema: z.object({ city: z.string() }), execute: async (input) => sun(input) });
  const stopWhen = stepCountIs(5);
  const options = { model: provider("any"), prompt: "both", tools: { weather }, stopWhen };
  assert.equal((await generateText(options)).text, BOTH);
  assert.equal(await streamText(options).text, BOTH);
}

let failed = 0;
const cases = Object.entries({ openai, responses, anthropic, ai });
for (const name of cancelling.CASES) {
  cases.push([`cancelled ${name}`, () => cancelling.run(name, process.env.ANTHROPIC_BASE_URL, false)]);
}
for (const [name, run] of cases) {
  try {
    await run();
    console.log(`ok      ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED  ${name}`);
    console.error(error);
  }
}
process.exit(failed > 0 ? 1 : 0);
