# SPDX-License-Identifier: MIT
"""Where eaglecpp keeps its user's data: models, conversations, the input history, what the planner
learned.

`EAGLECPP_HOME`, or the platform's folder for application data, which platformdirs knows. Creates nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

from eaglecpp.errors import InvalidValueError


def expanded(text: str) -> Path:
    """The path that a user's text names, with `~` and `~user` filled in. Raises InvalidValueError for a home
    that nobody has.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError:
        user = text.replace(os.sep, "/").partition("/")[0][1:]
        missing = f"there is no user '{user}' on this machine" if user else "HOME is not set"
        raise InvalidValueError(f"{text}: {missing}; give the path of a folder") from None


def folder_named(variable: str) -> Path | None:
    """The folder that a variable of the environment names, None where it is not set. Raises
    InvalidValueError.
    """
    text = os.environ.get(variable)
    try:
        return expanded(text) if text else None
    except InvalidValueError as error:
        raise InvalidValueError(f"{variable}={error}") from None


def data_dir() -> Path:
    """The folder, whether it exists or not. Raises InvalidValueError where nothing tells it."""
    override = folder_named("EAGLECPP_HOME")
    if override is not None:
        return override
    from platformdirs import user_data_path

    try:
        usual = user_data_path("eaglecpp", appauthor=False)
        if not usual.is_absolute():  # of an earlier platformdirs: ~ is not filled in
            raise RuntimeError
    except RuntimeError:
        raise InvalidValueError("this user has no home folder; set EAGLECPP_HOME to a folder") from None
    return usual
