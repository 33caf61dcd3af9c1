# SPDX-License-Identifier: MIT
"""Tests that texts after images equal the texts with llama.cpp's own image reader, with and without
drafts.
"""

from __future__ import annotations

import ctypes
import shutil
import signal
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import psutil
import pytest
from llama_cpp import llama_supports_gpu_offload

import eaglecpp
from eaglecpp import errors
from eaglecpp.chat.images import image_mark
from eaglecpp.chat.message import Message
from eaglecpp.engine.projector_worker import send
from eaglecpp.engine.stream import next_chunks
from eaglecpp.lowlevel import system_info
from helpers.amx import spare_llama_cpp
from helpers.http_server import DRAFT, TARGET
from helpers.tiny_arch import make_hybrid, make_seeing, make_with_head
from helpers.tiny_projector import N_ROWS, make_image, make_projector

KINDS = tuple(N_ROWS)
N_EMBD = 320  # width of the demo target's embeddings
SECTIONS = {"qwen2vl": 64, "qwen3vl": 128, "qwen35": 64}
"""Targets that number an image's rows by line and column (M-RoPE), and the width of a row's values."""
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 48, "ignore_eos": True}
STRATEGIES = ("chain:4", "tree:k=3,depth=4,nodes=12", "auto")


@dataclass(frozen=True)
class Seeing:
    """A target, its drafter, and a projector for images."""

    name: str
    target: Path
    draft: Path | str
    projector: Path


