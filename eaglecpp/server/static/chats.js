// SPDX-License-Identifier: MIT
// The conversations, which are stored in the browser's database: list, search, names, deletion and export.
import { $, complain, html, Icon, IconButton, load, save, say, set, state } from "./base.js";
import { isTree, shown } from "./branches.js";
import { asMessage } from "./files.js";
import { openDB } from "./vendor/idb.js";

const TABLE = "chats";
const windows = new BroadcastChannel("eaglecpp");  // channel to the other windows of this page
const unsaved = new Set();  // ids of conversations with unsaved changes
let database = null;

export const NARROW = matchMedia("(max-width: 44em)");
export const chat = () => state.chats.find((one) => one.id === state.current);

Object.assign(state, { chats: [], running: new Map(),  // AbortController of the running answer of each conversation
  current: load("current", ""), search: "", unsaved: "", isListOpen: !NARROW.matches && load("menu", true) });

// Loads the conversations.
export async function useChats() {
  windows.onmessage = async () => {  // another window has saved a conversation
    await read().catch(() => null);
    if (!chat()) newChat();
  };
  try {
    const nBroken = await read();
    if (nBroken) complain(`${nBroken} of the saved conversations cannot be read; they are left out.`);
  } catch (error) {
    complain(`The browser cannot read the saved conversations: ${error.message}`);
  }
}

const opened = async () => database ??= await openDB("eaglecpp", 1, { upgrade: (made) => made.createObjectStore(TABLE, { keyPath: "id" }) });

// Loads the stored conversations, except conversations that this window uses or has not saved. Returns the number of
// invalid conversations.
async function read() {
  const records = await (await opened()).getAll(TABLE), chats = records.filter(isChat);
  const own = state.editing && chat();
  const mine = state.chats.filter((one) => unsaved.has(one.id) || !one.turns.length || one === own || state.running.has(one.id));
  set({ chats: [...mine, ...chats.filter((one) => !mine.some(({ id }) => id === one.id))].sort(byTime) });
  return records.length - chats.length;
}

function isChat(one) {
  try {
    const isText = [one.id, one.title, one.system ?? ""].every((text) => typeof text === "string");
    return isText && Number.isFinite(one.at) && one.turns.every(isTurn) && isTree(one);
  } catch {  // a field that should be a list is not a list
    return false;
  }
}

function isTurn({ role, content, files = [], images = [], answers }) {
  const isAttached = files.every(({ name, text }) => typeof name === "string" && typeof text === "string") && images.every((src) => src.startsWith("data:image/"));
  return role === "user" ? isAttached && typeof content === "string" : answers.length > 0 && answers.every(isAnswer);
}

const isAnswer = ({ content, runs, speedup = 0 }) => typeof content === "string" && typeof speedup === "number" && runs.every(Array.isArray);

const byTime = (one, other) => other.at - one.at;

// Marks a conversation as just used, which moves it to the top of the list.
export function touch(one) {
  one.at = Date.now();
  state.chats.sort(byTime);
}

// Saves a conversation. If the browser refuses, shows a notice until saving succeeds.
export async function saveChat(one = chat()) {
  if (!one?.turns.length) return;
  unsaved.add(one.id);
  try {
    const table = await opened();
    await Promise.all(state.chats.filter(({ id }) => unsaved.has(id)).map((each) => table.put(TABLE, each)));
    unsaved.clear();
    set({ unsaved: "" });
    windows.postMessage("saved");
  } catch (error) {
    const why = error.name === "QuotaExceededError" ? "the browser's storage is full; delete some" : `the browser cannot store them (${error.message})`;
    set({ unsaved: `Unsaved conversations: ${unsaved.size}, because ${why}. They are lost when this window closes; export the ones you want to keep.` });
  }
}

// Choosing a conversation

export function newChat() {
  open(state.chats.find((one) => !one.turns.length) ?? made());
  $("question").focus();
}

// The id is made without randomUUID, which is missing if another machine loads the page over plain HTTP.
const made = () => ({ id: `${Date.now()}-${Math.random()}`, at: Date.now(), title: "New conversation", turns: [] });

// Shows a conversation. If another conversation has a running answer, that answer continues.
export function open(one) {
  endEdit();
  save("current", one.id);
  set({ current: one.id, chats: [one, ...state.chats.filter((each) => each !== one && each.turns.length)].sort(byTime) });
  if (NARROW.matches) showList(false);
}

// Clears the input field and ends editing.
export function clear() {
  $("question").value = "";
  set({ editing: null, files: [], images: [] });
}

export function endEdit() {
  if (!state.editing) return;
  clear();
  $("question").focus();
}

// Stops the answer of the shown conversation, and ends editing.
export function leave() {
  state.running.get(state.current)?.abort();
  endEdit();
}

// Opens or closes the list of conversations. The list is a drawer on a phone, and otherwise next to the conversation.
export function showList(isListOpen) {
  set({ isListOpen });
  if (!NARROW.matches) save("menu", isListOpen);
}

// Drawing the list of conversations

