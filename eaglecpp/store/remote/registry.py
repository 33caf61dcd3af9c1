# SPDX-License-Identifier: MIT
"""Ollama's registry protocol: the manifest of a name, and where its blobs are.

`GET /v2/<namespace>/<model>/manifests/<tag>` and `.../blobs/<digest>`, as any Docker registry has them.
Models that need a login are refused with advice on what to do; public ones need none. Source: ollama/ollama:
server/images.go, server/download.go.
"""

from __future__ import annotations

from dataclasses import dataclass

import requests

from eaglecpp.references.names import ModelName, canonical
from eaglecpp.store.errors import DownloadError
from eaglecpp.store.manifest import MANIFEST, Layer, Manifest
from eaglecpp.store.remote.download import Remote, Token, get

__all__ = ["Registered", "find_registered"]


@dataclass(frozen=True)
class Registered:
    """A model in a registry. data: its manifest as the registry sent it."""

    name: ModelName
    manifest: Manifest
    data: bytes
    base_url: str

    def remote(self, layer: Layer) -> Remote:
        """Where to download one of its blobs."""
        url = f"{self.base_url}/blobs/{layer.digest}"
        label = layer.kind if layer in self.manifest.layers else "config"
        return Remote(url, layer.digest, layer.size, label, str(self.name), help=_help(self.name))


def find_registered(session: requests.Session, name: ModelName, *, insecure: bool = False) -> Registered:
    """Asks the registry that the name points to.

    insecure: allow `http://` names. Raises OfflineError without a connection, DownloadError for a model that
    is not there or needs a login, StoreError for a manifest that is none.
    """
    if name.scheme not in ("http", "https"):
        raise DownloadError(f"{name}: expected http:// or https://, found {name.scheme}://")
    if name.scheme == "http" and not insecure:
        raise DownloadError(f"{name}: http is not encrypted; add --insecure to `pull` or `run` to allow it")
    host, namespace, model, tag = canonical(name).parts
    base_url = f"{name.scheme}://{host}/v2/{namespace}/{model}"
    data = get(session, f"{base_url}/manifests/{tag}", str(name), Token(None), _help(name), Accept=MANIFEST)
    manifest = Manifest.from_bytes(data, f"{name}: manifest of {host}", None)
    return Registered(canonical(name), manifest, data, base_url)


def _help(name: ModelName) -> str:
    return (
        "Check the name; a private model must be pulled by `ollama pull`, whose store is read in place. "
        f"For a model on the Hub write hf.co/USER/REPO:QUANT (asked: {name.host})"
    )