@pytest.fixture(scope="module", params=KINDS)
def seeing(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Seeing:
    name, folder = request.param, tmp_path_factory.mktemp("seeing")
    if name in KINDS:
        return Seeing(name, TARGET, DRAFT, make_projector(folder / "projector.gguf", N_EMBD, name))
    if name == "lfm2":
        pair = make_hybrid(folder)
        return Seeing(name, pair.target, pair.draft, make_projector(folder / "p.gguf", 64, "janus_pro"))
    projector = make_projector(folder / "projector.gguf", SECTIONS[name], "qwen2vl_merger")
    if name == "qwen35":
        return Seeing(name, make_with_head(folder, name), "mtp", projector)
    pair = make_seeing(folder, name)
    return Seeing(name, pair.target, pair.draft, projector)


@pytest.fixture
def open_engine(seeing: Seeing) -> Callable[..., eaglecpp.Engine]:
    def opened(draft: Path | str | None = seeing.draft, **options: Any) -> eaglecpp.Engine:
        options = {"n_ctx": 1024, "n_threads": 1, "planner_cache": False, **options}
        options.setdefault("mmproj", str(seeing.projector))
        return eaglecpp.Engine.open(seeing.target, draft, **options)

    return opened


every_target = pytest.mark.parametrize("seeing", [*KINDS, *SECTIONS, "lfm2"], indirect=True, scope="module")


def ask(text: str, *images: bytes) -> dict[str, Any]:
    return {"role": "user", "content": text, "images": list(images)}


def said_by_llama_cpp(seeing: Seeing, text: str, images: Sequence[bytes], n: int) -> tuple[list[int], float]:
    """Lets llama.cpp's mtmd evaluate the prompt. Returns the greedy tokens after the prompt, and the
    log-probability of the first of these tokens.
    """
    import llama_cpp
    from llama_cpp import mtmd_cpp

    options = llama_cpp.llama_model_default_params()
    options.use_extra_bufts = not spare_llama_cpp()
    with mock.patch("llama_cpp.llama_cpp.llama_model_default_params", return_value=options):
        llama = llama_cpp.Llama(
            str(seeing.target), n_ctx=1024, n_threads=1, n_batch=512, type_k=0, type_v=0, verbose=False
        )
    params = mtmd_cpp.mtmd_context_params_default()
    params.use_gpu, params.n_threads, params.warmup = False, 1, False
    context = mtmd_cpp.mtmd_init_from_file(str(seeing.projector).encode(), llama.model, params)
    bitmaps = []
    for image in images:
        buffer = (ctypes.c_uint8 * len(image)).from_buffer_copy(image)
        bitmaps.append(mtmd_cpp.mtmd_helper_bitmap_init_from_buf(context, buffer, len(image), False))
    chunks, given = mtmd_cpp.mtmd_input_chunks_init(), text.encode()
    part = mtmd_cpp.mtmd_input_text(given, len(given), True, True)
    array = (ctypes.c_void_p * len(bitmaps))(*bitmaps)
    assert mtmd_cpp.mtmd_tokenize(context, chunks, part, array, len(bitmaps)) == 0
    n_past, tokens, first = ctypes.c_int32(), [], 0.0
    assert mtmd_cpp.mtmd_helper_eval_chunks(
        context, llama.ctx, chunks, 0, 0, 512, True, ctypes.byref(n_past)
    ) == 0  # fmt: skip
    llama.n_tokens = n_past.value
    for _ in range(n):
        logits = np.array(llama_cpp.llama_get_logits_ith(llama.ctx, -1)[: llama.n_vocab()])
        tokens.append(int(logits.argmax()))
        first = first or float(-np.log(np.exp(logits - logits.max()).sum()))
        batch = llama_cpp.llama_batch_get_one((ctypes.c_int32 * 1)(tokens[-1]), 1)
        assert llama_cpp.llama_decode(llama.ctx, batch) == 0
    mtmd_cpp.mtmd_input_chunks_free(chunks)
    for bitmap in bitmaps:
        mtmd_cpp.mtmd_bitmap_free(bitmap)
    mtmd_cpp.mtmd_free(context)
    llama.close()
    return tokens, first


@every_target
def test_the_text_is_llama_cpps(seeing: Seeing, open_engine: Callable[..., eaglecpp.Engine]) -> None:
    found = []
    same: dict[str, Any] = {"kernels": "off", "type_k": "f32", "type_v": "f32", "flash_attn": "off"}
    with open_engine(draft=None, **same) as engine:
        one, other = make_image(1), make_image(2, width=64)
        for images in ([one], [other], [one, other, one, one]):
            text = f"look: {'{}' * len(images)} What is os.path?"
            expected, first = said_by_llama_cpp(
                seeing, text.format(*["<__media__>"] * len(images)), images, 48
            )
            marks = [image_mark(image) for image in images]
            prompt = engine.shared.vocabulary.tokenize_images(
                text.format(*marks), dict(zip(marks, images, strict=True)), add_bos=True
            )
            result = engine.generate(prompt, n_probs=1, **GREEDY)
            assert result.tokens == expected and result.logprobs
            assert result.logprobs[0].logprob == pytest.approx(first, abs=1e-4)
            found.append(first)
    assert abs(found[0] - found[1]) > 1e-3, "different images must give different answers"


@contextmanager
def counted_encodings() -> Iterator[list[str]]:
    """Yields a list that grows while the `with` block runs: it records each image that is encoded, and "" for
    each text that is read.
    """
    found: list[str] = []

    def noted(stream: Any, message: dict[str, Any]) -> None:
        found.append(message.get("image", ""))
        send(stream, message)

    with mock.patch("eaglecpp.engine.projector.send", noted):
        yield found


@pytest.mark.parametrize("seeing", ["janus_pro", "qwen2vl"], indirect=True)
def test_images_are_encoded_once_if_they_fit(open_engine: Callable[..., eaglecpp.Engine]) -> None:
    one, other = make_image(1), make_image(2)
    with open_engine() as engine:
        for n, n_sent in ((100, 1), (2000, 0)):
            for message in (ask("What?", *[one] * n), ask(f"What? {image_mark(one) * (n - 1)}", one)):
                with (
                    counted_encodings() as sent,
                    pytest.raises(errors.ContextFullError, match="prompt is too long"),
                ):
                    engine.chat([message], **GREEDY)
                assert sent == [""] * n_sent
        for text in ("What is this? " * 9999, f"{'What? ' * 250}{image_mark(one)}" * 9):
            with (
                counted_encodings() as sent,
                pytest.raises(errors.ContextFullError, match="at least 1024 tokens"),
            ):
                engine.chat([ask(text, one)], **GREEDY)
            assert not sent
        with counted_encodings() as sent:
            prompt = engine.chat_prompt([ask("What?", one, other, one, one)])
        assert sorted(sent) == sorted(["", image_mark(one), image_mark(other)])
        assert prompt.count(min(prompt)) == 1 and prompt.count(max(id for id in prompt if id < 0)) == 3


@pytest.mark.parametrize("seeing", ["qwen2vl"], indirect=True)
def test_an_image_larger_than_the_context_is_refused(open_engine: Callable[..., eaglecpp.Engine]) -> None:
    image = make_image(1, width=8, height=5000)
    with open_engine(n_ctx=256) as engine, counted_encodings() as sent:
        for asked in (engine.chat, engine.chat_prompt):
            with pytest.raises(errors.ContextFullError, match="context size of 256"):
                asked([ask("What?", image)])
    assert not any(sent)


def test_the_memory_of_an_unpacked_image_is_bounded(open_engine: Callable[..., eaglecpp.Engine]) -> None:
    image = make_image(1)
    at, packed = image.index(b"IDAT"), zlib.compress(bytes(200 << 20), 9)
    bomb = image[: at - 4] + len(packed).to_bytes(4, "big") + b"IDAT" + packed + image[-16:]
    with open_engine() as engine:
        assert engine.chat([ask("What is len?", image)], **GREEDY).text
        before = own_reader().memory_info().vms
        with pytest.raises(errors.InvalidValueError, match="pixels unpacks to more than"):
            engine.chat([ask("What?", bomb)], **GREEDY)
        assert own_reader().memory_info().vms == before
        if sys.platform == "linux" and not llama_supports_gpu_offload():
            assert 0 < own_reader().rlimit(psutil.RLIMIT_AS)[1] < before + (6 << 30)


@every_target
@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.8, "seed": 3}], ids=["greedy", "seeded"])
def test_drafts_change_nothing(
    sampling: dict[str, Any], seeing: Seeing, open_engine: Callable[..., eaglecpp.Engine]
) -> None:
    messages = [ask("What does os.path.join do?", make_image(1), make_image(2, width=64))]
    options = GREEDY | sampling
    with open_engine() as engine:
        plain = engine.chat(messages, strategy="off", **options)
        assert plain.timings.prompt_n > 2 * N_ROWS.get(seeing.name, 16)
        for strategy in STRATEGIES:
            if engine.chains_only and strategy.startswith("tree"):
                continue
            engine.clear()
            found = engine.chat(messages, strategy=strategy, **options)
            assert found.tokens == plain.tokens
            assert strategy == "auto" or found.timings.draft_n_accepted > 0