export function Side() {
  const wanted = state.search.trim().toLowerCase();
  const found = state.chats.filter((one) => one.turns.length && (!wanted || texts(one).some((text) => text.toLowerCase().includes(wanted))));
  return html`
    <nav id="side" class=${state.isListOpen ? "open" : ""} aria-label="Conversations">
      <div class="bar">
        <img src="static/icon.svg" alt="" width="24" height="24"/><strong>eaglecpp</strong>
        <${IconButton} id="side-close" icon="x" label="Close the list" onClick=${() => { showList(false); $("menu").focus(); }}/>
      </div>
      <button id="new" class="row" type="button" title="Ctrl+Shift+O" onClick=${newChat}><${Icon} name="square-pen"/>New conversation</button>
      <input id="search" type="search" aria-label="Search conversations" placeholder="Search" title="Ctrl+K" autocomplete="off" onInput=${({ target }) => set({ search: target.value })}/>
      <div id="chats">
        ${[...Map.groupBy(found, ({ at }) => since(at))].map(([name, chats]) => html`
          <section key=${name}><h2 class="soft">${name}</h2><ul>${chats.map((one) => html`<${Line} key=${one.id} one=${one}/>`)}</ul></section>`)}
      </div>
      ${wanted && found.length === 0 && html`<p class="soft">No conversations found.</p>`}
    </nav>
    <div id="shade" onClick=${() => showList(false)}/>`;
}

const texts = (one) => [one.title, ...shown(one).flatMap((turn) => turn.content ?? turn.answers.map((answer) => answer.content))];

// Returns a text for the time at which a conversation was last used.
function since(at) {
  const days = Math.round((new Date().setHours(0, 0, 0, 0) - new Date(at).setHours(0, 0, 0, 0)) / 86_400_000);
  if (days < 31) return new Intl.RelativeTimeFormat("en", { numeric: "auto" }).format(-days, "day");
  return new Date(at).toLocaleDateString("en", { month: "long", year: "numeric" });
}

function Line({ one }) {
  const { id, title } = one, when = new Date(one.at).toLocaleString("en", { dateStyle: "medium", timeStyle: "short" });
  return html`
    <li>
      <button class="row" type="button" title="${title}\n${when}" aria-current=${id === state.current || null} onClick=${() => open(one)}>${title}</button>
      ${state.running.has(id) && html`<span class="waiting" title="An answer is being written"/>`}
      <${IconButton} icon="ellipsis" label="More for ${title}" popovertarget="more-${id}"/>
      <div id="more-${id}" class="menu" popover="auto" onClick=${({ currentTarget }) => currentTarget.hidePopover()}>
        <form onSubmit=${(event) => rename(event, one)} onClick=${(event) => event.stopPropagation()}>
          <label class="row bar" title="Another name, then Enter"><${Icon} name="pencil"/><input aria-label="Name" maxlength="200" value=${title} onBlur=${({ target }) => { target.value = one.title; }}/></label>
        </form>
        <button class="row" type="button" onClick=${() => download(one)}><${Icon} name="file-text"/>Export as Markdown</button>
        <button class="row" type="button" onClick=${() => remove(one)}><${Icon} name="trash-2"/>Delete</button>
      </div>
    </li>`;
}

function rename(event, one) {
  event.preventDefault();
  one.title = event.target.elements[0].value.trim() || one.title;
  $(`more-${one.id}`).hidePopover();
  set();
  saveChat(one);
}

async function remove(gone) {
  try {
    await (await opened()).delete(TABLE, gone.id);
  } catch (error) {
    return complain(`The browser cannot delete the conversation: ${error.message}`);
  }
  unsaved.delete(gone.id);
  windows.postMessage("deleted");
  state.running.get(gone.id)?.abort();
  if (gone === chat()) endEdit();
  set({ chats: state.chats.filter((one) => one !== gone) });
  if (!chat()) newChat();
  $("question").focus();
  // saving may succeed now, because the deletion has freed space
  await saveChat(state.chats.find(({ id }) => unsaved.has(id)));
  say(`“${gone.title}” is deleted.`, false, () => {
    state.chats.push(gone);
    open(gone);
    saveChat(gone);
  }, "Undo");
}

function download(one) {
  const name = one.title.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 60) || "conversation";
  const parts = shown(one).map((turn) => turn.role === "user" ? `## You\n\n${asMessage(turn).content}` : `## Answer\n\n${turn.answers[0].content}`);
  give(`${name}.md`, `# ${one.title}\n\n${parts.join("\n\n")}\n`);
}

function give(download, text) {
  const href = URL.createObjectURL(new Blob([text]));
  Object.assign(document.createElement("a"), { href, download }).click();
  setTimeout(() => URL.revokeObjectURL(href), 10_000);
}

// Exports all conversations to a file, and imports such a file. If a conversation is in both, the later version is
// kept.

export function backUp() {
  give(`eaglecpp-${new Date().toISOString().slice(0, 10)}.json`, JSON.stringify({ eaglecpp_chats: 1, chats: state.chats.filter((one) => one.turns.length) }));
}

export async function restore(file) {
  try {
    const { eaglecpp_chats: version, chats } = JSON.parse(await file.text());
    if (version !== 1) throw new Error("it is not a backup of this page");
    const good = chats.filter(isChat), known = new Map(state.chats.map((one) => [one.id, one]));
    const added = [...new Map(good.map((one) => [one.id, one])).values()].filter((one) => !(known.get(one.id)?.at >= one.at) && !state.running.has(one.id));
    for (const one of added) {
      known.set(one.id, one);
      unsaved.add(one.id);
    }
    set({ chats: [...known.values()].sort(byTime) });
    await saveChat(added[0]);
    const broken = chats.length - good.length;
    say(`Conversations added: ${added.length} of ${chats.length}.${broken ? ` ${broken} cannot be read and were left out.` : ""}`, broken > 0);
  } catch (error) {
    complain(`${file.name}: ${error.message}`);
  }
}
