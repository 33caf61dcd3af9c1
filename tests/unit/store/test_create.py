# SPDX-License-Identifier: MIT
"""Tests models created from a Modelfile: Ollama's layout, shared blobs, and a checked drafter. Also tests
models of an existing Ollama store.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from eaglecpp.errors import GgufError, MismatchError, ModelNotFoundError, UnsupportedError
from eaglecpp.opening.find import find_target
from eaglecpp.references import ModelName
from eaglecpp.store import DigestError, StoredModel, StoreError, Stores
from eaglecpp.store.transaction import copy_model, remove_model
from helpers.lora import write_lora
from helpers.store_check import orphans, store_problems
from helpers.stores import OllamaModel, Tiny, make_model, rename_token, without_links


def kinds(model: StoredModel) -> list[str]:
    return [layer.kind for layer in model.manifest.layers]


def full_text(tiny: Tiny) -> str:
    return (
        f"FROM {tiny.target}\nDRAFT {tiny.draft}\nTEMPLATE [{{{{ .Prompt }}}}]\nSYSTEM s\n"
        "LICENSE l1\nLICENSE l2\n"
        "PARAMETER stop a\nPARAMETER stop b\nPARAMETER temperature 0.5\nMESSAGE user hi\nREQUIRES 0.30.0\n"
        "#eaglecpp: strategy chain:2\n"
    )


def test_manifest_and_blobs_are_laid_out_like_ollamas(tiny: Tiny, stores: Stores, root: Path) -> None:
    model = make_model(stores, full_text(tiny), "me/tiny:v1")
    file = root / "manifests" / "registry.ollama.ai" / "me" / "tiny" / "v1"
    value = json.loads(file.read_text())
    contents = {layer["mediaType"]: _content(root, layer) for layer in [*value["layers"], value["config"]]}
    image = "application/vnd.ollama.image."
    kinds = "model draft template system license params messages"
    assert list(contents)[:-2] == [image + kind for kind in kinds.split()]
    assert contents[image + "draft"] == tiny.draft.read_bytes()
    assert contents[image + "template"] == b"[{{ .Prompt }}]"  # `create` must not add a newline
    assert json.loads(contents[image + "params"]) == {"stop": ["a", "b"], "temperature": 0.5}
    assert json.loads(contents[image + "messages"]) == [{"role": "user", "content": "hi"}]
    config = json.loads(contents["application/vnd.docker.container.image.v1+json"])
    assert config["model_format"] == "gguf"
    assert (config["model_family"], config["file_type"], config["model_type"]) == ("llama", "F32", "441K")
    assert config["draft"] == {"model_format": "gguf", "architecture": "eagle3", "kind": "eagle3"}
    assert config["requires"] == "0.30.0"
    assert store_problems(root) == []
    assert orphans(root) == []
    assert model.digest == hashlib.sha256(file.read_bytes()).hexdigest()


def _content(root: Path, layer: dict[str, Any]) -> bytes:
    data = (root / "blobs" / layer["digest"].replace(":", "-")).read_bytes()
    assert len(data) == layer["size"]
    return data


def test_weights_take_no_second_space(tiny: Tiny, stores: Stores, root: Path, tmp_path: Path) -> None:
    target = tmp_path / "target.gguf"
    target.write_bytes(tiny.target.read_bytes())
    make_model(stores, f"FROM {target}\n", "a")
    blob = find_target("a").target
    assert blob.samefile(target)
    make_model(stores, f"FROM {target}\nSYSTEM x\n", "b")
    assert find_target("b").target == blob
    target.unlink()
    assert blob.read_bytes() == tiny.target.read_bytes()


def test_a_file_that_is_changed_in_place_is_noticed(tiny: Tiny, stores: Stores, tmp_path: Path) -> None:
    target = tmp_path / "target.gguf"
    data = tiny.target.read_bytes()
    target.write_bytes(data)
    make_model(stores, f"FROM {target}\n")
    os.utime(target)  # the file has a new time stamp but the same content
    assert find_target("m").target.read_bytes() == data
    with target.open("r+b") as stream:
        stream.write(b"GGUX")
    with pytest.raises(DigestError, match=r"was changed together with.*create m:latest again"):
        find_target("m")
    target.write_bytes(data[:-1] + b"!")
    with pytest.raises(DigestError):
        find_target("m")
    make_model(stores, f"FROM {tiny.target}\n")  # an intact copy in another file repairs the damaged blob
    assert find_target("m").target.read_bytes() == data


def test_an_unfitting_drafter_is_refused_and_not_stored(tiny: Tiny, stores: Stores, root: Path) -> None:
    text = f"FROM {tiny.other}\nDRAFT {tiny.draft}\n"
    with pytest.raises(MismatchError) as caught:
        make_model(stores, text)
    message = str(caught.value)
    assert "hidden size: the drafter has 64, the target 32" in message
    assert "number of layers: the drafter has 8, the target 5" in message
    assert "create --no-draft" in message
    assert stores.models() == []
    assert orphans(root) == []
    assert kinds(make_model(stores, text, use_draft=False)) == ["model"]
    text = f"FROM {tiny.other}\nDRAFT {tiny.checkpoint}\n"
    with pytest.raises(MismatchError, match=r"hidden size 64, but the target has 32.*create --no-draft"):
        make_model(stores, text)


def test_fine_tunes_may_only_rename_control_tokens(tiny: Tiny, stores: Stores, tmp_path: Path) -> None:
    # token 2 is the control token <|im_start|>
    renamed = rename_token(tiny.target, tmp_path / "control.gguf", 2)
    assert kinds(make_model(stores, f"FROM {renamed}\nDRAFT {tiny.draft}\n")) == ["model", "draft"]
    renamed = rename_token(tiny.target, tmp_path / "normal.gguf", 300)
    with pytest.raises(MismatchError, match="token 300: the drafter has"):
        make_model(stores, f"FROM {renamed}\nDRAFT {tiny.draft}\n")


def test_a_drafter_may_be_a_stored_name(tiny: Tiny, stores: Stores) -> None:
    first = make_model(stores, f"FROM {tiny.target}\nDRAFT {tiny.draft}\n", "pair")
    model = make_model(stores, f"FROM {tiny.target}\nDRAFT pair\n", "other")
    assert model.manifest.of_kind("draft")[0].digest == first.manifest.of_kind("draft")[0].digest
    make_model(stores, f"FROM {tiny.target}\n", "plain")
    with pytest.raises(MismatchError, match="is both target and drafter"):
        make_model(stores, "FROM plain\nDRAFT plain\n", "other")
    with pytest.raises(ModelNotFoundError, match=r"for a repository on the Hub write hf.co/USER/REPO"):
        make_model(stores, f"FROM {tiny.target}\nDRAFT nowhere\n", "other")


def test_a_fitting_adapter_becomes_a_layer(tiny: Tiny, stores: Stores, root: Path, tmp_path: Path) -> None:
    lora = tmp_path / "lora.gguf"
    write_lora(lora, tiny.target)
    with pytest.raises(MismatchError, match=r"\(4 x 64\) is for 64 outputs, but the target's tensor has 32"):
        make_model(stores, f"FROM {tiny.other}\nADAPTER {lora}\n")
    assert stores.models() == [] and orphans(root) == []
    model = make_model(stores, f"FROM {tiny.target}\nADAPTER {lora}\n")
    assert kinds(model) == ["model", "adapter"]
    assert find_target("m").adapters == ((str(model.files("adapter")[0]), 1.0),)
    assert kinds(make_model(stores, "FROM m\n", "child")) == ["model", "adapter"]


def test_from_a_stored_model_inherits_by_ollamas_rules(tiny: Tiny, stores: Stores, root: Path) -> None:
    make_model(stores, full_text(tiny), "base")
    child = make_model(stores, "FROM base\nSYSTEM other\nPARAMETER stop c\nLICENSE l3\n", "child")
    read = child.modelfile()
    assert read.system == "other"
    assert read.template == "[{{ .Prompt }}]"
    assert read.parameters == {"stop": ("c",), "temperature": 0.5}
    assert read.license == ("l1", "l2", "l3")
    assert read.settings.options == {"strategy": "chain:2"}
    assert kinds(child).count("draft") == 1
    assert child.manifest.of_kind("model")[0].origin == "base:latest"
    assert find_target("child").modelfile.template == "[{{ .Prompt }}]"
    remove_model(stores.own, ModelName.parse("base"))
    assert find_target("child").target.read_bytes() == tiny.target.read_bytes()
    assert store_problems(root) == []
    assert kinds(make_model(stores, "FROM child\n", "grandchild", use_draft=False)).count("draft") == 0


def test_a_target_is_quantised_once(tiny: Tiny, stores: Stores, root: Path) -> None:
    model = make_model(stores, f"FROM {tiny.target}\nDRAFT {tiny.draft}\n", quantize="q8_0")
    assert model.text("file_type") == "Q8_0"
    assert find_target("m").target.stat().st_size < tiny.target.stat().st_size / 2
    with pytest.raises(UnsupportedError, match="already Q8_0"):
        make_model(stores, "FROM m\n", "again", quantize="q4_0")
    with pytest.raises(ValueError, match=r"expected a type of .*Q4_K_M.*found 'q9'"):
        make_model(stores, f"FROM {tiny.target}\n", quantize="q9")
    assert store_problems(root) == []
    assert orphans(root) == []


def test_another_users_store_is_not_written_to(
    tiny: Tiny, ollama: OllamaModel, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ollama("library/m/latest", {"model": tiny.target.read_bytes()})
    theirs = home / ".ollama" / "models"
    monkeypatch.setenv("EAGLECPP_MODELS", str(theirs))
    before = sorted(theirs.rglob("*"))
    stores = Stores.open()
    with pytest.raises(StoreError, match=r"belongs to another program.*set EAGLECPP_MODELS"):
        make_model(stores, f"FROM {tiny.target}\n", "mine")
    with pytest.raises(StoreError, match="belongs to another program"):
        remove_model(stores.own, ModelName.parse("m"))
    assert sorted(theirs.rglob("*")) == before


def test_a_full_disk_is_reported_before_the_copy(
    tiny: Tiny, stores: Stores, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_links(monkeypatch)
    free = tiny.target.stat().st_size + (1 << 20)  # the last bytes of a disk are reserved for the system
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": free}))
    with pytest.raises(StoreError, match=r"not enough space for a copy of .*: needs [\d.]+ [KM]?B"):
        make_model(stores, f"FROM {tiny.target}\n")
    assert orphans(root) == []


def test_split_files_are_stored_in_parts_and_opened_by_their_names(
    tiny: Tiny, stores: Stores, root: Path, tmp_path: Path
) -> None:
    from eaglecpp import Engine
    from helpers.tiny_split import write_split

    first, second = write_split(tiny.target, tmp_path / "tiny", 2)
    model = make_model(stores, f"FROM {first}\n", "whole")
    assert len(model.manifest.of_kind("model")) == 2
    target = find_target("whole").target
    assert target.name == first.name
    with Engine.open(tiny.target, n_ctx=128) as plain, Engine.open(target, n_ctx=128) as parts:
        said = [e.generate("ab", max_tokens=8, temperature=0.0).text for e in (plain, parts)]
        assert said[0] == said[1]
    second.unlink()
    with pytest.raises((GgufError, OSError), match=second.name):
        make_model(stores, f"FROM {first}\n", "broken")
    remove_model(stores.own, model.name)
    assert [*(root / "views").iterdir(), *(root / "blobs").iterdir()] == []


# Models of Ollama's own store

NAME = ModelName.parse("llama3.2:3b")


def test_all_parts_of_a_model_are_read(ollama: OllamaModel, tiny: Tiny, home: Path) -> None:
    target, draft = tiny.target.read_bytes(), tiny.draft.read_bytes()
    ollama(
        "library/llama3.2/3b",
        [
            ("model", target),
            ("draft", b"an older drafter"),
            ("draft", draft),
            ("template", b"{{ .Prompt }}"),
            ("system", b"Be brief."),
            ("license", b"L1"),
            ("license", b"L2"),
            ("params", json.dumps({"stop": "<x>", "temperature": 1, "num_gqa": 3, "novel": 1}).encode()),
            ("messages", b'[{"role":"user","content":"hi"}]'),
            ("embed", b"obsolete"),
            ("adapter", b"a LoRA"),
            ("projector", b"a projector"),
        ],
        b'{"model_format":"","renderer":"qwen3","draft":{"architecture":"dflash"}}',
    )
    resolved = find_target("LLaMA3.2:3B")
    assert resolved.name is not None
    stored = Stores.open().get(resolved.name)
    assert (resolved.kind, stored.draft_kind) == ("ollama", "DFlash")
    assert resolved.target.parent == home / ".ollama" / "models" / "blobs"
    assert resolved.target.read_bytes() == target
    # of several drafters, the last drafter is used
    assert resolved.draft is not None and resolved.draft.read_bytes() == draft
    others = (*stored.files("adapter"), *stored.files("projector"))
    assert [path.read_bytes() for path in others] == [b"a LoRA", b"a projector"]
    assert resolved.modelfile.system == "Be brief."
    assert resolved.modelfile.parameters == {"stop": ("<x>",), "temperature": 1.0}
    assert [turn.content for turn in resolved.modelfile.messages] == ["hi"]
    assert str(resolved.name) == "llama3.2:3b"  # the name has the upper and lower case of the file on disk
    assert (resolved.modelfile.template, resolved.stored_template) == (None, "{{ .Prompt }}")
    assert [str(notice) for notice in resolved.modelfile.notices] == [
        "llama3.2:3b: unknown parameter 'novel'; ignored",
        "llama3.2:3b: RENDERER qwen3 exists only in Ollama; eaglecpp uses the model's chat template",
    ]
    assert (resolved.modelfile.license, resolved.modelfile.renderer) == (("L1", "L2"), "qwen3")


def test_manifests_of_newer_releases_are_links_to_blobs(ollama: OllamaModel, tiny: Tiny, home: Path) -> None:
    old = ollama("library/llama3.2/3b", {"model": tiny.target.read_bytes()})
    store = home / ".ollama" / "models"
    digest = "sha256-" + "d" * 64
    old.rename(store / "blobs" / digest)
    new = store / "manifests-v2" / "ollama.com" / "library" / "llama3.2" / "3b"
    new.parent.mkdir(parents=True)
    new.symlink_to(os.path.relpath(store / "blobs" / digest, new.parent))
    assert find_target("llama3.2:3b").target.read_bytes() == tiny.target.read_bytes()
    (store / "blobs" / digest).unlink()
    with pytest.raises(StoreError, match="broken link"):
        find_target("llama3.2:3b")


def test_a_missing_or_cut_blob_is_reported(ollama: OllamaModel, tiny: Tiny, home: Path) -> None:
    ollama("library/llama3.2/3b", {"model": tiny.target.read_bytes()})
    blob = find_target("llama3.2:3b").target
    blob.write_bytes(b"short")
    with pytest.raises(
        StoreError, match=r"expected \d+ bytes, found 5; pull it again: ollama pull llama3.2:3b"
    ):
        find_target("llama3.2:3b")
    blob.unlink()
    with pytest.raises(StoreError, match=r"model blob sha256:\w+ is missing"):
        find_target("llama3.2:3b")


@pytest.mark.parametrize(
    ("layers", "config", "text"),
    [
        ({"tensor": b"x"}, {"model_format": "safetensors"}, "MLX model"),
        ({"model": b"x"}, {"remote_host": "https://ollama.com"}, "runs on https://ollama"),
        ({"system": b"x"}, {}, "has no model layer"),
    ],
)
def test_models_that_cannot_run_here_are_refused(
    layers: dict[str, bytes], config: dict[str, str], text: str, ollama: OllamaModel
) -> None:
    ollama("library/llama3.2/3b", layers, json.dumps(config).encode())
    with pytest.raises(UnsupportedError, match=text):
        find_target("llama3.2:3b")


@pytest.mark.parametrize("can_link", [True, False])
def test_a_copy_shares_the_blob_and_outlives_the_original_if_links_work(
    can_link: bool, ollama: OllamaModel, tiny: Tiny, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layers = {"model": tiny.target.read_bytes(), "template": b"{{ .Prompt }}"}
    manifest = ollama("library/llama3.2/3b", layers)
    stores = Stores.open()
    if not can_link:
        without_links(monkeypatch)
    theirs = find_target("llama3.2:3b").target
    copy_model(stores, stores.get(NAME), ModelName.parse("mine"))
    ours = find_target("mine")
    assert ours.kind == "store"
    assert ours.target.samefile(theirs) and (ours.target.parent == root / "blobs") == can_link
    # Ollama still chooses the template
    assert (ours.modelfile.template, ours.stored_template) == (None, "{{ .Prompt }}")
    manifest.unlink()
    theirs.unlink()
    if can_link:
        assert find_target("mine").target.read_bytes() == tiny.target.read_bytes()
    else:
        with pytest.raises(StoreError, match=r"mine:latest: model blob .* is missing"):
            find_target("mine")