@every_target
def test_an_image_is_recognised_by_its_content(open_engine: Callable[..., eaglecpp.Engine]) -> None:
    first, second = make_image(1), make_image(2)
    with open_engine() as engine:
        one = engine.chat([ask("What is len?", first)], **GREEDY)
        again = engine.chat([ask("What is len?", first)], **GREEDY)
        assert again.tokens == one.tokens
        # The second call keeps the cached prefix, unless the model is recurrent. A recurrent state cannot go
        # back to the end of the prefix.
        assert engine.chains_only or again.timings.prompt_n == 1
        other = engine.chat([ask("What is len?", second)], **GREEDY)
        assert other.timings.reused_n < other.timings.prompt_n
        engine.clear()
        assert engine.chat([ask("What is len?", second)], **GREEDY).tokens == other.tokens
        turns = [ask("What is len?", first), {"role": "assistant", "content": "It counts."}, ask("And max?")]
        talk = engine.chat(turns, **GREEDY)
        engine.clear()
        assert engine.chat(turns, **GREEDY).tokens == talk.tokens


@every_target
def test_prompts_with_images_survive_a_restart(
    open_engine: Callable[..., eaglecpp.Engine], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EAGLECPP_HOME", str(tmp_path / "home"))
    text = ""
    with open_engine() as engine:
        while (n := len(engine.tokenize(text))) < 560:
            text += f"print({n}) "
        messages, others = [ask(text, make_image(1))], [ask(text, make_image(2))]
        expected = [engine.chat(one, strategy="off", **GREEDY).tokens for one in (messages, others)]
    kept = {"prompt_cache": str(tmp_path / "prompts")}
    with open_engine(**kept) as engine:
        assert engine.chat(messages, **GREEDY).tokens == expected[0]
    for strategy in ("off", "chain:4"):
        copied = shutil.copytree(tmp_path / "prompts", tmp_path / strategy)
        with open_engine(prompt_cache=str(copied)) as engine:
            # In this process, another image has the ids that the first image had in the other process.
            engine.chat_prompt(others)
            again = engine.chat(messages, strategy=strategy, **GREEDY)
            assert again.tokens == expected[0] and again.timings.reused_n >= 512
            engine.clear()
            other = engine.chat(others, strategy=strategy, **GREEDY)
            assert other.tokens == expected[1] and other.timings.reused_n < 32


@every_target
def test_conversations_share_rows_of_images(open_engine: Callable[..., eaglecpp.Engine]) -> None:
    """Tests that conversations share rows of images, also while other conversations generate, and also rows
    from a swapped-out cache.
    """
    image = make_image(1)
    with open_engine(n_sequences=3) as engine:
        with engine.session() as alone:
            expected = [
                alone.chat([ask(text, image)], **GREEDY).tokens for text in ("What is len?", "Print?")
            ]
        with engine.session() as one, engine.session() as two:
            first = one.chat([ask("What is len?", image)], **GREEDY)
            second = two.chat([ask("Print?", image)], **GREEDY)
            assert [first.tokens, second.tokens] == expected
            assert engine.chains_only or second.timings.reused_n >= 16


def test_refusals(seeing: Seeing, open_engine: Callable[..., eaglecpp.Engine], tmp_path: Path) -> None:
    def of_side(n: int, seed: int = 1) -> bytes:
        image = make_image(seed)
        return image[:16] + n.to_bytes(4, "big") * 2 + image[24:]

    damaged, huge = make_image(1)[:200], of_side(1 << 20)
    with open_engine() as engine:
        other = make_image(1)[:8] + b"\0\0\0\4CgBI    0000" + make_image(1)[8:]
        filled = b"\xff\xd8" + b"\xff" * (1 << 20)
        for image, why in (
            (damaged, "damaged"), (huge, "pixels"), (b"<svg/>", "PNG"), (other, "PNG"), (filled, "PNG")
        ):  # fmt: skip
            with pytest.raises(errors.InvalidValueError, match=why):
                engine.chat([ask("What?", image)], **GREEDY)
        large = [of_side(6000, seed) for seed in (1, 2)]
        with pytest.raises(errors.InvalidValueError, match="the images of a prompt have 68 million pixels"):
            engine.chat([ask("What?", *large)], **GREEDY)
        assert engine.chat([ask("What is len?", make_image(1))], **GREEDY).text, "the process must continue"
        with pytest.raises(errors.InvalidValueError, match="unknown or was evicted"):
            engine.generate([1, -9999, 5], **GREEDY)
        prompt = engine.chat_prompt([ask("What is len?", make_image(1))])
        first = next(i for i, token in enumerate(prompt) if token < 0)
        with pytest.raises(errors.InvalidValueError, match="expected all"):
            engine.generate(prompt[: first + 2] + prompt[first + 3 :], **GREEDY)
    with (
        eaglecpp.Engine.open(TARGET, n_threads=1) as engine,
        pytest.raises(errors.UnsupportedError, match="without a projector"),
    ):
        engine.chat([ask("What?", make_image(1))])
    with pytest.raises(errors.ModelNotFoundError, match="projector"):
        open_engine(mmproj=str(tmp_path / "none.gguf"))
    bad = tmp_path / "bad.gguf"
    for data in (seeing.projector.read_bytes()[:5000], b"GGUF", TARGET.read_bytes()[:100_000]):
        bad.write_bytes(data)
        with pytest.raises(errors.GgufError, match=r"bad\.gguf"):
            open_engine(mmproj=str(bad))
    with pytest.raises(errors.MismatchError, match="is not a projector"):
        open_engine(mmproj=str(make_projector(tmp_path / "other.gguf", 64)))


@pytest.mark.parametrize("seeing", ["janus_pro"], indirect=True)
def test_images_are_encoded_with_every_core(open_engine: Callable[..., eaglecpp.Engine]) -> None:
    with open_engine(n_threads=0) as engine:
        assert engine.vocabulary.projector is not None
        assert engine.vocabulary.projector._start["n_threads"] == system_info()["n_cores"]


def test_a_file_that_ends_llama_cpp_does_not_end_the_engine(tmp_path: Path) -> None:
    """Tests a projector file for which an assertion of ggml fails, because the file's patch size does not
    divide the image. The engine must survive.
    """
    path = make_projector(tmp_path / "odd.gguf", N_EMBD, patch_size=5)
    with (
        pytest.raises((errors.MismatchError, errors.InvalidValueError)),
        eaglecpp.Engine.open(TARGET, n_threads=1, mmproj=str(path)) as engine,
    ):
        engine.chat([ask("What is len?", make_image(1))], **GREEDY)
    with eaglecpp.Engine.open(TARGET, n_threads=1) as engine:
        assert engine.generate("def", max_tokens=4).tokens


def own_reader() -> psutil.Process:
    (reader,) = (one for one in psutil.Process().children() if "projector_worker" in str(one.cmdline()))
    return reader


def test_ctrl_c_does_not_end_the_image_reader(open_engine: Callable[..., eaglecpp.Engine]) -> None:
    with open_engine() as engine:
        reader = own_reader()
        with (
            mock.patch("eaglecpp.engine.projector.receive", side_effect=KeyboardInterrupt),
            pytest.raises(KeyboardInterrupt),
        ):
            engine.chat([ask("What is len?", make_image(1))], **GREEDY)
        assert not reader.is_running()
        assert engine.chat([ask("And max?", make_image(2))], **GREEDY).tokens
        reader = own_reader()
        # A terminal sends the signal to its whole foreground group, including this process.
        reader.send_signal(signal.SIGINT)
        assert engine.chat([ask("And max?", make_image(3))], **GREEDY).tokens and own_reader() == reader


def test_an_evicted_image_is_read_again(open_engine: Callable[..., eaglecpp.Engine]) -> None:
    """Tests that an evicted image is read again. The engine keeps 256 MB of image rows, so the test evicts
    the image with fabricated rows of other images.
    """
    with open_engine() as engine:
        chat = eaglecpp.ChatSession(engine)
        chat.ask("What is len?", images=[make_image(1)], **GREEDY)
        before = engine.chat_prompt(chat.history)
        for number in range(280):
            engine.native.add_image(f"other {number}", np.zeros((800, N_EMBD), np.float32), False)
        assert not engine.native.has_image(min(before))
        result = chat.ask("And max?", **GREEDY)
        assert result.tokens and engine.native.has_image(min(before))


def test_names_of_old_images_are_dropped(open_engine: Callable[..., eaglecpp.Engine]) -> None:
    with open_engine() as engine:
        first = engine.native.image_id("old", 3)
        assert engine.native.image_name(first) == ("old", 3) and engine.native.image_name(first - 3) is None
        for number in range(4096):
            engine.native.image_id(f"{number}", 1)
        assert engine.native.image_name(first) is None and engine.native.image_id("0", 1) == first - 3


def test_the_readers_marker_in_a_text_is_text(open_engine: Callable[..., eaglecpp.Engine]) -> None:
    with open_engine() as engine:
        for text in ("<__media__>", "<__me<__media__>dia__>"):
            result = engine.chat([ask(f"What is {text}?", make_image(1))], **GREEDY)
            plain = engine.tokenize(text, add_bos=False)
            assert any(result.prompt_tokens[i : i + len(plain)][1:-1] == plain[1:-1] for i in range(99))


def test_answers_about_images_are_not_learnt_from(
    open_engine: Callable[..., eaglecpp.Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept: list[object] = []
    with open_engine() as engine:
        monkeypatch.setattr(engine.shared, "on_answer", lambda *answer: kept.append(answer))
        engine.chat([ask("What is len?", make_image(1))], strategy="chain:4", **GREEDY)
        assert not kept
        engine.chat([ask("What is len?")], strategy="chain:4", **GREEDY)
        assert len(kept) == 1


def test_thinking_about_an_image_ends_at_its_budget(open_engine: Callable[..., eaglecpp.Engine]) -> None:
    template = "{% for m in messages %}{{ m.content }}\n{% endfor %}<think>\n"
    with open_engine() as engine:
        options: dict[str, Any] = {
            "template": template,
            "think_budget": 3,
            "max_tokens": 30,
            "temperature": 0.0,
            "ignore_eos": True,
        }
        said = [
            engine.chat([ask("What is len?", make_image(i))], strategy=strategy, **options)
            for i in (1, 2)
            for strategy in ("off", "chain:4")
        ]
        assert said[0].tokens == said[1].tokens and said[2].tokens == said[3].tokens
        for one in said:
            assert one.message.thinking and one.message.content and one.timings.predicted_n == len(one.tokens)


def test_a_saved_chat_keeps_its_images(open_engine: Callable[..., eaglecpp.Engine], tmp_path: Path) -> None:
    with open_engine() as engine:
        chat = eaglecpp.ChatSession(engine)
        first = chat.ask("What is len?", images=[make_image(1)], **GREEDY)
        kept = Message.from_dict(ask("What is len?", make_image(1)))
        assert (chat.history[0].text, chat.history[0].images) == (kept.text, kept.images)
        chat.save(tmp_path / "chat.json")
        engine.clear()
        again = eaglecpp.ChatSession.load(engine, tmp_path / "chat.json")
        assert again.history == chat.history
        assert again.retry(**GREEDY).tokens == first.tokens


def test_a_waiting_image_does_not_stop_other_rounds(open_engine: Callable[..., eaglecpp.Engine]) -> None:
    """Tests that a waiting image does not stop other rounds. A long text before this image is read a few rows
    per round, as without the image.
    """
    image = make_image(1)
    text = list(range(40, 100))
    with open_engine(n_sequences=4, n_batch=64, strategy="chain:4") as engine:
        mark = image_mark(image)
        rows = engine.shared.vocabulary.tokenize_images(f"{mark} a", {mark: image}, add_bos=False)
        rows = rows[next(i for i, row in enumerate(rows) if row < 0) :]
        expected = engine.generate(rows, **GREEDY).tokens
        engine.clear()
        with engine.session() as a, engine.session() as b, engine.session() as c:
            answering = a.stream([1, 5, 6], **GREEDY | {"max_tokens": 200})
            next(answering)
            reading, seeing = b.stream(text, **GREEDY), c.stream(rows, **GREEDY)
            steps = [next_chunks([answering, reading, seeing]) for _ in range(4)]
            assert [step[1] is None for step in steps] == [True, True, True, False]
            assert all(step[2] is None for step in steps), "a prompt with images must wait for its turn"
            assert seeing.finish().tokens == expected


@pytest.mark.parametrize("seeing", ["qwen2vl"], indirect=True)
def test_rows_of_one_position_stay_together(open_engine: Callable[..., eaglecpp.Engine]) -> None:
    """Tests image rows that share one position. They must stay together if they are read in several batches,
    interrupted in the middle, swapped out, or put into a cache that trees have filled.
    """
    options = GREEDY | {"max_tokens": 90}
    with open_engine(n_ctx=256, n_batch=8) as engine, engine.session() as session:
        prompts = [
            engine.chat_prompt([ask("What is len?", make_image(1, width=64), make_image(n))]) for n in (2, 3)
        ]
        expected = []
        for prompt in prompts:
            session.clear()
            expected.append(session.generate(prompt, strategy="off", **options).tokens)
        assert session.generate(prompts[0], strategy="off", **options).tokens == expected[0]
        options["strategy"] = STRATEGIES[1]
        for n_steps in range(1, 9):
            session.clear()
            stream = session.stream(prompts[0], **options)
            for _ in range(n_steps):
                next_chunks([stream])
            stream.close()
            assert session.generate(prompts[0], **options).tokens == expected[0], n_steps
        parked = session.slot.offload()
        assert session.generate(prompts[1], **options).tokens == expected[1]
        assert parked is not None and session.slot.restore(parked)
        again = session.generate(prompts[0], **options)
        assert again.tokens == expected[0] and again.timings.prompt_n == 1


def test_unknown_row_numbering_is_refused(tmp_path: Path) -> None:
    projector = make_projector(tmp_path / "hunyuan.gguf", SECTIONS["qwen2vl"], "hunyuanvl")
    target = make_seeing(tmp_path, "qwen2vl").target
    with (
        eaglecpp.Engine.open(target, n_threads=1, mmproj=str(projector)) as engine,
        pytest.raises(
            errors.UnsupportedError, match=r"hunyuan\.gguf numbers image positions in an unsupported way"
        ),
    ):
        engine.chat([ask("What?", make_image(1))], **GREEDY)
