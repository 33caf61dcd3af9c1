// SPDX-License-Identifier: MIT
// `eaglecpp serve` and @ai-sdk/openai-compatible.
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { server, tryAll } from "./ai_sdk.mjs";

const provider = createOpenAICompatible({
  name: "eaglecpp", baseURL: `${server.url}/v1`, includeUsage: true, supportsStructuredOutputs: true,
});
await tryAll((name) => provider(name), { toolChoice: "required" });
