# SPDX-License-Identifier: MIT
"""All code that contacts a server: Hub repositories, Ollama's registries, the download of a blob, and `pull`,
which downloads a model and its drafter into our store.
"""
