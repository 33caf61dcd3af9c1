# SPDX-License-Identifier: MIT
"""The slash commands of the chat: a table, and what each of them does.

Names, sub-commands and answers are Ollama's where Ollama has the command (ollama/ollama: cmd/interactive.go);
`/regen`, `/edit`, `/read`, `/chats` and `/strategy` are ours. `/set` and `/show` have
modules of their own. A function takes the chat and the text after the name; False ends the chat.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from eaglecpp.chat.images import checked_image, is_image_name
from eaglecpp.cli.chat.chat import Chat
from eaglecpp.cli.chat.input import PROMPT, as_command, read_block, unquoted
from eaglecpp.cli.chat.set import SETTINGS
from eaglecpp.cli.chat.show import FACTS, chat_modelfile
from eaglecpp.cli.chat.words import Word, explained, run_word
from eaglecpp.cli.open_engine import look_up
from eaglecpp.cli.table import table
from eaglecpp.conversations.saved import ChatFolder
from eaglecpp.data_dir import data_dir, expanded
from eaglecpp.errors import EagleError, ModelNotFoundError
from eaglecpp.files import open_regular
from eaglecpp.modelfile import ModelName, ModelNameError
from eaglecpp.options import Strategy

if TYPE_CHECKING:
    from eaglecpp.store import Stores


def run_chat(chat: Chat) -> None:
    """Chats until Ctrl+D or `/bye`."""
    chat.greet()
    while True:
        try:
            if not _take(chat, read_block(chat.ask)):
                break
        except EOFError:
            break
        except KeyboardInterrupt as interrupt:
            if not any(interrupt.args):
                chat.screen.say("Use Ctrl + d or /bye to exit.")
        except (EagleError, OSError, ValueError) as error:
            chat.screen.note(f"error: {error}")
    if (saved := chat.session.saved) is not None and saved.stamp is not None:
        how = f"eaglecpp run {saved.model} --continue"
        chat.screen.note(f"saved; to continue this chat: {how}", verbatim=True)


def _take(chat: Chat, text: str) -> bool:
    """Runs a command or answers a message; returns whether the chat goes on."""
    typed = as_command(text)
    if typed is None:
        message = unquoted(text) if text.startswith('"""') else text.strip("\n")
        if message.strip():
            chat.reply(partial(chat.session.stream, message))
        return True
    return run_word("", COMMANDS, chat, " ".join(typed))


def _bye(chat: Chat, rest: str) -> bool:
    return False


def _clear(chat: Chat, rest: str) -> None:
    chat.start_over(chat.conversation.system)
    chat.screen.say("Cleared session context")


def _help(chat: Chat, rest: str) -> None:
    topic = rest.removeprefix("/")
    if topic in ("set", "show"):
        chat.screen.say(explained(SETTINGS if topic == "set" else FACTS, f"/{topic} "))
    else:
        if topic:
            chat.screen.say(f"There is no help for '{rest}'. Topics: set, show")
        chat.screen.say(f"{explained(COMMANDS)}\n{_BLOCKS}")


_BLOCKS = 'Use """ to begin and end a message of several lines. A pasted block is always one message.\n'


def _load(chat: Chat, rest: str) -> None:
    names = rest.split()
    if not 1 <= len(names) <= 2:
        chat.screen.say("Usage:\n  /load <modelname>")
        return
    try:
        source = look_up(*names)
    except ModelNotFoundError as error:
        if len(names) > 1:  # it may be the drafter that is missing
            raise
        chat.screen.say(f"Couldn't find model '{names[0]}'")
        chat.screen.note(str(error))
        return
    chat.screen.say(f"Loading model '{names[0]}'")
    before, was_open = chat.model, chat.model.is_open
    before.close()  # two models may not fit into memory at once
    try:
        chat.model = before.other(source)
    except BaseException:
        if was_open:
            before.renew()
        raise
    chat.start_over()
    chat.say_notices()


def _save(chat: Chat, rest: str) -> None:
    from eaglecpp.store import Stores
    from eaglecpp.store.create import create_model

    names = rest.split()
    if len(names) != 1:
        chat.screen.say("Usage:\n  /save <modelname>")
        return
    try:
        name = ModelName.parse(names[0])
    except ModelNameError:
        chat.screen.say(f"error: The model name '{names[0]}' is invalid")
        return
    stores = Stores.open()
    if name not in chat.made and not _may_take(chat, stores, name):
        chat.screen.say("Nothing was saved.")
        return
    create_model(stores, name, chat_modelfile(chat, to_save=True), Path.cwd())
    chat.made.add(name)
    chat.screen.say(f"Created new model '{names[0]}'")
    if n_pictures := sum(len(message.images) for message in chat.conversation.messages):
        chat.screen.note(f"note: a model keeps no pictures; {n_pictures} of this chat are not in it")


