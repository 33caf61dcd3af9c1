# SPDX-License-Identifier: MIT
"""The folder for the user's data: models, conversations, the input history and the planner's measurements.

The folder is `EAGLECPP_HOME`, or platformdirs' folder for application data. This module never creates the
folder.
"""

from __future__ import annotations

import os
from pathlib import Path

from eaglecpp.errors import InvalidValueError


def expanded(text: str) -> Path:
    """Returns the path for a user's text, with `~` and `~user` expanded. Raises InvalidValueError for an
    unknown user.
    """
    try:
        return Path(text).expanduser()
    except RuntimeError:
        user = text.replace(os.sep, "/").partition("/")[0][1:]
        missing = f"there is no user '{user}' on this machine" if user else "HOME is not set"
        raise InvalidValueError(f"{text}: {missing}; give the path of a folder") from None


def folder_named(variable: str) -> Path | None:
    """Returns the folder that an environment variable names; None if the variable is unset. Raises
    InvalidValueError.
    """
    text = os.environ.get(variable)
    try:
        return expanded(text) if text else None
    except InvalidValueError as error:
        raise InvalidValueError(f"{variable}={error}") from None


def data_dir() -> Path:
    """Returns the folder for the user's data. The folder may not exist yet. Raises InvalidValueError if the
    user has no home folder.
    """
    override = folder_named("EAGLECPP_HOME")
    if override is not None:
        return override
    from platformdirs import user_data_path

    try:
        usual = user_data_path("eaglecpp", appauthor=False)
        if not usual.is_absolute():  # older versions of platformdirs do not expand ~
            raise RuntimeError
    except RuntimeError:
        raise InvalidValueError("this user has no home folder; set EAGLECPP_HOME to a folder") from None
    return usual
