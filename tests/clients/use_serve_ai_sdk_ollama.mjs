// SPDX-License-Identifier: MIT
// `eaglecpp serve` and ai-sdk-ollama.
import { createOllama } from "ai-sdk-ollama";
import { server, tryAll } from "./ai_sdk.mjs";

const provider = createOllama({ baseURL: server.url });
await tryAll((name) => provider(name), null);
