// JavaScript clients in sessions. Run by `.ci/agents`: each case of `agents.rs` with the URL of a session of its own, as in sessions.py.

import assert from "node:assert/strict";
import http from "node:http";
import { text } from "node:stream/consumers";
import Anthropic from "@anthropic-ai/sdk";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, streamText, tool } from "ai";
import OpenAI from "openai";
import { z } from "zod";
import * as cancelling from "./cancelling.mjs";

const BOTH = "The weather: Oslo:sun Rome:sun.";
const CITY = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const user = (text) => [{ role: "user", content: text }];
const sun = ({ city }) => `${city}:sun`;
let lost = 0;

// A proxy that forwards each request, but the first time closes the connection once it has the answer.
async function losing(url) {
  const { hostname, port, pathname } = new URL(url);
  const seen = new Set();
  const server = http.createServer(async (request, response) => {
    const body = await text(request);
    const { "transfer-encoding": _, ...headers } = request.headers;
    headers["content-length"] = Buffer.byteLength(body);
    const sent = http.request({ hostname, port, path: request.url, method: request.method, headers }, async (answer) => {
      const content = await text(answer);
      if (!seen.has(body)) {
        seen.add(body);
        lost += 1;
        request.socket.destroy();
        return;
      }
      response.writeHead(answer.statusCode, { "content-type": answer.headers["content-type"] });
      response.end(content);
    });
    sent.end(body);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  server.unref();
  return `http://127.0.0.1:${server.address().port}${pathname}`;
}

async function openai(url) {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "unused" });
  const tools = [{ type: "function", function: { name: "weather", parameters: CITY } }];
  const messages = user("both");
  const message = (await client.chat.completions.create({ model: "any", messages, tools })).choices[0].message;
  messages.push(message);
  for (const call of message.tool_calls) {
    messages.push({ role: "tool", tool_call_id: call.id, content: sun(JSON.parse(call.function.arguments)) });
  }
  const stream = client.chat.completions.stream({ model: "any", messages, tools });
  assert.equal((await stream.finalChatCompletion()).choices[0].message.content, BOTH);
}

async function responses(url) {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "unused" });
  const tools = [{ type: "function", name: "weather", parameters: CITY, strict: false }];
  const first = await client.responses.create({ model: "any", input: "both", tools });
  const calls = first.output.filter((item) => item.type === "function_call");
  const outputs = calls.map((call) => ({
    type: "function_call_output", call_id: call.call_id, output: sun(JSON.parse(call.arguments)),
  }));
  const last = await client.responses.create({ model: "any", input: [...user("both"), ...first.output, ...outputs], tools });
  assert.equal(last.output_text, BOTH);
}

async function anthropic(url) {
  const client = new Anthropic({ baseURL: url, apiKey: "unused" });
  const limits = { model: "any", max_tokens: 4000 };
  const tools = [{ name: "weather", input_schema: CITY }];
  const messages = user("both");
  const turn = await client.messages.stream({ ...limits, messages, tools }).finalMessage();
  messages.push({ role: "assistant", content: turn.content });
  const calls = turn.content.filter((block) => block.type === "tool_use");
  const content = calls.map((call) => ({ type: "tool_result", tool_use_id: call.id, content: sun(call.input) }));
  messages.push({ role: "user", content });
  const last = await client.messages.create({ ...limits, messages, tools });
  assert.equal(last.content[0].text, BOTH);
}

async function ai(url) {
  const provider = createOpenAICompatible({ name: "own", baseURL: `${url}/v1` });
  const weather = tool({ description: "d", inputSchema: z.object({ city: z.string() }), execute: async (input) => sun(input) });
  const options = { model: provider("any"), prompt: "both", tools: { weather }, stopWhen: stepCountIs(5) };
  assert.equal((await generateText(options)).text, BOTH);
  assert.equal(await streamText({ ...options, system: "s" }).text, BOTH);
}

const cases = { openai, responses, anthropic, ai };
let failed = 0;
for (const [name, url] of Object.entries(JSON.parse(process.env.RLOOM_SESSIONS))) {
  const loses = name.endsWith(" lost");
  const before = lost;
  try {
    if (name.startsWith("cancelled ")) await cancelling.run(name.replace("cancelled ", ""), url, true);
    else await cases[name.replace(" lost", "")](loses ? await losing(url) : url);
    assert.equal(lost > before, loses, "no answer was lost");
    console.log(`ok      ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED  ${name}`);
    console.error(error);
  }
}
process.exit(failed > 0 ? 1 : 0);
