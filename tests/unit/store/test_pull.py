# SPDX-License-Identifier: MIT
"""Tests pulls from a server that behaves like the Hub or like Ollama's registry, with and without faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eaglecpp.errors import EagleError
from eaglecpp.opening.find import find_target
from eaglecpp.references import ModelName
from eaglecpp.store import DigestError, DownloadError, OfflineError, Status, Stores
from eaglecpp.store.layout import partial_path
from eaglecpp.store.model import StoredModel
from eaglecpp.store.remote.pull import pull
from eaglecpp.store.transaction import remove_model
from helpers.clock import set_clock
from helpers.hub_server import HubServer, digest_of
from helpers.opening import options_of
from helpers.store_check import orphans, store_problems
from helpers.stores import OllamaModel, Tiny, files_of, put_into_cache

REPO = "user/tiny-GGUF"


def fetch(stores: Stores, name: str, **options: Any) -> StoredModel:
    return pull(ModelName.parse(name), **options)


@pytest.fixture
def models(hub: HubServer, tiny: Tiny) -> HubServer:
    """Starts a Hub with the tiny target in several files, like GGUF repositories."""
    target = tiny.target.read_bytes()
    hub.add(
        REPO,
        {
            "README.md": b"# card",
            "tiny-BF16.gguf": target + b"bf16",
            "tiny-F16.gguf": target + b"f16",
            "tiny-Q4_K_M.gguf": target,
            "tiny-Q8_0.gguf": target + b"q8",
            "mmproj-tiny-Q4_K_M.gguf": target + b"mmproj",
            "template": b"<{{ .Prompt }}>",
            "params": b'{"stop":["<x>"]}',
        },
    )
    return hub


def test_a_model_of_the_hub(models: HubServer, stores: Stores, tiny: Tiny, root: Path) -> None:
    steps: list[Status] = []
    model = fetch(stores, f"hf.co/{REPO}:Q4_K_M", report=steps.append)
    assert str(model.name) == f"hf.co/{REPO}:Q4_K_M"
    written = root / "manifests" / "hf.co" / "user" / "tiny-GGUF" / "Q4_K_M"
    assert model.data == written.read_bytes()
    resolved = find_target(f"hf.co/{REPO}:q4_k_m")
    assert resolved.target.read_bytes() == tiny.target.read_bytes()
    assert resolved.modelfile.template == "<{{ .Prompt }}>"
    assert options_of(resolved)["stop"] == ("<x>",)
    assert (model.text("model_family"), model.text("file_type")) == ("llama", "F32")
    assert store_problems(root) == []
    assert orphans(root) == []
    words = [step.status for step in steps if not step.digest and not step.total]
    assert words == ["pulling manifest", "writing manifest", "success"]
    digest = digest_of(tiny.target.read_bytes())
    bars = [step for step in steps if step.status == f"pulling {digest[7:19]}"]
    assert bars[-1] == Status(bars[0].status, digest, 1777472, 1777472, "tiny-Q4_K_M.gguf")


def test_nothing_is_downloaded_twice(models: HubServer, stores: Stores, root: Path) -> None:
    fetch(stores, f"hf.co/{REPO}:Q4_K_M")
    n_before = len(models.content_requests())
    fetch(stores, f"hf.co/{REPO}:Q4_K_M")
    fetch(stores, f"hf.co/{REPO}")
    assert len(models.content_requests()) == n_before
    remove_model(stores.own, ModelName.parse(f"hf.co/{REPO}:Q4_K_M"))
    assert find_target(f"hf.co/{REPO}").target.exists()
    remove_model(stores.own, ModelName.parse(f"hf.co/{REPO}"))
    assert list((root / "blobs").iterdir()) == []


@pytest.mark.parametrize("ignores_ranges", [False, True])
def test_a_broken_connection_is_continued_where_it_broke(
    ignores_ranges: bool, models: HubServer, stores: Stores, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_clock(monkeypatch, "eaglecpp.store.remote.download", sleep=lambda seconds: None)
    models.faults.cut_after, models.faults.busy = [500_000, 700_000], 2
    models.faults.ignore_ranges = ignores_ranges
    fetch(stores, f"hf.co/{REPO}:Q4_K_M")
    second = 700_000 if ignores_ranges else 1_200_000
    ranges = [request.range for request in models.content_requests()]
    assert ranges == ["", "bytes=500000-", f"bytes={second}-"]
    assert find_target(f"hf.co/{REPO}:Q4_K_M").target.read_bytes() == tiny.target.read_bytes()


@pytest.mark.parametrize("left", [b"damaged" * 1000, b"x" * 3_000_000])
def test_a_damaged_remainder_is_discarded(
    left: bytes, models: HubServer, stores: Stores, tiny: Tiny, root: Path
) -> None:
    (root / "blobs").mkdir(parents=True)
    (root / "eaglecpp.json").write_text('{"layout": 1}')
    partial_path(root, digest_of(tiny.target.read_bytes())).write_bytes(left)
    fetch(stores, f"hf.co/{REPO}:Q4_K_M")
    assert find_target(f"hf.co/{REPO}:Q4_K_M").target.read_bytes() == tiny.target.read_bytes()


def test_wrong_content_is_never_stored(models: HubServer, stores: Stores, tiny: Tiny, root: Path) -> None:
    digest = digest_of(tiny.target.read_bytes())
    models.faults.corrupt = {digest}
    with pytest.raises(
        DigestError, match=f"the server sent something other than {digest}; nothing was stored"
    ):
        fetch(stores, f"hf.co/{REPO}:Q4_K_M")
    assert stores.models() == []
    assert list((root / "blobs").iterdir()) == []
    models.faults.corrupt = set()
    fetch(stores, f"hf.co/{REPO}:Q4_K_M")


def test_a_private_repository_needs_the_token_and_the_storage_never_sees_it(
    hub: HubServer, stores: Stores, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add("me/private", {"m-Q4_K_M.gguf": tiny.target.read_bytes(), "system": b"s"}, token="hf_secret")
    with pytest.raises(DownloadError, match=r"me/private: access refused .401.*HF_TOKEN"):
        fetch(stores, "hf.co/me/private")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    fetch(stores, "hf.co/me/private")
    assert find_target("hf.co/me/private").modelfile.system == "s"
    assert {request.authorization for request in hub.content_requests()} == {""}
    assert "Bearer hf_secret" in {request.authorization for request in hub.log}


@pytest.mark.parametrize(
    ("repo", "files", "message"),
    [
        ("no/where", None, r"no/where: not found .404"),
        (
            "user/safetensors",
            {"config.json": b"{}", "model.safetensors": b"x" * 2000},
            r"contains no GGUF model. If it is a drafter, pull it with its target",
        ),
        ("user/odd", {"m.gguf": b"x" * 500}, "the Hub has no digest for"),
        ("user/one:Q2_K", {"m-Q8_0.gguf": b"x" * 5000}, "no GGUF for 'Q2_K'; available: Q8_0"),
        ("meta/gated", {"m.gguf": b"x" * 5000}, r"meta/gated: access refused .403.*accept its terms"),
    ],
)
def test_refusals_name_the_repository_and_the_remedy(
    repo: str, files: dict[str, bytes] | None, message: str, hub: HubServer, stores: Stores
) -> None:
    if files is not None:
        hub.add(repo.partition(":")[0], files, gated="gated" in repo)
    with pytest.raises(DownloadError, match=message):
        fetch(stores, f"hf.co/{repo}")


def test_split_files_are_pulled_as_a_whole(
    hub: HubServer, stores: Stores, tiny: Tiny, tmp_path: Path, root: Path
) -> None:
    from helpers.tiny_split import write_split

    parts = write_split(tiny.target, tmp_path / "tiny-Q4_K_M", 3)
    hub.add("user/split", {f"Q4_K_M/{part.name}": part.read_bytes() for part in parts})
    fetch(stores, "hf.co/user/split:Q4_K_M")
    target = find_target("hf.co/user/split:Q4_K_M").target
    assert [path.read_bytes() for path in sorted(target.parent.iterdir())] == [p.read_bytes() for p in parts]
    assert target.name == "tiny-Q4_K_M-00001-of-00003.gguf"
    hub.repos["user/split"].pop(f"Q4_K_M/{parts[1].name}")
    with pytest.raises(
        DownloadError, match=r"is split, but these parts are missing: tiny-Q4_K_M-00002-of-00003\.gguf"
    ):
        fetch(stores, "hf.co/user/split:Q4_K_M")


# Pulling without a network


def test_offline_mode_uses_caches(
    home: Path, stores: Stores, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for name in (f"hf.co/{REPO}", "llama3.2:3b"):
        with pytest.raises(OfflineError, match=r"offline mode is on; unset HF_HUB_OFFLINE"):
            fetch(stores, name)
    put_into_cache(home, REPO, {"tiny-Q4_K_M.gguf": tiny.target.read_bytes()})
    steps: list[Status] = []
    fetch(stores, f"hf.co/{REPO}", report=steps.append)
    assert any("using the copy in the local cache" in step.status for step in steps)
    cached = next((home / "cache").rglob("blobs/*"))
    blob = find_target(f"hf.co/{REPO}").target
    assert blob.samefile(cached) or blob.read_bytes() == cached.read_bytes()


def test_a_cache_saves_the_download_and_is_checked(
    models: HubServer, home: Path, stores: Stores, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tiny.target.read_bytes()
    put_into_cache(home, REPO, {"tiny-Q4_K_M.gguf": data, "tiny-Q8_0.gguf": data + b"q8"})
    fetch(stores, f"hf.co/{REPO}:Q4_K_M")
    assert models.content_requests() == []
    damaged = next(p for p in (home / "cache").rglob("blobs/*") if p.read_bytes().endswith(b"q8"))
    damaged.write_bytes(b"x" * (len(data) + 2))
    fetch(stores, f"hf.co/{REPO}:Q8_0")
    assert len(models.content_requests()) == 1
    assert find_target(f"hf.co/{REPO}:Q8_0").target.read_bytes() == data + b"q8"
    monkeypatch.setenv("MODEL_ENDPOINT", "http://127.0.0.1:9")
    assert fetch(stores, f"hf.co/{REPO}").own, "an unreachable Hub must count as offline"
    with pytest.raises(OfflineError, match=r"user/other: cannot reach 127\.0\.0\.1"):
        fetch(stores, "hf.co/user/other")


# Pulling from Ollama's registry


@pytest.fixture
def registry(hub: HubServer, tiny: Tiny) -> HubServer:
    for name in ("library/tiny:1b", "secret/tiny:latest"):
        hub.publish(name, {"model": tiny.target.read_bytes(), "template": b"{{ .Prompt }}"})
    return hub


def test_registry_refusals(registry: HubServer, stores: Stores, tiny: Tiny) -> None:
    registry.publish("library/mlx:latest", {"tensor": b"x"})
    registry.manifests["library/odd:latest"] = b"<html>"
    registry.publish("library/many:latest", [("model", b"%d" % i) for i in range(1001)])
    registry.publish("library/twice:latest", [("model", tiny.target.read_bytes())] * 400)
    for name, message in (
        ("library/tiny:none", r"not found \(404\).*manifests/none"),
        ("secret/tiny", r"access refused \(401\).*ollama pull"),
        ("library/mlx", "this is an MLX model"),
        ("library/odd", "expected JSON"),
        ("library/twice", "found the same content twice"),
        ("library/many", "expected at most 1000 layers, found 1001"),
    ):
        with pytest.raises(EagleError, match=message):
            fetch(stores, f"http://{registry.host}/{name}", insecure=True)
    with pytest.raises(DownloadError, match="http is not encrypted"):
        fetch(stores, f"http://{registry.host}/library/tiny:1b")
    assert registry.content_requests() == []
    registry.publish("library/tiny:1b", {"model": tiny.target.read_bytes()}, b"<html>")
    with pytest.raises(EagleError, match="config: expected JSON"):
        fetch(stores, f"http://{registry.host}/library/tiny:1b", insecure=True)
    assert stores.models() == []


def test_ollamas_blobs_are_not_downloaded(registry: HubServer, ollama: OllamaModel, tiny: Tiny) -> None:
    ollama("library/other/latest", {"model": tiny.target.read_bytes()})
    fetch(Stores.open(), f"http://{registry.host}/library/tiny:1b", insecure=True)
    digest = digest_of(tiny.target.read_bytes())
    assert [r.path for r in registry.content_requests() if r.path.endswith(digest)] == []


# Pulling drafters


def test_a_drafter_of_the_hub_is_converted_once_and_shared(
    models: HubServer, stores: Stores, tiny: Tiny, root: Path
) -> None:
    models.add("maker/tiny-eagle3", files_of(tiny) | {"README.md": b"card", "optimizer.bin": b"x" * 5000})
    drafter = "hf.co/maker/tiny-eagle3"
    pulled = fetch(stores, f"hf.co/{REPO}:Q4_K_M", draft=drafter)
    n_requests = len(models.content_requests())
    stored = stores.get(ModelName.parse(f"{drafter}:Q8_0"))
    assert stored.is_drafter
    assert pulled.manifest.of_kind("draft")[0].digest == stored.manifest.of_kind("draft")[0].digest
    assert pulled.draft_kind == "eagle3"
    assert store_problems(root) == []
    assert orphans(root) == []
    assert not list((root / "blobs").glob("*-partial"))  # `pull` does not keep the drafter's checkpoint
    assert "optimizer.bin" not in {Path(r.path).name for r in models.log}
    fetch(stores, f"hf.co/{REPO}:Q8_0", draft=drafter)
    # Only the other target is downloaded. The drafter is already here.
    assert len(models.content_requests()) == n_requests + 1
    from eaglecpp.store.facts import read_facts

    assert read_facts([pulled.files("draft")[0]]).file.text("eaglecpp.source", "") == "maker/tiny-eagle3"
    remove_model(stores.own, ModelName.parse(f"{drafter}:Q8_0"))
    assert find_target(f"hf.co/{REPO}:Q4_K_M").draft is not None


def test_a_pull_keeps_a_fitting_drafter(models: HubServer, stores: Stores, tiny: Tiny) -> None:
    name = f"hf.co/{REPO}:Q4_K_M"
    fetch(stores, name, draft=str(tiny.draft))
    assert fetch(stores, name).files("draft")
    models.add(REPO, {"tiny-Q4_K_M.gguf": tiny.other.read_bytes()})
    other = fetch(stores, name)
    assert not other.files("draft") and "the old drafter was removed: " in str(other.notices[0])


def test_auto_takes_the_repositorys_drafter_and_later_pulls_keep_the_choice(
    models: HubServer, stores: Stores, tiny: Tiny
) -> None:
    draft = tiny.draft.read_bytes()
    models.add(REPO, {**models.repos[REPO], "eagle3-Q4_0.gguf": b"x" * 2000, "eagle3-F16.gguf": draft})
    for asked, expected in ((None, []), ("auto", [draft]), (None, [draft]), ("none", []), (None, [])):
        model = fetch(stores, f"hf.co/{REPO}:F16", draft=asked)
        assert [file.read_bytes() for file in model.files("draft")] == expected


def test_a_publishers_drafter_comes_first_unless_another_is_named(
    registry: HubServer, stores: Stores, tiny: Tiny, root: Path
) -> None:
    mine, theirs = tiny.draft.read_bytes(), tiny.draft.read_bytes() + b"theirs"
    registry.publish("library/tiny:1b", {"model": tiny.target.read_bytes(), "draft": theirs})
    for asked, expected in ((None, [theirs]), ("none", []), (str(tiny.draft), [mine]), (None, [theirs])):
        model = fetch(stores, f"http://{registry.host}/library/tiny:1b", insecure=True, draft=asked)
        assert [file.read_bytes() for file in model.files("draft")] == expected
        assert (model.data == registry.manifests["library/tiny:1b"]) == (asked is None)
        assert store_problems(root) == []
