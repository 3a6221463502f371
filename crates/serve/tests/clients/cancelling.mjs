// JavaScript clients that cancel an answer while the engine computes it, as in cancelling.py.

import assert from "node:assert/strict";
import net from "node:net";
import { text } from "node:stream/consumers";
import Anthropic from "@anthropic-ai/sdk";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, streamText } from "ai";
import OpenAI from "openai";

const user = (text) => [{ role: "user", content: text }];

// Requests that are computed, and clients that have disconnected.
async function numbers() {
  const [host, port] = process.env.RLOOM_ENGINE.split(":");
  return (await text(net.connect(Number(port), host))).split(" ").map(Number);
}

async function until(what, isMet) {
  for (let tries = 0; tries < 3000; tries += 1) {
    if (isMet(await numbers())) return;
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
  assert.fail(`${what} did not happen: ${await numbers()}`);
}

// Takes a call with an AbortController's signal, and aborts it once it is computed.
async function abort(before, call) {
  const controller = new AbortController();
  const refused = assert.rejects(call(controller.signal), /abort/i);
  await until("the start", ([live]) => live === before[0] + 1);
  controller.abort();
  await refused;
}

async function leave(stream) {
  for await (const _ of stream) break;
}

async function openai(before, url, api, streams) {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "unused" });
  const call = {
    chat: (options) => client.chat.completions.create({ model: "any", messages: user("slow"), stream: streams }, options),
    responses: (options) => client.responses.create({ model: "any", input: "slow", stream: streams }, options),
  }[api];
  if (!streams) return abort(before, (signal) => call({ signal }));
  await leave(await call());
}

async function anthropic(before, url, streams) {
  const client = new Anthropic({ baseURL: url, apiKey: "unused" });
  const request = { model: "any", max_tokens: 1000, messages: user("slow") };
  if (!streams) return abort(before, (signal) => client.messages.create(request, { signal }));
  await leave(client.messages.stream(request));
}

async function ai(before, url, streams) {
  const model = createOpenAICompatible({ name: "own", baseURL: `${url}/v1` })("any");
  if (!streams) return abort(before, (abortSignal) => generateText({ model, prompt: "slow", abortSignal }));
  const controller = new AbortController();
  const stream = streamText({ model, prompt: "slow", abortSignal: controller.signal });
  const kinds = [];
  for await (const part of stream.fullStream) {
    kinds.push(part.type);
    if (part.type === "text-delta") controller.abort();
  }
  assert.equal(kinds.at(-1), "abort");
}

const functions = { openai, anthropic, ai };
const ANSWERS = ["openai chat", "openai responses", "anthropic", "ai"];
export const CASES = [...ANSWERS, ...ANSWERS.map((name) => `${name} stream`)];

// Runs a case; `keeps` says that a stream that has begun is computed to its end.
export async function run(name, url, keeps) {
  const streams = name.endsWith(" stream");
  const [client, ...more] = name.replace(" stream", "").split(" ");
  const before = await numbers();
  await functions[client](before, url, ...more, streams);
  const live = before[0] + (keeps && streams ? 1 : 0);
  await until("the disconnection", (now) => now[0] === live && now[1] === before[1] + 1);
}
