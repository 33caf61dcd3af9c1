# SPDX-License-Identifier: MIT
"""Everything that contacts a server: Hub repositories, Ollama's registries, the download of a blob, and
`pull`, which brings a model with its drafter into our store.
"""