def _may_take(chat: Chat, stores: Stores, name: ModelName) -> bool:
    """Whether a name is free, or the user gives it to this chat although a model has it."""
    from eaglecpp.store.packaged import find_packaged

    found = stores.find(name)
    if found is None and find_packaged(name) is None:
        return True
    what = "replaced by this chat" if found is not None and found.own else "hidden behind this chat"
    question = f"There is a model {str(name).removesuffix(':latest')}, which would be {what}. Go on? (y/N) "
    return chat.ask(question, "").strip().lower() in ("y", "yes")


def _list(chat: Chat, rest: str) -> None:
    from eaglecpp.cli.list import list_models

    list_models.main(args=["--", rest], standalone_mode=False)


def _chats(chat: Chat, rest: str) -> None:
    rows = []
    for one in islice(ChatFolder(data_dir() / "chats").chats(rest), 20):
        first = next((m.typed for m in one.messages if m.role == "user"), "")
        rows.append((one.id, one.model, " ".join(first.split())[:60]))
    chat.screen.say(
        table(("ID", "MODEL", "BEGINS WITH"), rows) + "To go on with one: eaglecpp run --continue ID"
    )


def _regen(chat: Chat, rest: str) -> None:
    if chat.model.sampling.temperature == 0:
        chat.screen.note("note: the temperature is 0, so the answer will be the same")
    chat.reply(chat.session.stream_again, again=True)


def _edit(chat: Chat, rest: str) -> None:
    question = next((m for m in reversed(chat.conversation.messages) if m.role == "user"), None)
    if question is None:
        raise ValueError("there is no question to edit")
    text = unquoted(rest) if rest else chat.ask(PROMPT, question.typed).strip("\n")
    text = unquoted(text) if text.startswith('"""') else text
    if text.strip():
        chat.reply(partial(chat.session.edit, text))


def _read(chat: Chat, rest: str) -> None:
    name = unquoted(rest).strip("'")
    if not name:
        raise ValueError("/read needs a file name")
    path = expanded(name)
    if is_image_name(path.name):
        if not chat.model.plan.model_options().mmproj:
            raise ValueError(f"{path}: this model was opened without a projector (--mmproj)")
        chat.images.append(checked_image(_content(path)))
        chat.screen.say(f"Read {path}. It will go with your next message.")
        return
    try:
        text = _content(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not a text file in UTF-8 ({error.reason} at byte {error.start})") from None
    n_tokens, n_ctx = len(chat.model.engine.tokenize(text, add_bos=False)), chat.model.engine.n_ctx
    if n_tokens >= n_ctx:
        raise ValueError(
            f"{path}: {n_tokens} tokens do not fit into the context of {n_ctx}; use /set parameter num_ctx"
        )
    chat.attached.append(f"{path.name}:\n\n{text}")
    chat.screen.say(
        f"Read {path}: {len(text.splitlines())} lines, {n_tokens} tokens. "
        "It will be put before your next message."
    )


def _content(path: Path) -> bytes:
    with open_regular(path) as file:
        return file.read()


def _strategy(chat: Chat, rest: str) -> None:
    if rest:
        if chat.model.set_strategy(Strategy.parse(rest)):
            chat.screen.note("the model was reloaded for this")
        chat.say_notices()
    chat.screen.say(f"Strategy: {_strategy_text(chat)}")


def _strategy_text(chat: Chat) -> str:
    if not chat.model.is_open:  # the server says what it made of it with each answer
        return str(chat.model.strategy)
    resolved, why = chat.model.engine.resolve(chat.model.strategy)
    return f"{resolved} ({why})"


_BYE = Word(_bye, "Leave")
_HELP = Word(_help, "Show this help, or help on: set, show", "[topic]", ("set", "show"))
COMMANDS = {
    "/set": Word(
        partial(run_word, "/set ", SETTINGS),
        "Change how the model answers and what is shown",
        "...",
        tuple(SETTINGS),
    ),
    "/show": Word(partial(run_word, "/show ", FACTS), "Show facts about the model", "...", tuple(FACTS)),
    "/load": Word(_load, "Switch to another model (starts a new chat)", "<model>", ("model",)),
    "/save": Word(_save, "Save this chat as a stored model", "<model>"),
    "/list": Word(_list, "List the models on this machine", "[prefix]"),
    "/chats": Word(_chats, "List the last saved chats, or those with a text in them", "[text]"),
    "/clear": Word(_clear, "Start a new chat; the system prompt stays"),
    "/regen": Word(_regen, "Answer the last question again"),
    "/edit": Word(_edit, "Change the last question and ask it again", "[text]"),
    "/read": Word(_read, "Put a text file before your next message", "<file>", ("path",)),
    "/strategy": Word(
        _strategy,
        "Show or set how to draft",
        "[auto|off|chain:4|...]",
        ("auto", "off", "chain:4", "tree:k=4,depth=5,nodes=16"),
    ),
    "/bye": _BYE,
    "/exit": _BYE,
    "/?": _HELP,
    "/help": _HELP,
}
