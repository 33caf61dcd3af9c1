// SPDX-License-Identifier: MIT
// The conversations, which the browser keeps: the list of them, search, names, deleting and export.
import { $, button, complain, iconButton, load, make, save } from "./dom.js";
import { asMessage } from "./files.js";
import { entry, openMenu } from "./menu.js";
import { eraseRecord, readRecords, writeRecords } from "./store.js";

export const kept = { chats: [], current: load("current", "") };
export const chat = () => kept.chats.find((one) => one.id === kept.current);
const windows = new BroadcastChannel("eaglecpp");  // the others of this page
const unsaved = new Set();  // ids of conversations of which the browser keeps nothing, or something older
let show = null;  // draws the current conversation, after the list
let leave = null;  // ends what belongs to the one that is shown
let isBusy = null;  // whether the one that is shown is being answered or edited

// show, leave, isBusy: see above. Resolves when the conversations are there.
export async function useChats(callbacks) {
  ({ show, leave, isBusy } = callbacks);
  $("search").oninput = drawChats;
  $("new").onclick = newChat;
  try {
    const { chats, nBroken } = await readKept();
    kept.chats.push(...chats);
    if (nBroken) complain(`${nBroken} of the conversations that this browser has kept cannot be read.`);
  } catch (error) {
    complain(`The browser does not give back the conversations that it has kept: ${error.message}`);
  }
  windows.onmessage = async () => {  // another one has saved something
    const read = await readKept().catch(() => null);
    if (!read) return;
    const theirs = read.chats, own = chat();
    const mine = kept.chats.filter((one) => unsaved.has(one.id) || !one.turns.length || (one === own && isBusy()));
    kept.chats = [...mine, ...theirs.filter((one) => !mine.some(({ id }) => id === one.id))];
    sort();
    (isBusy() ? drawChats : show)();
  };
}

async function readKept() {
  const records = await readRecords(), chats = records.filter(isChat).sort(byTime);
  return { chats, nBroken: records.length - chats.length };
}

const isText = (value) => typeof value === "string";

function isChat({ title, at, turns }) {
  try {
    return isText(title) && Number.isFinite(at) && turns.every(isTurn);
  } catch {  // something in it is no list
    return false;
  }
}

function isTurn({ role, content, answers = [], others = [] }) {
  const isSaid = role === "user" ? isText(content) : answers.length > 0 && answers.every((one) => isText(one.content) && Array.isArray(one.runs));
  return isSaid && others.every((branch) => branch.length > 0 && branch.every(isTurn));
}

const byTime = (one, other) => other.at - one.at;
const sort = () => kept.chats.sort(byTime);

// It was used now: it comes first.
export function touch(one) {
  one.at = Date.now();
  sort();
}

// Writes a conversation. Where the browser refuses, a notice says so until it no longer does.
export async function saveChat(one = chat()) {
  if (!one?.turns.length) return;
  unsaved.add(one.id);
  try {
    await writeRecords(kept.chats.filter(({ id }) => unsaved.has(id)));
    unsaved.clear();
    warn(null);
    windows.postMessage("saved");
  } catch (error) {
    warn(error);
  }
}

function warn(error) {
  $("unsaved").hidden = !error;
  if (!error) return;
  const why = error.name === "QuotaExceededError" ? "the browser's storage is full; export what you want to keep, and delete some" : `the browser keeps nothing (${error.message}); export what you want to keep`;
  $("unsaved").textContent = `Not saved ${unsaved.size === 1 ? "is one conversation" : `are ${unsaved.size} conversations`}: ${why}. What is not saved ends with this window.`;
}

export function newChat() {
  leave();
  const empty = kept.chats.find((one) => !one.turns.length);
  if (!empty) kept.chats.unshift({ id: newId(), at: Date.now(), title: "New conversation", turns: [] });
  open(empty ?? kept.chats[0]);
  $("question").focus();
}

// There is no randomUUID where the page comes over plain HTTP from another machine.
const newId = () => crypto.randomUUID?.() ?? `${Date.now()}-${Math.random()}`;

function open(one) {
  kept.chats = kept.chats.filter((each) => each === one || each.turns.length);
  kept.current = one?.id ?? "";
  save("current", kept.current);
  show();
}

export function drawChats() {
  const wanted = $("search").value.trim().toLowerCase();
  const found = kept.chats.filter((one) => !wanted || texts(one).some((text) => text.toLowerCase().includes(wanted)));
  const groups = Map.groupBy(found, ({ at }) => since(at));
  $("chats").replaceChildren(...[...groups].map(([name, chats]) => make("section", {}, make("h2", { textContent: name }),
    make("ul", {}, ...chats.map((one) => make("li", {}, ...drawEntry(one)))))));
  $("none").hidden = found.length > 0;
}

const texts = (one) => [one.title, ...one.turns.flatMap((turn) => turn.content ?? turn.answers.map((answer) => answer.content))];

// When a conversation was last used, as the list says it.
function since(at) {
  const used = new Date(at), days = Math.round((new Date().setHours(0, 0, 0, 0) - new Date(at).setHours(0, 0, 0, 0)) / 86_400_000);
  if (days < 2) return days < 1 ? "Today" : "Yesterday";
  if (days < 31) return days < 8 ? "Last 7 days" : "Last 30 days";
  return used.toLocaleDateString("en", { month: "long", year: "numeric" });
}

function drawEntry(one) {
  const when = new Date(one.at).toLocaleString("en", { dateStyle: "medium", timeStyle: "short" });
  const title = button(one.title, () => { leave(); open(one); }, { className: "row", title: `${one.title}\n${when}` });
  if (one.id === kept.current) title.setAttribute("aria-current", "true");
  if (!one.turns.length) return [title];
  const more = iconButton("ellipsis", `More for ${one.title}`, () => openMenu(more, one.title, [
    entry("pencil", "Rename", () => rename(one, title)),
    entry("file-text", "Export as Markdown", () => download(one)),
    entry("trash-2", "Delete", () => remove(one))]), { ariaHasPopup: "menu" });
  return [title, more];
}

function rename(one, title) {
  const field = make("input", { value: one.title, maxLength: 200, ariaLabel: "Name of the conversation" });
  const end = (isKept) => {
    field.onblur = null;  // drawing takes the focus
    if (isKept && field.value.trim()) one.title = field.value.trim();
    saveChat(one);
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

async function remove(gone) {
  if (!confirm(`Delete “${gone.title}”?`)) return;
  try {
    await eraseRecord(gone.id);
  } catch (error) {
    return complain(`The browser does not delete the conversation: ${error.message}`);
  }
  unsaved.delete(gone.id);
  windows.postMessage("deleted");
  const isShown = gone.id === kept.current;
  if (isShown) leave();
  kept.chats = kept.chats.filter((one) => one !== gone);
  if (isShown) open(kept.chats[0]);
  else drawChats();
  $("question").focus();
  await saveChat(kept.chats.find(({ id }) => unsaved.has(id)));  // there is more room now
}

function download(one) {
  const name = one.title.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 60) || "conversation";
  const parts = one.turns.map((turn) => turn.role === "user" ? `## You\n\n${asMessage(turn).content}` : `## Answer\n\n${turn.answers[0].content}`);
  const href = URL.createObjectURL(new Blob([`# ${one.title}\n\n${parts.join("\n\n")}\n`]));
  make("a", { href, download: `${name}.md` }).click();
  setTimeout(() => URL.revokeObjectURL(href), 10_000);
}
