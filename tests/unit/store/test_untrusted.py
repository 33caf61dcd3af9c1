# SPDX-License-Identifier: MIT
"""Tests that an untrusted model may choose its prompt format, but not settings of this machine."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from eaglecpp.opening.find import find_target
from eaglecpp.options import DraftOptions, ModelOptions, SamplingOptions, describe
from eaglecpp.references import ModelName
from eaglecpp.store import Stores
from eaglecpp.store.manifest import PRAGMAS
from eaglecpp.store.remote.pull import pull
from eaglecpp.store.transaction import copy_model
from helpers.hub_server import HubServer
from helpers.opening import options_of
from helpers.stores import OllamaModel, Tiny, make_model

HARMFUL = [
    ["rpc", "198.51.100.7:50052"],
    ["draft", "/etc/passwd"],
    ["n_ctx", "4000000"],
    ["n_ctx", "-1"],
    ["threads", "512"],
    ["n_draft_max", "1024"],
    ["strategy", "chain:900"],
    ["repack", "on"],
    ["draft_device", "RPC0"],
    ["planner_cache", "false"],
    ["use_mlock", "true"],
    ["something_newer", "x"],
]
MACHINE = {"rpc", "n_draft_max", "repack", "draft_device", "planner_cache", "use_mlock", "use_mmap"}
HARMLESS = [
    ["strategy", "chain:3"],
    ["chat_template", "chatml"],
    ["temperature", "0.3"],
    ["n_ctx", "8192"],
    ["stop", "<x>"],
]


@pytest.fixture
def pulled(hub: HubServer, tiny: Tiny, stores: Stores) -> str:
    """Pulls a model from a registry. The model tries to change many settings."""
    contents = {
        "model": tiny.target.read_bytes(),
        PRAGMAS: json.dumps([*HARMFUL, *HARMLESS]).encode(),
        "params": b'{"num_thread":512,"num_ctx":9000000,"top_k":7,"draft_num_predict":1000,"use_mmap":false}',
    }
    hub.publish("library/evil:1", contents)
    pull(ModelName.parse(f"http://{hub.host}/library/evil:1"), insecure=True)
    return f"{hub.host}/library/evil:1"


def check(name: str) -> None:
    resolved = find_target(name)
    options = options_of(resolved)
    expected = {"strategy": "chain:3", "n_ctx": 8192, "temperature": 0.3, "top_k": 7, "stop": ("<x>",)}
    assert {key: options[key] for key in expected} == expected
    assert resolved.modelfile.settings.chat_template == "chatml"
    assert options["n_threads"] == 0
    assert not MACHINE & options.keys()


def test_a_pulled_model_opens_no_connection_and_raises_no_limit(pulled: str, stores: Stores) -> None:
    check(pulled)
    said = [str(notice) for notice in find_target(pulled).modelfile.notices]
    for name, value in HARMFUL:
        assert any(f"pragma {name} {value} is ignored: " in text for text in said), name
    assert any("parameter num_ctx 9000000 is lowered to 32768" in text for text in said)
    owner = "parameter num_thread 512 is ignored: only this machine's owner may set it"
    assert any(owner in text for text in said)
    assert all("not made here" in text for text in said if "ignored" in text)
    copy_model(stores, stores.get(ModelName.parse(pulled)), ModelName.parse("copy"))
    check("copy")
    make_model(stores, f"FROM {pulled}\nPARAMETER top_p 0.5\n", "child")
    check("child")
    assert options_of(find_target("child"))["top_p"] == 0.5


def test_a_model_created_here_is_trusted(tiny: Tiny, stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"FROM {tiny.target}\nPARAMETER num_thread 3\n#eaglecpp: rpc 127.0.0.1:1\n#eaglecpp: n_ctx 65536\n"
    model = make_model(stores, text, "mine")
    options = options_of(find_target("mine"))
    assert (options["n_threads"], options["rpc"], options["n_ctx"]) == (3, ("127.0.0.1:1",), 65536)
    copy_model(stores, model, ModelName.parse("second"))
    assert options_of(find_target("second")) == options
    monkeypatch.setattr("eaglecpp.store.model.StoredModel.pragmas", lambda self: [("newer", "3")])
    assert "unknown pragma newer; ignored" in str(find_target("mine").modelfile.notices)


@pytest.mark.parametrize("is_list", [False, True])
def test_untrusted_settings_are_not_trusted_because_they_equal_the_users(
    is_list: bool, hub: HubServer, tiny: Tiny, stores: Stores
) -> None:
    """Tests an untrusted model whose bytes equal those of the user's own model. Its settings stay untrusted:
    trust belongs to the model, not to the bytes, and a registry cannot grant trust.
    """
    text = f"FROM {tiny.target}\nPARAMETER num_thread 3\n#eaglecpp: learn true\n#eaglecpp: rpc 127.0.0.1:1\n"
    name = ModelName.parse(f"{hub.host}/library/evil:1")

    mine = make_model(stores, text, "mine")
    manifest = json.loads(mine.data)
    if is_list:
        listed = [{"runner": "llamacpp", **manifest}]
        manifest |= {"mediaType": "application/vnd.ollama.manifest.list.v2+json", "manifests": listed}
    hub.add_manifest(
        "library/evil:1",
        manifest,
        {layer.digest: mine.find_blob(layer).read_bytes() for layer in mine.manifest.blobs},
    )

    def is_believed(name: str) -> bool:
        options = options_of(find_target(name))
        return bool({"rpc", "learn"} & options.keys()) or options["n_threads"] != 0

    make_model(stores, text, str(name))  # the model is the user's own until the pull replaces it
    assert is_believed(str(name))
    pull(replace(name, scheme="http"), insecure=True)
    assert not is_believed(str(name))
    copy_model(stores, stores.get(name), ModelName.parse("copy"))
    make_model(stores, f"FROM {name}\n", "child")
    assert is_believed("mine")
    assert not is_believed("copy") and not is_believed("child")


def test_models_of_ollamas_store_are_untrusted(ollama: OllamaModel, tiny: Tiny) -> None:
    file = ollama(
        "library/m/1",
        {"model": tiny.target.read_bytes(), "params": b'{"num_thread":99,"num_ctx":2048,"stop":["a"]}'},
    )
    file.write_text(json.dumps(json.loads(file.read_bytes()) | {"decidedHere": ["settings"]}))
    options = options_of(find_target("m:1"))
    assert (options["n_ctx"], options["stop"]) == (2048, ("a",))
    assert options["n_threads"] == 0


def test_an_option_is_closed_to_untrusted_models_by_default() -> None:
    """Compares the full list of options that untrusted models may set with the expected list. So each new
    option requires a decision.
    """
    mine = {
        o.name
        for cls in (ModelOptions, DraftOptions, SamplingOptions)
        for o in describe(cls)
        if o.untrusted is False
    }
    never = "rpc lora n_threads n_threads_batch use_mlock use_mmap main_gpu repack n_sequences n_draft_max"
    assert mine >= {*never.split(), "n_leaves_max", "draft_device", "grammar", "ignore_eos", "n_probs"}
    assert {o.name for o in describe(DraftOptions) if o.untrusted} == set()
