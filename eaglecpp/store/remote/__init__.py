# SPDX-License-Identifier: MIT
"""What comes from a server: repositories of the Hub, Ollama's registries, the download of one blob, and
`pull`, which brings a model with its drafter into our store.
"""
