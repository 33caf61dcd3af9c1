// SPDX-License-Identifier: MIT
// `eaglecpp serve` and the real ollama client for JavaScript: chat, generate, tools, schemas, models, leaving, errors.
import assert from "node:assert/strict";
import { Ollama } from "ollama";

const { url, model, question, call } = JSON.parse(process.env.EAGLECPP_SERVER);
const ollama = new Ollama({ host: url });
const ask = { model, messages: [{ role: "user", content: question }], options: { temperature: 0, num_predict: 24 } };

assert.ok((await ollama.list()).models.some((one) => one.model === model));
const whole = await ollama.chat(ask);
assert.ok(whole.message.content && whole.done && whole.eval_count > 0 && whole.timings.acceptance_length >= 1);
let text = "", last;
for await (const part of await ollama.chat({ ...ask, stream: true })) {
  text += part.message.content;
  last = part;
}
assert.equal(text, whole.message.content);
assert.ok(last.done && last.total_duration > 0);
const told = await ollama.generate({ model, prompt: question, options: ask.options });
assert.equal(told.response, whole.message.content);
const schema = { type: "object", properties: { n: { enum: [7] } }, required: ["n"] };
assert.deepEqual(JSON.parse((await ollama.chat({ ...ask, format: schema })).message.content), { n: 7 });
const tools = [{ type: "function", function: { name: "weather", description: "The weather somewhere.",
  parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] } } }];
const calling = { ...ask, tools, format: call, options: { temperature: 0, num_predict: 200 } };
const found = (await ollama.chat(calling)).message.tool_calls;
assert.deepEqual(found.map((one) => one.function.arguments), [{ city: "Paris" }]);
const streamed = [];
for await (const part of await ollama.chat({ ...calling, stream: true })) streamed.push(...(part.message.tool_calls ?? []));
assert.deepEqual(streamed.map((one) => one.function.name), ["weather"]);
const shown = await ollama.show({ model });
assert.ok(shown.model_info["general.architecture"] && shown.capabilities.includes("completion"));
assert.ok((await ollama.ps()).models.some((one) => one.model === model));
await ollama.copy({ source: model, destination: "twin" }).catch((error) => assert.match(String(error), /not in a store|file|found/));

const endless = { ...ask, options: { num_predict: 900, ignore_eos: true, temperature: 0 } };
let n = 0;
await assert.rejects(async () => {
  for await (const part of await ollama.chat({ ...endless, stream: true })) if (++n === 3) ollama.abort();
}, { name: "AbortError" });
for (let i = 0; ; ++i) {
  const health = await (await fetch(`${url}/health`)).json();
  if (health.running === 0) break;
  assert.ok(i < 200, "the abandoned answer goes on");
  await new Promise((resolve) => setTimeout(resolve, 50));
}
await assert.rejects(ollama.chat({ ...ask, model: "nobody" }), { name: "ResponseError", status_code: 404 });
await assert.rejects(ollama.chat({ ...ask, think: "hugely" }), { name: "ResponseError", status_code: 400 });
console.log("ok: list, chat, stream, generate, schema, tools, show, ps, a client that leaves, 2 errors");
