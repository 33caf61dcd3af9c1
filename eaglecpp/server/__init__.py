# SPDX-License-Identifier: MIT
"""`eaglecpp serve`: the APIs of Ollama, OpenAI and Anthropic on one port, and a chat page.

`app.make_app` makes the ASGI application, `run.serve` runs it. One `AsyncEngine` for each loaded model;
`models` loads and unloads them. `answer` turns a checked request into a stream of deltas; the modules named
after an API only translate. Prints nothing; logs to `eaglecpp.server`.
"""
