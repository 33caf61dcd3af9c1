# SPDX-License-Identifier: MIT
"""The loop of a chat: asks for a line, runs it if it is a slash command, answers it if it is a message."""

from __future__ import annotations

from eaglecpp.cli.chat.chat import Chat
from eaglecpp.cli.chat.commands import run_command
from eaglecpp.cli.chat.input import as_command, read_block, unquoted
from eaglecpp.errors import EagleError

__all__ = ["run_chat", "take"]


def run_chat(chat: Chat) -> None:
    """Chats until Ctrl+D or `/bye`."""
    chat.greet()
    while True:
        try:
            if not take(chat, read_block(chat.ask)):
                break
        except EOFError:
            break
        except KeyboardInterrupt as interrupt:
            if not any(interrupt.args):
                chat.screen.say("Use Ctrl + d or /bye to exit.")
        except (EagleError, OSError, ValueError) as error:
            chat.screen.note(f"error: {error}")
    if chat.saved is not None and chat.saved.stamp is not None:
        how = f"eaglecpp run {chat.saved.model} --continue"
        chat.screen.note(f"saved; to continue this chat: {how}", verbatim=True)


def take(chat: Chat, text: str) -> bool:
    """Runs a command or answers a message; returns whether the chat continues."""
    command = as_command(text)
    if command is not None:
        return run_command(chat, *command)
    message = unquoted(text) if text.startswith('"""') else text.strip("\n")
    if message.strip():
        chat.submit(message)
    return True
