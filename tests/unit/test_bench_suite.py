# SPDX-License-Identifier: MIT
"""`eaglecpp bench --suite`: what counts as a suite, who is asked what, and the tables."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from eaglecpp import Engine
from eaglecpp.bench import suite_run
from eaglecpp.bench.server import ChatServer
from eaglecpp.bench.suite import Question, in_turns, read_suite
from eaglecpp.bench.suite_run import SERVER, run_suite
from eaglecpp.cli import main
from eaglecpp.errors import DataError, EagleError, ModelNotFoundError

if TYPE_CHECKING:
    from conftest import Models

MASKED = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"


def written(path: Path, *records: Any) -> str:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return str(path)


def test_the_layouts_that_are_published(tmp_path: Path) -> None:
    suite = read_suite(
        written(
            tmp_path / "all.jsonl",
            {"question_id": "a1", "category": "math", "sub_category": "x", "turns": ["1+1?", "And 2+2?"]},
            {"question_id": 81, "category": "writing", "turns": ["Write."], "reference": []},
            {"task_id": "HumanEval/0", "prompt": "def f():\n", "entry_point": "f", "test": "assert f()"},
            {
                "messages": [
                    {"role": "system", "content": "Be short."},
                    {"role": "user", "content": "Hello"},
                    {"role": "assistant", "content": "Hi"},
                    {"role": "user", "content": "Bye"},
                ],
                "category": "chat",
            },
            {"prompt": "just this"},
        )
    )
    assert suite.name == "all"
    assert suite.questions == (
        Question("math", ("1+1?", "And 2+2?"), id="a1"),
        Question("writing", ("Write.",), id="81"),
        Question(
            "HumanEval", ("Complete this Python function:\n\n```python\ndef f():\n```",), id="HumanEval/0"
        ),
        Question("chat", ("Hello", "Bye"), "Be short."),
        Question("all", ("just this",)),
    )


def test_parquet(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "test.parquet"
    rows = [
        {"question_id": "q", "category": "qa", "turns": ["Who?"]},
        {"question_id": "r", "category": "qa", "turns": [MASKED]},
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    suite = read_suite(str(path))
    assert (suite.questions, suite.n_masked) == ((Question("qa", ("Who?",), id="q"),), 1)
    path.write_bytes(b"PAR1" + bytes(40))
    with pytest.raises(DataError, match=r"test\.parquet: expected a Parquet file"):
        read_suite(str(path))


def test_questions_without_their_text_are_counted_not_asked(tmp_path: Path) -> None:
    masked = {"category": "a", "turns": [MASKED]}
    suite = read_suite(written(tmp_path / "s.jsonl", masked, {"category": "a", "turns": ["b"]}))
    assert (len(suite.questions), suite.n_masked) == (1, 1)
    with pytest.raises(DataError, match="1 questions without their text"):
        read_suite(written(tmp_path / "t.jsonl", masked))


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ([1], r"s\.jsonl:2: expected an object with"),
        ({"answer": "x"}, r"s\.jsonl:2: .*found the keys \['answer'\]"),
        ({"turns": []}, r"s\.jsonl:2: \"turns\": expected a list of texts"),
        ({"turns": [{"file": "/etc/passwd"}]}, r"s\.jsonl:2: \"turns\": expected a list of texts"),
        ({"messages": [{"role": "user"}]}, r"s\.jsonl:2: \"messages\": expected a list"),
        ({"messages": [{"role": "assistant", "content": "x"}]}, r'of the role "user": expected a list'),
    ],
)
def test_a_line_that_is_no_question_is_named(tmp_path: Path, record: Any, words: str) -> None:
    path = written(tmp_path / "s.jsonl", {"turns": ["fine"]}, record)
    with pytest.raises(DataError, match=words):
        read_suite(path)


def test_what_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="found nothing there"):
        read_suite(str(tmp_path / "missing.jsonl"))
    with pytest.raises(ModelNotFoundError, match="found a folder"):
        read_suite(str(tmp_path))


def test_categories_take_turns() -> None:
    asked = [Question(category, (str(i),)) for i, category in enumerate("aaabbc")]
    assert ["".join((q.category, *q.turns)) for q in in_turns(asked)] == ["a0", "b3", "c5", "a1", "b4", "a2"]
    assert [q.turns[0] for q in in_turns(asked, 1)] == ["0", "3", "5"]


# Asking


@pytest.fixture(scope="module")
def engine(models: Models) -> Iterator[Engine]:
    with Engine.open(models.target, draft=models.draft, n_ctx=256, n_threads=1) as opened:
        yield opened


QUESTIONS = [Question("a", ("ab cd",)), Question("b", ("x " * 400,)), Question("b", ("ef",))]


def test_everybody_is_asked_and_long_questions_are_counted(engine: Engine) -> None:
    result = run_suite(engine, QUESTIONS, ["off", "chain:2"], n_tokens=16, ignore_eos=True)
    assert (result.n_asked, result.n_long, result.complete) == (2, 1, True)
    assert result.categories == ["a", "b"]
    plain, chain = result.total("off"), result.total("chain:2")
    assert (plain.n_questions, plain.n_tokens) == (chain.n_questions, chain.n_tokens) == (2, 32)
    assert chain.acceptance_length == pytest.approx(1 + chain.n_accepted / chain.rounds)
    assert chain.n_accepted == sum(chain.hits)
    assert len(chain.ratios) == 2
    mean, low, high = chain.speed or (0.0, 0.0, 0.0)
    assert low <= mean <= high
    assert plain.speed == (1.0, 1.0, 1.0)
    json.dumps(result.as_dict())


@pytest.fixture(scope="module")
def shared_engine(models: Models) -> Iterator[Engine]:
    with Engine.open(models.target, draft=models.draft, n_ctx=256, n_threads=1, n_sequences=3) as opened:
        yield opened


def test_users_side_by_side_get_what_each_gets_alone(shared_engine: Engine) -> None:
    questions = [*QUESTIONS, Question("c", ("gh", "ij"))]
    alone = run_suite(shared_engine, questions, ["off", "chain:2"], n_tokens=16, ignore_eos=True)
    result = run_suite(shared_engine, questions, ["off", "chain:2"], n_tokens=16, ignore_eos=True, n_users=3)
    assert (result.n_asked, result.n_long, result.complete) == (3, 1, True)
    for key, cell in alone.cells.items():
        found = result.cells[key]
        assert (found.n_tokens, found.rounds, found.hits) == (cell.n_tokens, cell.rounds, cell.hits)
    assert result.together("chain:2") > result.together("none") == 0.0
    told = result.as_dict()
    assert (told["users"], set(told["tokens_per_second_together"])) == (3, {"off", "chain:2"})
    with pytest.raises(ValueError, match="4 need n_sequences=4, found 3"):
        run_suite(shared_engine, questions, ["off"], n_users=4)


def test_users_whose_questions_are_all_too_long_are_passed_over(
    shared_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Engine, "has_chat_template", False)
    questions = [QUESTIONS[1]] * 3 + [QUESTIONS[0]]
    result = run_suite(shared_engine, questions, ["off"], n_tokens=4, n_users=3)
    assert (result.n_asked, result.n_long, result.complete) == (1, 3, True)


def test_it_ends_in_time_and_with_ctrl_c(engine: Engine) -> None:
    late = run_suite(engine, QUESTIONS, ["off"], n_tokens=4, seconds=-1.0)
    assert (late.n_asked, late.complete) == (0, False)

    def tired(text: str) -> None:
        if text.startswith("question 3"):
            raise KeyboardInterrupt

    cut = run_suite(engine, QUESTIONS, ["off"], n_tokens=4, progress=tired)
    assert (cut.n_asked, cut.complete) == (1, False)
    with pytest.raises(ValueError, match="the first one must be 'off'"):
        run_suite(engine, QUESTIONS, ["auto", "off"])
    alone = run_suite(engine, QUESTIONS, ["chain:2"], n_tokens=4).total("chain:2")
    assert alone.rounds
    assert not alone.ratios


class Handler(BaseHTTPRequestHandler):
    """Two tokens a message; tells its timings as llama.cpp's server does when asked about "b"."""

    asked: list[dict[str, Any]]

    def do_GET(self) -> None:
        self._send(json.dumps({"data": [{"id": "somebody"}]}).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append(body)
        text = body["messages"][-1]["content"]
        if text == "fail":
            self.send_error(500, "out of order")
            return
        events: list[dict[str, Any]] = [
            {"choices": [{"delta": {"role": "assistant", "content": None}}]},
            {"choices": [{"delta": {"content": "one"}}]},
            {"choices": [{"delta": {"content": " two"}}]},
            {"choices": [], "usage": {"completion_tokens": 9}},
        ]
        if text == "ef":
            events[-1]["timings"] = {"predicted_n": 20, "predicted_ms": 50.0, "draft_n_accepted": 10}
        self._send(b"".join(b"data: %s\n\n" % json.dumps(e).encode() for e in events) + b"data: [DONE]\n\n")

    def _send(self, data: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    Handler.asked = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_server_is_asked_the_same(engine: Engine, address: str) -> None:
    server = ChatServer(address)
    questions = [Question("a", ("ab", "cd"), "Be kind."), QUESTIONS[2]]
    result = run_suite(engine, questions, ["off"], n_tokens=16, server=server, ignore_eos=True)
    assert result.strategies == ("off", SERVER)
    first, second, third = (body["messages"] for body in Handler.asked)
    assert first == [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "ab"}]
    assert second == [*first, {"role": "assistant", "content": "one two"}, {"role": "user", "content": "cd"}]
    assert third == [{"role": "user", "content": "ef"}]
    assert Handler.asked[0] | {"messages": []} == {
        "model": "somebody", "messages": [], "max_tokens": 16, "temperature": 0.0, "seed": 1,
        "stream": True, "stream_options": {"include_usage": True},
    }  # fmt: skip
    assert result.cells["a", SERVER].n_tokens == 18
    told = result.cells["b", SERVER]
    assert (told.n_tokens, told.ms, told.acceptance_length) == (20, 50.0, 2.0)
    assert result.over("off", SERVER).ratios[-1] == pytest.approx(1 / told.ratios[0])


@pytest.mark.parametrize("n", [2, 3, 4])
def test_nobody_always_follows_the_same_one(n: int) -> None:
    orders = [suite_run._order("abcd"[:n], number) for number in range(2 * n)]
    assert {order[0] for order in orders} == set("abcd"[:n])
    follows = {pair for order in orders for pair in pairwise(order)}
    assert all((b, a) in follows for a, b in follows)


def test_answers_end_at_the_limits_of_their_question(
    engine: Engine, shared_engine: Engine, address: str
) -> None:
    questions = [Question("a", ("ab", "cd"), n_tokens=(9, 3)), QUESTIONS[2]]
    server = ChatServer(address)
    result = run_suite(engine, questions, ["off", "chain:2"], n_tokens=16, server=server, ignore_eos=True)
    for strategy in ("off", "chain:2"):
        assert result.cells["a", strategy].n_tokens == 12
        assert result.cells["b", strategy].n_tokens == 16
    assert [body["max_tokens"] for body in Handler.asked] == [9, 3, 16]
    with pytest.raises(ValueError, match="one user at a time"):
        run_suite(shared_engine, questions, ["off"], n_users=2)


def test_a_server_that_fails_is_named(address: str) -> None:
    with pytest.raises(EagleError, match="chat/completions: HTTP 500"):
        ChatServer(address).chat([{"role": "user", "content": "fail"}], max_tokens=1, temperature=0, seed=1)
    with pytest.raises(EagleError, match="is an OpenAI-compatible server running there"):
        ChatServer("http://127.0.0.1:9")
    with pytest.raises(EagleError, match="expected http://HOST:PORT"):
        ChatServer("file:///etc/passwd")


# The command


def test_the_command(models: Models, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    suite = written(tmp_path / "s.jsonl", *({"category": c, "turns": [f"ab {c}"]} for c in "pqp"))
    command = ["bench", str(models.target), "--draft", str(models.draft), "--suite", suite, "-n", "12"]
    command += ["-t", "1", "-c", "256"]
    picture = tmp_path / "s.png"
    assert main([*command, "--png", str(picture)]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0].split() == ["category", "strategy", "questions", "tokens", "length", "by", "depth",
        "tokens/s", "speed", "95%"]  # fmt: skip
    assert [line.split()[0] for line in lines[1:]] == ["p", "chain:5", "auto", "q", "chain:5", "auto", "all",
        "chain:5", "auto"]  # fmt: skip
    assert f"wrote {picture}" in err
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main([*command, "--json", "--limit", "1", "--strategy", "chain:2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["asked"], found["strategies"], found["suite"]) == (2, ["off", "chain:2"], "s")
    assert main([*command, "--plan"]) == 2
    assert main([*command, "--users", "1,3", "--png", str(picture)]) == 0
    out = capsys.readouterr().out
    assert out.count("category") == 2 and "3 users\n" in out and "tokens/s of all together: plain" in out
    assert all((tmp_path / f"s-{n}.png").exists() for n in (1, 3))
    assert main([*command, "--users", "1,2", "--json", "--limit", "1"]) == 0
    found = json.loads(capsys.readouterr().out)["results"]
    assert [one["users"] for one in found] == [1, 2]
    assert main([*command, "--users", "0"]) == 2
    assert main([*command[:4], "--users", "2"]) == 2
    assert main([*command[:4], "--limit", "3"]) == 2
    assert main([*command[:5], str(tmp_path / "none.jsonl")]) == 1


@pytest.mark.parametrize(
    ("at", "asked"), [("question 2 ", [1]), ("questions 1 to 2:", [3]), ("question 3 (p): auto", [2])]
)
def test_ctrl_c_ends_all_runs_and_prints_what_there_is(
    at: str,
    asked: list[int],
    models: Models,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupting(text: str) -> None:
        if text.startswith(at):
            raise KeyboardInterrupt

    monkeypatch.setattr("eaglecpp.cli.bench.suite.show_progress", interrupting)
    suite = written(tmp_path / "s.jsonl", *({"category": "p", "turns": [f"ab {c}"]} for c in "abc"))
    command = ["bench", str(models.target), "--draft", str(models.draft), "--suite", suite, "-n", "12"]
    assert main([*command, "-t", "1", "-c", "256", "--users", "1,2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["results"]
    assert [one["asked"] for one in found] == asked
