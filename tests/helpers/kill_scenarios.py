# SPDX-License-Identifier: MIT
"""The commands that are killed: pull, create, rm, convert, each with what must hold afterwards."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

from helpers.hub_server import HubServer
from helpers.kill import COMMAND, Scenario
from helpers.store_check import orphans
from helpers.tiny import Pair

__all__ = ["KillBench"]

NAME = "hf.co/user/tiny-GGUF:Q4_K_M"


class KillBench:
    """A Hub, a tiny pair, a store and the scenarios on it. `environment` is for every process."""

    def __init__(self, folder: Path, pair: Pair, hub: HubServer, bytes_per_s: int) -> None:
        self.folder, self.pair, self.hub = folder, pair, hub
        self.root = folder / "models"
        self.out = folder / "draft.gguf"
        # another content than that of `made`, whose blob would save the download
        self.served = pair.target.gguf.read_bytes() + b"from the hub"
        hub.add("user/tiny-GGUF", {"tiny-Q4_K_M.gguf": self.served, "system": b"s"})
        hub.faults.bytes_per_s = bytes_per_s
        self.environment = {
            "EAGLECPP_MODELS": str(self.root),
            "HF_ENDPOINT": hub.url,
            "HF_HOME": str(folder / "hf"),
            "HF_HUB_OFFLINE": "0",
            "HOME": str(folder),
        }
        (folder / "Modelfile").write_text(
            f"FROM {pair.target.gguf}\nDRAFT {pair.checkpoint}\nSYSTEM s\nPARAMETER top_k 5\n",
            encoding="utf-8",
        )

    def scenarios(self) -> list[Scenario]:
        """Fresh ones, with nothing counted yet."""
        return [
            Scenario("pull", ("pull", NAME), self.forget_all, self.pulled),
            Scenario("pull again", ("pull", NAME), self.forget, self.pulled),
            Scenario("create", ("create", "made", "-f", "Modelfile"), check=self.whole_or_none),
            Scenario("rm", ("rm", "made"), self.make, self.whole_or_none),
            Scenario("convert", self.convert_args(), self.drop_output, self.output),
        ]

    def convert_args(self) -> tuple[str, ...]:
        target = str(self.pair.target.gguf)
        return ("convert", str(self.pair.checkpoint), "--target", target, "-o", str(self.out))

    def run(self, *args: str) -> subprocess.CompletedProcess[str]:
        """A command left to its end."""
        import os

        environment = {**os.environ, **self.environment}
        return subprocess.run(
            [COMMAND, *args], cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )

    def forget(self) -> None:
        """The model is not there, but what a killed pull had of it is."""
        if any(self.root.glob("manifests/hf.co/user/*/*")):
            self.run("rm", NAME)

    def forget_all(self) -> None:
        """Neither the model nor a part of it is there."""
        self.forget()
        for path in self.root.glob("blobs/*-partial"):
            path.unlink()

    def make(self) -> None:
        if not list(self.root.glob("manifests/*/*/made/*")):
            self.run("create", "made", "-f", "Modelfile")

    def drop_output(self) -> None:
        self.out.unlink(missing_ok=True)

    def pulled(self) -> list[str]:
        """A model that is there is the right one."""
        problems = []
        for manifest in self.root.glob("manifests/hf.co/user/*/*"):
            layer = json.loads(manifest.read_bytes())["layers"][0]
            blob = self.root / "blobs" / layer["digest"].replace(":", "-")
            if blob.read_bytes() != self.served:
                problems.append(f"{manifest}: wrong content")
        return problems

    def whole_or_none(self) -> list[str]:
        """A model that is there has all of its layers."""
        problems = []
        for manifest in self.root.glob("manifests/*/*/made/*"):
            kinds = {
                layer["mediaType"].rpartition(".")[2] for layer in json.loads(manifest.read_bytes())["layers"]
            }
            if kinds != {"model", "draft", "system", "params"}:
                problems.append(f"{manifest}: layers {kinds}")
        return problems

    def output(self) -> list[str]:
        """The converter's output is there whole, or not at all."""
        if not self.out.exists():
            return []
        done = self.run("inspect", str(self.out), "--json")
        return [] if done.returncode == 0 else [f"{self.out}: {done.stderr}"]

    def tidied(self) -> list[str]:
        """What is left over once the next change of the store went through."""
        done = self.run("create", "last", "-f", "Modelfile")
        problems = [] if done.returncode == 0 else [f"create after all the kills: {done.stderr}"]
        return problems + [f"left over: {name}" for name in orphans(self.root)]


def content_bytes(hub: HubServer, size: int) -> Mapping[str, int]:
    """How much of a file was asked for: requests, and bytes when each was answered to its end."""
    starts = [int(r.range.removeprefix("bytes=").rstrip("-") or 0) for r in hub.content_requests()]
    return {"requests": len(starts), "resumed": sum(1 for start in starts if start), "size": size}
