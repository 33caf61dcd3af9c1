# SPDX-License-Identifier: MIT
"""Tests that importing eaglecpp, or asking the command for help, loads no large libraries. Native log lines
arrive in `logging`, and nothing is printed without a handler.
"""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import eaglecpp
from eaglecpp import Engine, errors
from helpers.models import Models
from helpers.script import run_script

HEAVY = ("numpy", "llama_cpp", "llguidance", "gguf", "torch", "jinja2", "huggingface_hub", "eaglecpp._core")


def modules_after(code: str) -> set[str]:
    """Returns the modules that a new interpreter has imported after `code`."""
    script = f"import contextlib, io, sys\nwith contextlib.redirect_stdout(io.StringIO()):\n{code}\n"
    script += "print('\\n'.join(sys.modules))"
    return set(run_script(script).stdout.split())


@pytest.mark.parametrize(
    "code",
    [
        " import eaglecpp",
        " import eaglecpp.options, eaglecpp.results, eaglecpp.errors, eaglecpp.opening.find",
        " import eaglecpp.engine.grammar",
        " from eaglecpp.cli import main; main(['--help'])",
        " from eaglecpp.cli import main; main(['generate', '--help'])",
        " from eaglecpp.cli import main; main(['run', '--help'])",
        " from eaglecpp.cli import main; main(['doctor', '--help'])",
    ],
)
def test_nothing_heavy_is_imported(code: str) -> None:
    loaded = modules_after(code)
    assert "eaglecpp" in loaded
    assert loaded.isdisjoint(HEAVY)


def test_every_public_name_exists_and_errors_have_the_names_that_users_import() -> None:
    assert {"Engine", "pull", "__version__"} <= set(dir(eaglecpp))
    assert not {"Any", "TYPE_CHECKING", "annotations", "importlib", "human"} & set(dir(eaglecpp))
    assert all(getattr(eaglecpp, name) is not None or name.startswith("__") for name in dir(eaglecpp))
    with pytest.raises(AttributeError, match="no attribute 'Motor'"):
        _ = eaglecpp.Motor
    assert {one.__module__ for one in vars(errors).values() if isinstance(one, type)} == {"eaglecpp.errors"}


# Logs


def test_loading_a_model_logs_to_the_native_logger(models: Models, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "eaglecpp.native"):
        Engine.open(models.target).close()
    assert any(record.name == "eaglecpp.native" for record in caplog.records)
    assert all(record.message == record.message.rstrip("\n") for record in caplog.records)


def test_the_library_prints_nothing(models: Models, tmp_path: Path) -> None:
    code = (
        "import eaglecpp, logging, sys\n"
        "with eaglecpp.Engine.open(sys.argv[1], sys.argv[2], n_ctx=128) as engine:\n"
        "    engine.generate('ab', max_tokens=4)\n"
        "logging.getLogger('eaglecpp.native').error('unheard')\n"
        "try:\n    eaglecpp.Engine.open(sys.argv[3])\nexcept eaglecpp.EagleError:\n    pass\n"
    )
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF\x03\x00\x00\x00")
    done = run_script(code, models.target, models.draft, broken)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
