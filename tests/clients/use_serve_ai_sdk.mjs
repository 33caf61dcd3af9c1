// SPDX-License-Identifier: MIT
// Tests `eaglecpp serve` with four providers of the AI SDK: text, streams, schemas, tools, cancelled requests, errors.
import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, Output, streamText, tool } from "ai";
import { createOllama as createOther } from "ai-sdk-ollama";
import { createOllama } from "ollama-ai-provider-v2";
import { z } from "zod";

const server = JSON.parse(process.env.EAGLECPP_SERVER), baseURL = `${server.url}/v1`, forced = { toolChoice: "required" };

// calls: options that force a tool call, for providers that can force a call
async function tryAll(make, calls) {
  const given = { model: make(server.model), prompt: server.question, temperature: 0, maxOutputTokens: 24, maxRetries: 0 };
  const whole = await generateText(given);
  assert.ok(whole.text && whole.usage.outputTokens > 0 && whole.usage.inputTokens > 0, JSON.stringify(whole.usage));
  assert.ok(["stop", "length"].includes(whole.finishReason), whole.finishReason);
  const stream = streamText(given);
  let text = "";
  for await (const part of stream.textStream) text += part;
  assert.equal(text, whole.text);
  assert.ok((await stream.usage).outputTokens > 0);

  const schema = z.object({ n: z.literal(7) });
  const long = { ...given, maxOutputTokens: 200 };
  assert.deepEqual((await generateText({ ...long, output: Output.object({ schema }) })).output, { n: 7 });

  if (calls) {
    const tools = { weather: tool({ description: "The weather somewhere.", inputSchema: z.object({ city: z.literal("Paris") }) }) };
    const called = await generateText({ ...long, tools, ...calls });
    assert.deepEqual(called.toolCalls.map((one) => [one.toolName, one.input]), [["weather", { city: "Paris" }]]);
    assert.equal(called.finishReason, "tool-calls");
    const again = streamText({ ...long, tools, ...calls });
    for await (const _ of again.textStream);
    assert.deepEqual((await again.toolCalls).map((one) => one.input), [{ city: "Paris" }]);
  }

  const leave = new AbortController();
  const left = streamText({ ...given, maxOutputTokens: 900, abortSignal: leave.signal, onError() {}, onAbort() {} });
  let n = 0;
  try {
    for await (const _ of left.textStream) if (++n === 2) leave.abort();
  } catch (error) {
    assert.equal(error.name, "AbortError");
  }
  await assert.rejects(generateText({ ...given, model: make("nobody") }), (error) => {
    // One of Ollama's providers ignores Ollama's error messages. Another provider drops the status.
    assert.ok(error.statusCode === 404 || (!calls && error.statusCode === undefined), String(error));
    assert.ok(/nobody/.test(error.message) || (!calls && error.statusCode === 404), String(error));
    return true;
  });
  if (calls) await assert.rejects(generateText({ ...given, prompt: "word ".repeat(3000) }), (error) => {
    assert.equal(error.statusCode, 400, String(error));
    return true;
  });
}

await tryAll(createOpenAI({ baseURL, apiKey: "x" }), forced);  // this provider uses /v1/responses
await tryAll(createOpenAICompatible({ name: "x", baseURL, includeUsage: true, supportsStructuredOutputs: true }), forced);
await tryAll(createOllama({ baseURL: `${server.url}/api` }));
await tryAll(createOther({ baseURL: server.url }));
console.log("ok: four providers: text, stream, usage, schema, tools, a client that leaves, errors");
