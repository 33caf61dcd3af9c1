# SPDX-License-Identifier: MIT
"""`eaglecpp serve`: the APIs of Ollama, OpenAI and Anthropic on one port, and a chat page.

`app.make_app` builds the ASGI application, `run.serve` runs it. There is one `AsyncEngine` for each loaded
model; `models` loads and unloads them. `answer` turns a checked request into a stream of events. The modules
named after an API only translate between its JSON and these events. The package prints nothing and logs to
`eaglecpp.server`.
"""
