# SPDX-License-Identifier: MIT
"""Tests training data: which tokens of a chat have loss, plain texts, and errors for invalid files. Tests the
draft vocabulary: the chosen tokens, their order, and the maps.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eaglecpp.chat.message import Message
from eaglecpp.chat.template import ChatTemplate
from eaglecpp.engine.engine import Engine
from eaglecpp.errors import DataError
from eaglecpp.train.data import texts as data
from eaglecpp.train.data.chats import ChatEncoder, open_tokenizer
from eaglecpp.train.data.vocab import choose, count, special_tokens
from eaglecpp.train.samples import TrainText
from helpers.models import Models
from helpers.tiny import TargetSpec, target_weights, write_gguf
from helpers.tiny_tokenizer import tiny_tokenizer

TALK = (
    ("system", "be kind"),
    ("user", "who are you"),
    ("assistant", "one of the men"),
    ("user", "and now"),
    ("assistant", "\n how old"),
)


@pytest.fixture(scope="module")
def engine(models: Models) -> Iterator[Engine]:
    with open_tokenizer(models.target) as engine:
        yield engine


def messages(*turns: tuple[str, str]) -> list[Message]:
    return [Message(role, content) for role, content in turns]


def chat(*turns: tuple[str, str]) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def write_lines(path: Path, *values: Any) -> Path:
    path.write_text("".join(json.dumps(value) + "\n" for value in values), encoding="utf-8")
    return path


def texts_of_turns(engine: Engine, tokens: Sequence[int], turns: Sequence[int]) -> list[str]:
    """Returns the text of each assistant turn."""
    return [
        engine.detokenize([t for t, turn in zip(tokens, turns, strict=True) if turn == n], special=True)
        for n in range(1, max(turns) + 1)
    ]


def encoded(engine: Engine, template: str, *turns: tuple[str, str]) -> tuple[list[int], list[int]]:
    encoder = ChatEncoder(
        engine, ChatTemplate("jinja", template, "", bos_text="<|bos|>", eos_text="<|endoftext|>")
    )
    tokens, mask = encoder.encode(messages(*turns))
    return tokens.tolist(), mask.tolist()


# The tokens of a chat that count for the loss


def test_turns_are_the_assistants_text_and_its_end_token(tmp_path: Path, engine: Engine) -> None:
    read = data.load([write_lines(tmp_path / "a.jsonl", chat(*TALK))], engine, 512)
    (one,) = read.conversations
    assert texts_of_turns(engine, one.tokens.tolist(), one.turns.tolist()) == [
        "one of the men<|im_end|>",
        "\n how old<|im_end|>",
    ]
    whole = engine.detokenize(one.tokens.tolist(), special=True)
    assert whole.startswith("<|bos|><|im_start|>system\nbe kind<|im_end|>\n<|im_start|>user\nwho")
    assert whole.endswith("\n how old<|im_end|>")
    begin = int(np.flatnonzero(one.turns)[0])
    assert one.tokens[:begin].tolist() == engine.chat_prompt(messages(*TALK[:2]))
    assert (read.report.tokens, read.report.trained) == (len(one.tokens), np.count_nonzero(one.turns))


def test_sharegpt_is_the_same_conversation(tmp_path: Path, engine: Engine) -> None:
    names = {"system": "system", "user": "human", "assistant": "gpt"}
    shared = {"conversations": [{"from": names[role], "value": content} for role, content in TALK]}
    (tmp_path / "whole.json").write_text(json.dumps([shared, chat(*TALK)]), encoding="utf-8")
    read = data.load([tmp_path / "whole.json"], engine, 512)
    assert (len(read.conversations), read.report.dropped) == (1, {"duplicates": 1})


BEGIN, END = "<|im_start|>{{ m.role }}\n", "<|im_end|>\n{% endfor %}"
OPEN = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        # As in Qwen3's template, only the last answer gets an empty thought.
        (
            "{% for m in messages %}" + BEGIN + "{% if m.role == 'assistant' and loop.last %}<think></think>"
            "{% endif %}{{ m.content }}" + END + OPEN,
            ["one of the men<|im_end|>", "<think></think>\n how old<|im_end|>"],
        ),
        # As in DeepSeek-R1's template, the prompt ends in an opened thought. Finished turns have no thought.
        # The "\n" of the template and the "\n" of the answer are the same text but different tokens. The
        # tokens agree up to this point.
        (
            "{% for m in messages %}" + BEGIN + "{{ m.content }}<|im_end|>{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}",
            ["one of the men<|im_end|>", " how old<|im_end|>"],
        ),
        # Without an end token, a turn ends at the end that the template prints.
        (
            "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}"
            "{% if add_generation_prompt %}[assistant]{% endif %}",
            [" one of the men\n", " \n how old\n"],
        ),
        # This template hides the question. So the turns cannot be found, and they must not be guessed.
        ("{% for m in messages[-1:] %}{{ m.content }}" + END + OPEN, []),
    ],
    ids=["rewrites older answers", "opens a thought", "no end token", "hides the question"],
)
def test_the_turns_of_any_template(engine: Engine, template: str, expected: list[str]) -> None:
    found = texts_of_turns(engine, *encoded(engine, template, *TALK[1:]))
    if "<think>" in template and expected[1].startswith(" "):
        found[1] = found[1].lstrip("\n")
    assert found == expected


def test_a_template_with_the_date_gives_the_same_tokens_on_every_day(engine: Engine) -> None:
    template = (
        "{% set day = strftime_now('%d %b %Y') %}"
        "{% for m in messages %}<|im_start|>{{ m.role }} {{ day }}\n{{ m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant {{ day }}\n{% endif %}"
    )
    tokens, turns = encoded(engine, template, *TALK)
    assert "system 01 Jul 2025" in engine.detokenize(tokens, special=True)
    assert max(turns) == 2


def test_the_end_of_a_prompt_is_known(tmp_path: Path, engine: Engine) -> None:
    """Tests that the end of a prompt is known. Answers to one prompt must not be on both sides of the
    split.
    """
    said = [chat(*TALK[:2], ("assistant", words)) for words in ("one of the men", "nobody")]
    prompt = engine.chat_prompt(messages(*TALK[:2]))
    recorded = {"prompt_tokens": prompt, "answer_tokens": [8, 9, 7]}
    written = {"index": 0, "tokens": [*prompt, 9, 8, 7, 6], "turns": [[len(prompt), len(prompt) + 3]]}
    for name, lines in (("a", said), ("b", [recorded]), ("c", [written])):
        write_lines(tmp_path / f"{name}.jsonl", *lines)
    (tmp_path / "d.txt").write_text("the old man and the men", encoding="utf-8")
    read = data.load([tmp_path], engine, 512).conversations
    assert [one.n_prompt for one in read] == [len(prompt)] * 4 + [0]


def test_without_a_template_the_format_of_the_vocabulary_is_used(tmp_path: Path, base_model: Path) -> None:
    with open_tokenizer(base_model) as engine:  # the vocabulary of the base model has ChatML's tokens
        (one,) = data.load([write_lines(tmp_path / "a.jsonl", chat(*TALK))], engine, 512).conversations
        assert (
            texts_of_turns(engine, one.tokens.tolist(), one.turns.tolist())[0] == "one of the men<|im_end|>"
        )


def test_chats_for_a_base_model_are_refused(tmp_path: Path) -> None:
    spec, tokenizer = TargetSpec(n_layers=2, chat_template=False), tiny_tokenizer()
    tokenizer = replace(tokenizer, tokens=["<s>", "</s>", "<a>", "<b>", *tokenizer.tokens[4:]])
    write_gguf(tmp_path / "base.gguf", spec, tokenizer, target_weights(spec, tokenizer), "F32")
    path = write_lines(tmp_path / "a.jsonl", chat(*TALK))
    with open_tokenizer(tmp_path / "base.gguf") as engine:
        with pytest.raises(DataError, match=r"base\.gguf: expected a chat template"):
            data.load([path], engine, 512)
        (tmp_path / "a.txt").write_text("the old man", encoding="utf-8")
        assert len(data.load([tmp_path / "a.txt"], engine, 512).conversations) == 1


# Cutting conversations and leaving conversations out


def test_a_long_chat_is_cut_and_counted(tmp_path: Path, engine: Engine) -> None:
    path = write_lines(tmp_path / "a.jsonl", chat(("user", "hi"), ("assistant", "the man " * 60)))
    read = data.load([path], engine, 64)
    assert [len(one.tokens) for one in read.conversations] == [64]
    assert read.report.cut == 1
    assert any("cut" in line for line in read.report.lines())


def test_a_chat_whose_answer_is_beyond_the_context_is_left_out(tmp_path: Path, engine: Engine) -> None:
    lines = [chat(("user", "the man " * 60), ("assistant", "no")), chat(*TALK)]
    read = data.load([write_lines(tmp_path / "a.jsonl", *lines)], engine, 96)
    assert len(read.conversations) == 1
    assert read.report.dropped == {"fewer than two tokens to learn within the context": 1}


def test_text_is_split_into_pieces_without_loss(tmp_path: Path, engine: Engine) -> None:
    text = "".join(f"line {n} of the old man <|im_end|>\n" for n in range(60))
    (tmp_path / "story.txt").write_text(text, encoding="utf-8")
    read = data.load([tmp_path / "story.txt"], engine, 100)
    assert [len(one.tokens) for one in read.conversations[:-1]] == [100] * (len(read.conversations) - 1)
    assert all(one.tokens[0] == engine.native.bos and one.turns[0] == 0 for one in read.conversations)
    assert all((one.turns[1:] == 1).all() for one in read.conversations)
    joined = [token for one in read.conversations for token in one.tokens[1:].tolist()]
    assert joined == engine.tokenize(text, add_bos=False, special=False)
    assert not set(joined) & {0, 1, 2, 3}, "control tokens written in a text must stay text"


def test_a_folder_gives_its_text_files_and_reports_the_others(tmp_path: Path, engine: Engine) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / "a.py").write_text("def the(): pass", encoding="utf-8")
    (tmp_path / "sub" / "b.md").write_text("# how and who", encoding="utf-8")
    (tmp_path / ".git" / "c.txt").write_text("hidden words", encoding="utf-8")
    (tmp_path / "d.bin").write_bytes(b"\0\1\2")
    (tmp_path / "e.txt").write_bytes(b"caf\xe9 au lait")
    report = data.load([tmp_path], engine, 100).report
    assert (report.files, report.conversations) == (2, 2)
    assert report.skipped == {"other file types": 1, "not UTF-8 text": 1}


# Files that are refused


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{not json", "expected JSON, found '{not json'"),
        ('"words"', 'expected an object with "messages"'),
        ('{"question": "x"}', "found the keys ['question']"),
        ('{"text": 5}', '"text": expected a string, found 5'),
        ('{"messages": []}', '"messages": expected a list of messages, found []'),
        ('{"messages": [{"content": "x"}]}', '"messages"[0]: expected {"role", "content"}'),
        ('{"messages": [{"role": "user", "content": 3}]}', "content must be text, found int"),
        ('{"conversations": [{"from": "nobody", "value": "x"}]}', "found 'nobody'"),
        ('{"conversations": [{"from": "human", "value": null}]}', '"value": expected text, found None'),
        ('{"prompt_tokens": [1], "answer_tokens": ["a"]}', '"answer_tokens": expected a list of token ids'),
        ('{"prompt_tokens": [1], "answer_tokens": [1, 99999]}', "found 99999"),
    ],
)
def test_a_bad_line_is_named_with_the_reason(tmp_path: Path, engine: Engine, line: str, says: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(chat(*TALK)) + "\n\n" + line + "\n", encoding="utf-8")
    with pytest.raises(DataError) as error:
        data.load([path], engine, 512)
    assert str(error.value).startswith(f"{path}:3")
    assert says in str(error.value)


def test_a_binary_file_that_is_named_is_refused(tmp_path: Path, engine: Engine) -> None:
    (tmp_path / "a.txt").write_bytes(b"words \xff")
    with pytest.raises(DataError, match="byte 0xff at offset 6"):
        data.load([tmp_path / "a.txt"], engine, 100)


def test_prompts_without_answers_point_to_generate(tmp_path: Path, engine: Engine) -> None:
    path = write_lines(tmp_path / "a.jsonl", {"prompt": "how"}, {"prompt": "who"})
    with pytest.raises(DataError, match="2 x a prompt without an answer"):
        data.load([path], engine, 100)


# The held-out part of the data


def some_conversations(n: int) -> list[TrainText]:
    return [TrainText(np.array([0, n, n + 1, 7], np.int32), np.ones(4, np.int16)) for n in range(n)]


@pytest.mark.parametrize(
    ("n", "share", "expected"),
    [(1000, 0.02, 20), (100, 0.02, 4), (6, 0.02, 3), (1, 0.02, 0), (50_000, 0.02, 200), (100, 0.0, 0)],
)
def test_the_held_out_part_has_the_requested_size(n: int, share: float, expected: int) -> None:
    train, held_out = data.split(some_conversations(n), share)
    assert (len(train), len(held_out)) == (n - expected, expected)


def test_the_held_out_part_does_not_depend_on_order(rng: np.random.Generator) -> None:
    conversations = some_conversations(300)
    shuffled = [conversations[i] for i in rng.permutation(300)]
    parts = [data.split(order)[1] for order in (conversations, shuffled)]
    first, second = ([data.token_hash(one.tokens) for one in part] for part in parts)
    assert first == second == sorted(first)  # the first conversations must be a sample of every file
    assert len(first) == 6


def answers(prompts: list[list[int]], n_each: int) -> list[TrainText]:
    """Returns `n_each` answers to each prompt as conversations."""
    said = [[*prompt, 90 + n, 7] for prompt in prompts for n in range(n_each)]
    turns = [[0] * len(prompt) + [1, 1] for prompt in prompts for _ in range(n_each)]
    return [
        TrainText(np.array(a, np.int32), np.array(b, np.int16), b.count(0))
        for a, b in zip(said, turns, strict=True)
    ]


def test_answers_to_one_prompt_are_all_held_out_or_none() -> None:
    prompts = [[1, 2, 3, 4, 5, 6, 7, 10 + n] for n in range(50)]
    follow_ups = [[*prompt, 90, 7, 5, 8] for prompt in prompts]
    train, held_out = data.split([*answers(prompts, 3), *answers(follow_ups, 1)], 0.1)
    assert len(train) + len(held_out) == 200
    assert len(held_out) == 20
    sides = [{int(one.tokens[7]) for one in part} for part in (train, held_out)]
    assert not sides[0] & sides[1]


@pytest.mark.parametrize("n_prompt", [4, 12])
def test_texts_that_begin_alike_can_still_be_held_out(n_prompt: int) -> None:
    """Tests that texts with a common beginning can be held out, if the beginning is too short to be a prompt,
    or if all texts have the same prompt.
    """
    train, held_out = data.split(answers([list(range(n_prompt))], 100), 0.1)
    assert (len(train), len(held_out)) == (90, 10)


def test_a_wrong_share_is_refused() -> None:
    with pytest.raises(ValueError, match=r"expected 0 to 0\.5, found 2"):
        data.split([], 2)


# The draft vocabulary


def counts_of(*counts: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(counts, np.int64)


def test_the_most_frequent_are_kept_and_the_lower_of_equal_ones() -> None:
    assert choose(counts_of(5, 1, 9, 1, 5, 5), 4).ids.tolist() == [0, 2, 4, 5]
    assert choose(counts_of(5, 1, 9, 1, 5, 5), 2).ids.tolist() == [0, 2]
    assert choose(counts_of(5, 1, 9, 1, 5, 5), 5).ids.tolist() == [0, 1, 2, 4, 5]


def test_special_tokens_stay_with_any_count() -> None:
    assert choose(counts_of(0, 7, 8, 9, 0), 3, keep=[4, 0]).ids.tolist() == [0, 3, 4]


def test_the_maps_agree_with_the_ids(rng: np.random.Generator) -> None:
    vocab = choose(rng.integers(0, 50, 400), 90, keep=[399, 17])
    assert (np.diff(vocab.ids) > 0).all()
    assert (np.arange(90) + vocab.d2t == vocab.ids).all()
    assert vocab.d2t.dtype == np.int64
    assert np.flatnonzero(vocab.t2d).tolist() == vocab.ids.tolist()
    assert (vocab.draft_ids[vocab.ids] == np.arange(90)).all()
    assert (vocab.draft_ids >= 0).sum() == 90


def test_a_size_of_the_whole_vocabulary_is_the_identity() -> None:
    vocab = choose(counts_of(1, 0, 3), 10)
    assert vocab.ids.tolist() == [0, 1, 2]
    assert vocab.d2t.tolist() == [0, 0, 0]
    assert vocab.t2d.all()


@pytest.mark.parametrize(("size", "keep", "says"), [(2, [0, 1, 2], "at least 3"), (0, [], "at least 1")])
def test_impossible_sizes_are_refused(size: int, keep: list[int], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        choose(counts_of(1, 1, 1, 1), size, keep)


def test_only_learnt_tokens_are_counted() -> None:
    one = TrainText(np.array([0, 3, 3, 2, 3], np.int32), np.array([0, 0, 1, 1, 2], np.int16))
    assert count([one, one], 5).tolist() == [0, 0, 2, 4, 0]


def test_special_tokens_are_the_control_and_end_tokens(models: Models) -> None:
    with open_tokenizer(models.target) as engine:
        assert special_tokens(engine) == [0, 1, 2, 3]
