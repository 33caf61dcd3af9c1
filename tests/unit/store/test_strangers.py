# SPDX-License-Identifier: MIT
"""What a model that somebody else made may decide here: how it speaks, not what this machine does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eaglecpp.modelfile import Modelfile
from eaglecpp.modelfile.pragmas import OWN_PRAGMAS, without_strange_pragmas
from eaglecpp.modelfile.syntax import Command
from eaglecpp.opening.find import find_target
from eaglecpp.options import DraftOptions, ModelOptions, SamplingOptions, describe
from eaglecpp.references.names import ModelName
from eaglecpp.store import Stores
from eaglecpp.store.create import create_model
from eaglecpp.store.manifest import CONFIG, PRAGMAS
from eaglecpp.store.remote.pull import pull
from eaglecpp.store.transaction import copy_model, remove_model
from helpers.hub_server import HubServer, layer_entry
from helpers.opening import options_of
from helpers.stores import OllamaModel, Tiny

HARMFUL = [
    ["rpc", "198.51.100.7:50052"],
    ["draft", "/etc/passwd"],
    ["n_ctx", "4000000"],
    ["n_ctx", "-1"],
    ["threads", "4096"],
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
    """A model of a registry that would like to decide a lot."""
    contents = {
        "model": tiny.target.read_bytes(),
        PRAGMAS: json.dumps([*HARMFUL, *HARMLESS]).encode(),
        "params": b'{"num_thread":512,"num_ctx":9000000,"top_k":7,"draft_num_predict":1000,"use_mmap":false}',
    }
    config = b'{"model_format":"gguf"}'
    manifest = {
        "schemaVersion": 2,
        "config": layer_entry(CONFIG, config),
        "layers": [layer_entry(kind, data) for kind, data in contents.items()],
    }
    hub.add_manifest(
        "library/evil:1", manifest, {layer_entry("x", d)["digest"]: d for d in (*contents.values(), config)}
    )
    pull(ModelName.parse(f"http://{hub.host}/library/evil:1"), insecure=True)
    return f"{hub.host}/library/evil:1"


def check(name: str) -> None:
    resolved = find_target(name)
    options = options_of(resolved)
    assert options["strategy"] == "chain:3"
    assert (options["n_ctx"], options["temperature"], options["top_k"], options["stop"]) == (
        8192,
        0.3,
        7,
        ("<x>",),
    )
    assert resolved.template_choice == "chatml"
    assert options["n_threads"] == 0
    assert not MACHINE & options.keys()


def test_a_pulled_model_opens_no_connection_and_raises_no_limit(pulled: str) -> None:
    check(pulled)
    said = [str(notice) for notice in find_target(pulled).notices]
    for name, value in HARMFUL:
        assert any(f"ignored: pragma {name} {value}: " in text for text in said), name
    assert any("ignored: parameter num_ctx 9000000: using 32768" in text for text in said)
    assert any(
        "ignored: parameter num_thread 512: only this machine's owner may set it" in text for text in said
    )
    assert all("not made here" in text for text in said if "ignored" in text)


def test_neither_a_copy_nor_a_child_of_it_is_believed(pulled: str, stores: Stores) -> None:
    copy_model(stores, stores.get(ModelName.parse(pulled)), ModelName.parse("copy"))
    check("copy")
    create_model(
        stores,
        ModelName.parse("child"),
        Modelfile.from_text(f"FROM {pulled}\nPARAMETER top_p 0.5\n"),
        Path.cwd(),
    )
    check("child")
    assert options_of(find_target("child"))["top_p"] == 0.5


def test_what_was_created_here_is_believed(tiny: Tiny, stores: Stores) -> None:
    text = f"FROM {tiny.target}\nPARAMETER num_thread 3\n#eaglecpp: rpc 127.0.0.1:1\n#eaglecpp: n_ctx 65536\n"
    model = create_model(stores, ModelName.parse("mine"), Modelfile.from_text(text), Path.cwd()).model
    options = options_of(find_target("mine"))
    assert (options["n_threads"], options["rpc"], options["n_ctx"]) == (3, ("127.0.0.1:1",), 65536)
    copy_model(stores, model, ModelName.parse("second"))
    assert options_of(find_target("second")) == options
    assert len(stores.own.made()) == 2
    for name in ("mine", "second"):
        remove_model(stores.own, ModelName.parse(name))
    assert stores.own.made() == frozenset()


def test_a_damaged_record_means_nobody_is_believed(tiny: Tiny, stores: Stores, root: Path) -> None:
    text = f"FROM {tiny.target}\n#eaglecpp: rpc 127.0.0.1:1\n"
    create_model(stores, ModelName.parse("mine"), Modelfile.from_text(text), Path.cwd())
    (root / "made.json").write_bytes(b"[[[")
    assert "rpc" not in options_of(find_target("mine"))


def test_models_of_ollama_s_store_are_somebody_else_s(ollama: OllamaModel, tiny: Tiny) -> None:
    ollama(
        "library/m/1",
        {"model": tiny.target.read_bytes(), "params": b'{"num_thread":99,"num_ctx":2048,"stop":["a"]}'},
    )
    options = options_of(find_target("m:1"))
    assert (options["n_ctx"], options["stop"]) == (2048, ("a",))
    assert options["n_threads"] == 0


def test_an_option_is_not_for_strangers_unless_it_says_so() -> None:
    """The list, so that a new option is a decision and not an accident."""
    mine = {
        o.name
        for cls in (ModelOptions, DraftOptions, SamplingOptions)
        for o in describe(cls)
        if o.strangers is False
    }
    never = (
        "rpc lora n_threads n_threads_batch use_mlock use_mmap main_gpu repack taps n_sequences n_draft_max"
    )
    assert mine >= {*never.split(), "n_leaves_max", "draft_device", "grammar", "ignore_eos", "n_probs"}
    assert {o.name for o in describe(DraftOptions) if o.strangers} == set()


NAMES = st.sampled_from([*sorted(OWN_PRAGMAS), "rpc", "lora", "threads", "n_ctx"])
VALUES = st.sampled_from(["1", "a:1", "auto", "chain:17", "tree:k=65,depth=1,nodes=65"])


@given(st.lists(st.tuples(NAMES, VALUES), max_size=4))
def test_no_mixture_gets_past(pairs: list[tuple[str, str]]) -> None:
    commands = [Command(name, value) for name, value in pairs]
    try:
        kept, dropped = without_strange_pragmas(commands)
    except ValueError:
        return
    assert len(kept) + len(dropped) == len(commands)
    left: Any = {(c.name, c.args) for c in kept if c.name != "chat_template"}
    assert left <= {("strategy", "auto"), ("n_ctx", "1")}
