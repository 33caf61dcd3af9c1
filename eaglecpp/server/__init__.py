# SPDX-License-Identifier: MIT
"""`eaglecpp serve`: Ollama's API, OpenAI's and Anthropic's on one port, and a page to chat.

`app.make_app` makes the ASGI application, `run.serve` runs it. One `AsyncEngine` for each loaded model;
`models` loads and unloads them. `answer` turns a checked request into a stream of deltas; the modules named
after an API only translate. Prints nothing; logs to `eaglecpp.server`.
"""
