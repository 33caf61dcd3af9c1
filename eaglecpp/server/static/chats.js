// SPDX-License-Identifier: MIT
// The conversations, which the browser keeps: the list of them, search, names, deleting, export and import.
import { $, button, complain, load, make, save, say } from "./dom.js";
import { asMessage } from "./files.js";

export const kept = { chats: load("chats", []), current: load("current", null) };
export const chat = () => kept.chats.find((one) => one.id === kept.current);
let show = null;  // draws the current conversation, after the list
let leave = null;  // ends what belongs to the one that is shown
let isBusy = null;  // whether the one that is shown is being answered or edited

export function saveChats() {
  save("chats", kept.chats);
  save("current", kept.current);
}

// show, leave, isBusy: see above
export function useChats(callbacks) {
  ({ show, leave, isBusy } = callbacks);
  $("search").oninput = drawChats;
  $("new").onclick = newChat;
  $("export").onclick = () => download("conversations.json", toJson(kept.chats.filter((one) => one.turns.length)));
  $("import").onclick = () => $("import-file").click();
  $("import-file").onchange = importFile;
  window.addEventListener("storage", ({ key }) => {  // another window of this page has saved its conversations
    if (key !== "eaglecpp.chats") return;
    const theirs = load("chats", []), own = chat();
    if (!isBusy()) {
      kept.chats = theirs;
      show();
    } else {
      kept.chats = [own, ...theirs.filter((one) => one.id !== own.id)];
      drawChats();
    }
  });
}

export function newChat() {
  leave();
  const empty = kept.chats.find((one) => !one.turns.length);
  if (!empty) kept.chats.unshift({ id: newId(), title: "New conversation", turns: [] });
  open(empty ?? kept.chats[0]);
  $("question").focus();
}

// There is no randomUUID where the page comes over plain HTTP from another machine.
const newId = () => crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`;

function open(one) {
  kept.current = one?.id ?? null;
  saveChats();
  show();
}

export function drawChats() {
  const wanted = $("search").value.trim().toLowerCase();
  const found = kept.chats.filter((one) => !wanted || texts(one).some((text) => text.toLowerCase().includes(wanted)));
  $("chats").replaceChildren(...found.map((one) => make("li", {}, ...drawEntry(one))));
  $("none").hidden = found.length > 0;
}

const texts = (one) => [one.title, ...one.turns.flatMap((turn) => turn.content ?? turn.answers.map((answer) => answer.content))];

function drawEntry(one) {
  const title = button(one.title, () => { leave(); open(one); }, { title: one.title });
  if (one.id === kept.current) title.setAttribute("aria-current", "true");
  if (one.id !== kept.current || !one.turns.length) return [title];
  return [title, make("div", { className: "tools", role: "group", ariaLabel: "This conversation" },
    button("Rename", () => rename(one, title)), button("Markdown", () => download(fileName(one, "md"), toMarkdown(one)), { ariaLabel: "Export as Markdown", title: "Export as Markdown" }),
    button("JSON", () => download(fileName(one, "json"), toJson([one])), { ariaLabel: "Export as JSON", title: "Export as JSON, which can be imported" }), button("Delete", () => remove(one), { ariaLabel: "Delete this conversation" }))];
}

function rename(one, title) {
  const field = make("input", { value: one.title, maxLength: 200, ariaLabel: "Name of the conversation" });
  const end = (isKept) => {
    field.onblur = null;  // drawing takes the focus
    if (isKept && field.value.trim()) one.title = field.value.trim();
    saveChats();
    drawChats();
    $("chats").querySelector("[aria-current]")?.focus();
  };
  field.onblur = () => end(true);
  field.onkeydown = (event) => {
    if (!["Enter", "Escape"].includes(event.key)) return;
    event.preventDefault();
    event.stopPropagation();
    end(event.key === "Enter");
  };
  title.replaceWith(field);
  field.select();
}

function remove(gone) {
  leave();
  const index = kept.chats.indexOf(gone);
  kept.chats = kept.chats.filter((one) => one !== gone);
  open(kept.chats[0]);
  $("question").focus();
  if (gone.turns.length) say("The conversation was deleted.", button("Undo", () => {
    kept.chats = kept.chats.filter((one) => one.turns.length);
    kept.chats.splice(index, 0, gone);
    open(gone);
    say("The conversation is back.");
  }));
}

// Export and import

const fileName = (one, ending) => `${one.title.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 60) || "conversation"}.${ending}`;

const toJson = (chats) => JSON.stringify({ eaglecpp: 1, conversations: chats }, null, 1);

function toMarkdown(one) {
  const parts = one.turns.map((turn) => turn.role === "user" ? `## You\n\n${asMessage(turn).content}` : `## Answer\n\n${turn.answers[0].content}`);
  return `# ${one.title}\n\n${parts.join("\n\n")}\n`;
}

function download(name, text) {
  const link = make("a", { href: URL.createObjectURL(new Blob([text])), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

async function importFile() {
  const [file] = $("import-file").files;
  $("import-file").value = "";
  if (!file) return;
  try {
    const { conversations } = JSON.parse(await file.text());
    if (!Array.isArray(conversations)) throw new Error("it has no list of conversations");
    const read = conversations.map((one) => ({ id: newId(), title: asText(one.title).slice(0, 200), turns: asTurns(one.turns) }));
    if (!read.length) throw new Error("its list of conversations is empty");
    leave();
    kept.chats.unshift(...read);
    open(read[0]);
    say(`${read.length} imported.`);
  } catch (error) {
    complain(`${file.name} is no export of this page: ${error.message}`);
  }
}

function asText(value) {
  if (typeof value !== "string") throw new Error(`expected a text, found ${JSON.stringify(value)?.slice(0, 60)}`);
  return value;
}

function asTurns(turns) {
  if (!Array.isArray(turns)) throw new Error("a conversation has no list of turns");
  return turns.map((turn) => ({ ...asTurn(turn), ...(turn.others ? { born: Number(turn.born) || 0, others: turn.others.map(asTurns) } : {}) }));
}

function asTurn({ role, content, files = [], images = [], answers, born }) {
  const order = born === undefined ? {} : { born: Number(born) || 0 };
  if (role !== "user") return { ...order, role: "assistant", answers: answers.map(asAnswer) };
  return { ...order, role, content: asText(content), files: files.map(({ name, text }) => ({ name: asText(name), text: asText(text) })),
    images: images.map(asText).filter((image) => image.startsWith("data:image/")) };
}

const asAnswer = ({ draft, content, thinking = "", figures = "", error = "", pieces = [] }) => ({ draft: Boolean(draft), content: asText(content),
  thinking: asText(thinking), figures: asText(figures), error: asText(error), pieces: pieces.map(([text, accepted]) => [asText(text), Boolean(accepted)]) });
