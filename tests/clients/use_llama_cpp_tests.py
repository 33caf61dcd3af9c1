# SPDX-License-Identifier: MIT
"""llama-cpp-python's own tests, from its source package, with `llama_cpp.Llama` replaced.

Those that download a model get the client's model instead, or a tiny BERT; tests of recurrent and hybrid
models, of saved states and of the texts of their own model are left out.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from common import MODEL, done

sys.path.insert(0, str(Path(__file__).parents[1]))

from helpers.tiny_bert import make_bert

PLUGIN = """
import sys
sys.path.insert(0, {here!r})
import common, huggingface_hub
common.take_its_place()
huggingface_hub.hf_hub_download = lambda repo, *args, **options: {bert!r} if "bge" in repo else common.MODEL
"""
LEFT_OUT = "real_llama real_model recurrent hybrid loaded_exact ram_cache"


def source_package(folder: Path) -> Path:
    """llama-cpp-python's sdist of the installed version."""
    given = os.environ.get("EAGLECPP_CLIENT_SDIST")
    if given:
        return Path(given)
    wanted = f"llama-cpp-python=={importlib.metadata.version('llama-cpp-python')}"
    options = ["-q", "--no-deps", "--no-binary=:all:", "--no-build-isolation", f"--dest={folder}"]
    subprocess.run([sys.executable, "-m", "pip", "download", *options, wanted], check=True)
    return next(folder.glob("*.tar.gz"))


with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    with tarfile.open(source_package(folder)) as archive:
        parts = ("/tests/", "/vendor/llama.cpp/models/ggml-vocab-llama-spm.gguf")
        members = [m for m in archive.getmembers() if any(part in f"/{m.name}" for part in parts)]
        members = [m for m in members if m.name.count("/") < 3 or m.name.endswith(".gguf")]
        archive.extractall(folder, members, filter="data")
    root = next(path for path in folder.iterdir() if path.is_dir())
    (root / "plugin.py").write_text(
        PLUGIN.format(here=str(Path(__file__).parent), bert=str(make_bert(folder / "bert.gguf")))
    )
    wanted = f"not ({LEFT_OUT.replace(' ', ' or ')}) or llama_embeddings"
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-pplugin", "-pno:cacheprovider", "-k", wanted, "tests"],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if result.returncode:
        print(result.stdout)
        sys.exit(1)
    done(f"{result.stdout.strip().splitlines()[-1]}; model {Path(MODEL).name}")
