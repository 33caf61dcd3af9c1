// SPDX-License-Identifier: MIT
// `eaglecpp serve` and ollama-ai-provider-v2.
import { createOllama } from "ollama-ai-provider-v2";
import { server, tryAll } from "./ai_sdk.mjs";

const provider = createOllama({ baseURL: `${server.url}/api` });
await tryAll((name) => provider(name), null);
