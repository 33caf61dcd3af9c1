# SPDX-License-Identifier: MIT
"""Hugging Face hub ids: download only the files a conversion needs, or take them from the cache when offline.

Uses huggingface_hub, so HF_HOME, HF_TOKEN, HF_HUB_OFFLINE and HF_ENDPOINT work as everywhere; its own
progress bars are shown. The only network code of the converter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from .errors import SourceError

__all__ = ["fetch_checkpoint", "fetch_target", "is_hub_id"]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(@[\w./-]+)?")
_SAFETENSORS = ("config.json", "README.md", "*.safetensors", "model.safetensors.index.json")
_BIN = ("config.json", "README.md", "pytorch_model*.bin", "pytorch_model.bin.index.json")
_TARGET = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
    "special_tokens_map.json", "chat_template.jinja", "chat_template.json", "vocab.json", "merges.txt",
)  # fmt: skip


def is_hub_id(text: str) -> bool:
    """Whether the text has the form `owner/name` or `owner/name@revision`."""
    return _HUB_ID.fullmatch(text) is not None


def fetch_checkpoint(hub_id: str, progress: Callable[[str], None] | None = None) -> Path:
    """Local directory with config.json and the weights (safetensors if there are any). Raises SourceError."""
    if progress is not None:
        progress(f"fetching {hub_id}")
    directory = _snapshot(hub_id, _SAFETENSORS)
    return directory if any(directory.glob("*.safetensors")) else _snapshot(hub_id, _BIN)


def fetch_target(hub_id: str) -> Path:
    """Local directory with the target's config and tokenizer, without its weights. Raises SourceError."""
    return _snapshot(hub_id, _TARGET)


def _snapshot(hub_id: str, patterns: Sequence[str]) -> Path:
    # Imported here: it takes most of a second, and local conversions never need it.
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    repo, _, revision = hub_id.partition("@")
    try:
        return Path(snapshot_download(repo, revision=revision or None, allow_patterns=list(patterns)))
    except GatedRepoError as error:
        raise SourceError(
            f"{repo}: gated on the hub; accept its terms there and log in with `hf auth login`"
        ) from error
    except RepositoryNotFoundError as error:
        raise SourceError(
            f"{repo}: no such path here and no such repository on the hub (or private: log in with `hf "
            "auth login`)"
        ) from error
    except LocalEntryNotFoundError as error:
        why = "offline mode is on" if constants.HF_HUB_OFFLINE else "the hub cannot be reached"
        raise SourceError(
            f"{repo}: not in the local cache and {why}; download it first or give a local path"
        ) from error
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise SourceError(f"{repo}: download failed: {' '.join(str(error).split())}") from error
