// SPDX-License-Identifier: MIT
// The page: conversations, kept in the browser's storage, answered by /api/chat of the server it came from.
import { branch, fork, turnTo } from "./branches.js";
import { colour, render } from "./markdown.js";

const $ = (id) => document.getElementById(id);
const SETTINGS = ["system", "temperature", "top_p", "seed", "num_predict", "think", "strategy", "key"];
const SWITCHES = ["drafting", "compare", "colour"];
const N_BARS = 160;
const SAID_MS = 8000;

let chats = load("chats", []);
let current = load("current", null);
let models = null;  // the promise of their list
let running = [];  // AbortControllers of the answers under way
let editing = null;  // the index of the question that the next one replaces
let saidLast = 0;

function load(name, otherwise) {
  try {
    return JSON.parse(localStorage.getItem("eaglecpp." + name)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

function save(name, value) {
  try {
    localStorage.setItem("eaglecpp." + name, JSON.stringify(value));
  } catch {
    complain("The browser's storage is full; this conversation will not be saved.");
  }
}

const saveChats = () => { save("chats", chats); save("current", current); };
const chat = () => chats.find((one) => one.id === current);

// One line above the question, which screen readers say. What went wrong stays until something else is said.
function say(text, ...more) {
  $("status").className = "";
  $("status").role = "status";
  $("status").replaceChildren(text, ...more);
  clearTimeout(saidLast);
  saidLast = setTimeout(() => { $("status").replaceChildren(); }, more.length ? 3 * SAID_MS : SAID_MS);
}

function complain(text) {
  say(text);
  clearTimeout(saidLast);
  $("status").className = "bad";
  $("status").role = "alert";
}

function make(name, attributes = {}, ...children) {
  const node = Object.assign(document.createElement(name), attributes);
  node.append(...children);
  return node;
}

function headers() {
  const key = $("key").value.trim();
  return { "Content-Type": "application/json", ...(key ? { Authorization: "Bearer " + key } : {}) };
}

async function loadModels() {
  const wanted = load("model", "");
  try {
    const answer = await fetch("api/tags", { headers: headers() });
    const told = await answer.json();
    if (!answer.ok) throw new Error(told.error);
    const loaded = await loadedModels();
    const names = [...new Set([...told.models.map((one) => one.name), ...loaded])];
    $("model").replaceChildren(...names.map((name) => new Option(name, name)));
    // What is in memory answers at once; another one is loaded only where somebody picks it.
    const first = loaded.length && !loaded.includes(wanted) ? loaded[0] : wanted;
    if (names.includes(first)) $("model").value = first;
    if (!names.length) complain("There is no model on this machine yet: eaglecpp pull NAME");
  } catch (error) {
    complain(`Cannot list the server's models: ${error.message}`);
  }
}

async function loadedModels() {
  const answer = await fetch("api/ps", { headers: headers() });
  return answer.ok ? (await answer.json()).models.map((one) => one.name) : [];
}

// Conversations

function newChat() {
  stop();
  endEdit();
  const empty = chats.find((one) => !one.turns.length);
  const made = empty ?? { id: crypto.randomUUID?.() ?? String(Date.now()), title: "New conversation", turns: [] };
  if (!empty) chats.unshift(made);
  current = made.id;
  saveChats();
  draw();
  $("question").focus();
}

function drawList() {
  $("chats").replaceChildren(...chats.map((one) => {
    const button = make("button", { type: "button", textContent: one.title, title: one.title });
    if (one.id === current) button.setAttribute("aria-current", "true");
    button.onclick = () => { stop(); endEdit(); current = one.id; saveChats(); draw(); closeMenu(); };
    return make("li", {}, button);
  }));
}

function draw() {
  if (!chat()) return newChat();
  drawList();
  $("log").replaceChildren(...chat().turns.map(drawTurn));
  $("log").scrollTop = $("log").scrollHeight;
}

function drawTurn(turn, index) {
  const left = editing !== null && index >= editing ? " left" : "";
  if (turn.role === "user") {
    const edit = make("button", { type: "button", textContent: "Edit" });
    edit.onclick = () => editTurn(index);
    return make("div", { className: "turn user" + left, role: "group", ariaLabel: "You" }, make("div", { className: "text", textContent: turn.content }),
      make("div", { className: "tools" }, edit, ...drawBranches(turn, index)));
  }
  const views = turn.answers.map((answer) => drawAnswer(answer, turn.answers.length > 1));
  const again = make("button", { type: "button", textContent: "Regenerate" });
  again.onclick = () => (running.length ? say("Stop the answer first.") : answerLast(index));
  const copy = make("button", { type: "button", textContent: "Copy" });
  copy.onclick = () => copyText(turn.answers[0].content);
  return make("div", { className: "turn assistant" + left, role: "group", ariaLabel: "Answer" },
    make("div", { className: turn.answers.length > 1 ? "pair" : "" }, ...views),
    make("div", { className: "tools" }, again, copy, ...drawBranches(turn, index)));
}

// Where a question was edited, or answered again: ‹ 2 of 3 ›
function drawBranches(turn, index) {
  const { at, count } = branch(turn);
  if (count < 2) return [];
  const button = (text, label, step) => {
    const made = make("button", { type: "button", textContent: text, ariaLabel: label, disabled: at + step < 1 || at + step > count });
    made.onclick = () => {
      if (running.length) return say("Stop the answer first.");
      endEdit();
      turnTo(chat().turns, index, step);
      saveChats();
      draw();
    };
    return made;
  };
  return [button("‹", "Earlier version", -1), make("span", { textContent: `${at} of ${count}` }), button("›", "Later version", 1)];
}

function drawAnswer(answer, named) {
  const node = make("article", { className: "answer" });
  if (named) node.append(make("h2", { textContent: answer.draft ? "With drafting" : "Without drafting" }));
  const thinking = make("details", {}, make("summary", { textContent: "Thinking" }), make("div"));
  const text = make("div", { className: "text" });
  const figures = make("p", { className: "figures" });
  node.append(thinking, text, figures);
  answer.view = { thinking, text, figures };
  Object.defineProperty(answer, "view", { enumerable: false });
  paint(answer);
  return node;
}

function paint(answer) {
  const { thinking, text, figures } = answer.view;
  thinking.hidden = !answer.thinking;
  thinking.lastChild.textContent = answer.thinking;
  text.replaceChildren(render(answer.content));
  if (answer.pieces && $("colour").checked) {
    const source = answer.pieces.map((piece) => piece[0]).join("");
    const flags = answer.pieces.flatMap((piece) => Array(piece[0].length).fill(piece[1]));
    colour(text, source, flags);
  }
  for (const pre of text.querySelectorAll("pre")) {
    const button = make("button", { type: "button", textContent: "Copy", ariaLabel: "Copy code" });
    button.onclick = () => copyText(pre.querySelector("code").textContent);
    pre.append(button);
  }
  if (answer.error) text.append(make("p", { className: "error", role: "alert", textContent: answer.error }));
  figures.textContent = answer.figures ?? "";
}

async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    say("Copied.");
  } catch {
    complain("The browser does not allow this page to copy.");
  }
}

// Nothing changes before the new question is sent.
function editTurn(index) {
  editing = index;
  $("editing").hidden = false;
  $("question").value = chat().turns[index].content;
  draw();
  $("question").focus();
}

function endEdit() {
  if (editing === null) return;
  editing = null;
  $("editing").hidden = true;
  $("question").value = "";
  draw();
}

// Asking

function options() {
  const out = {};
  for (const name of ["temperature", "top_p", "seed", "num_predict"]) {
    if ($(name).value !== "" && Number.isFinite(Number($(name).value))) out[name] = Number($(name).value);
  }
  return out;
}

function messages(turns) {
  const out = $("system").value.trim() ? [{ role: "system", content: $("system").value }] : [];
  for (const turn of turns) {
    if (turn.role === "user") out.push({ role: "user", content: turn.content });
    else if (turn.answers[0].content) out.push({ role: "assistant", content: turn.answers[0].content });
  }
  return out;
}

// index: of an answer that is asked for again
async function answerLast(index = chat().turns.length) {
  endEdit();
  const owner = chat();
  setRunning(true);
  await models;  // a question may come before the list of models has
  if (!$("model").value) await (models = loadModels());
  const asked = messages(owner.turns.slice(0, index));
  const wanted = options();
  const both = $("compare").checked;
  if (both && wanted.seed === undefined) wanted.seed = Math.floor(Math.random() * 2 ** 31);  // the same text in both
  const turn = { role: "assistant", answers: (both ? [true, false] : [$("drafting").checked]).map((draft) => ({ draft, content: "", thinking: "", pieces: [] })) };
  fork(owner.turns, index, turn);
  saveChats();
  draw();
  setRunning(true);
  say("The answer has started.");
  let isWhole = true;
  try {
    for (const answer of turn.answers) {  // one after the other, so that their speeds compare
      isWhole = await stream(owner, answer, asked, wanted, both);
      if (!isWhole) break;
    }
  } finally {
    setRunning(false);
    saveChats();
    if (chat() === owner) drawList();
  }
  const [first, second] = turn.answers;
  if (both && second.speed) {
    first.figures += ` · ${(first.speed / second.speed).toFixed(2)} × the speed without drafting, measured`;
    if (first.content === second.content) first.figures += ", the same text";
    if (chat() === owner) paint(first);
    saveChats();
  }
  if (isWhole) say("The answer is complete.");
  else if (turn.answers.some((one) => one.error)) complain("The answer failed.");
  else say("Stopped.");
}

// isPair: the speed without drafting is measured, so that the planner's estimate is not told beside it
async function stream(owner, answer, asked, wanted, isPair) {
  const control = new AbortController();
  running.push(control);
  clearStrip();
  let last = null, pending = false;
  const show = () => {
    pending = false;
    if (chat() !== owner || !answer.view) return;
    const log = $("log");
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
    paint(answer);
    if (atEnd) log.scrollTop = log.scrollHeight;
  };
  const later = () => {
    if (!pending) {
      pending = true;
      requestAnimationFrame(show);
    }
  };
  const body = { model: $("model").value, messages: asked, options: wanted, show_drafts: true, draft: answer.draft };
  if ($("think").value) body.think = $("think").value === "true";
  if (answer.draft && $("strategy").value.trim()) body.strategy = $("strategy").value.trim();
  try {
    const response = await fetch("api/chat", { method: "POST", headers: headers(), body: JSON.stringify(body), signal: control.signal });
    if (!response.ok) throw new Error((await response.json()).error ?? response.statusText);
    for await (const part of lines(response.body)) {
      if (part.error) throw new Error(part.error);
      answer.content += part.message?.content ?? "";
      answer.thinking += part.message?.thinking ?? "";
      if (part.drafts) {
        for (const piece of part.drafts.pieces) if (!piece[2]) addPiece(answer.pieces, piece);
        showStrip(part.drafts, last, answer.draft && !body.strategy && !isPair);
        last = part.drafts;
      }
      if (part.done) finish(answer, part, isPair);
      later();
    }
    return true;
  } catch (error) {
    if (error.name === "AbortError") answer.figures = "stopped";
    else answer.error = error.message;
    return false;
  } finally {
    running = running.filter((one) => one !== control);
    show();
  }
}

function addPiece(pieces, [text, accepted]) {
  const end = pieces.at(-1);
  if (end && end[1] === accepted) end[0] += text;
  else pieces.push([text, accepted]);
}

function finish(answer, part, isPair) {
  const t = part.timings;
  answer.speed = t.predicted_per_second;
  const share = t.predicted_n ? t.draft_n_accepted / t.predicted_n : 0;
  const figures = [`${t.predicted_n} tokens`, `${t.predicted_per_second.toFixed(1)} tokens/s`];
  if (answer.draft && t.draft_n) figures.push(`${t.acceptance_length.toFixed(2)} tokens per round`, `${Math.round(100 * share)} % from drafts`);
  if (!isPair && t.plan.speedup && t.plan.strategy === "auto") figures.push(`about ${t.plan.speedup.toFixed(2)} × the speed without drafting, estimated`);
  if (part.done_reason === "length") figures.push("cut at the limit");
  if (t.messages_left_out) figures.push(`${t.messages_left_out} old messages did not fit`);
  answer.figures = figures.join(" · ");
}

async function* lines(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let held = "";
  for (;;) {
    const { done, value } = await reader.read();
    held += decoder.decode(value, { stream: !done });
    const parts = held.split("\n");
    held = parts.pop();
    for (const part of parts) if (part.trim()) yield JSON.parse(part);
    if (done) break;
  }
  if (held.trim()) yield JSON.parse(held);
}

// The strip

function clearStrip() {
  for (const id of ["speed", "gain", "length", "rows", "accepted"]) $("s-" + id).textContent = "–";
  $("rounds").replaceChildren();
}

// hasPlan: the planner decides, so that it knows what plain decoding costs
function showStrip(now, last, hasPlan) {
  if (!now.predicted_n) return;
  $("s-speed").textContent = (1000 * now.predicted_n / Math.max(now.predicted_ms, 1)).toFixed(1);
  $("s-gain").textContent = hasPlan && now.speedup ? `about ${now.speedup.toFixed(2)} ×` : "–";
  $("s-length").textContent = now.rounds ? (1 + now.draft_n_accepted / now.rounds).toFixed(2) : "–";
  $("s-rows").textContent = now.draft_n;
  $("s-accepted").textContent = now.draft_n ? `${now.draft_n_accepted} (${Math.round(100 * now.draft_n_accepted / now.draft_n)} %)` : "0";
  const rows = now.draft_n - (last?.draft_n ?? 0), accepted = now.draft_n_accepted - (last?.draft_n_accepted ?? 0);
  const bar = make("i"), inner = make("b");
  bar.style.height = `${Math.min(26, 3 + 1.5 * rows)}px`;
  inner.style.height = `${rows ? 100 * accepted / rows : 0}%`;
  bar.append(inner);
  $("rounds").append(bar);
  while ($("rounds").childElementCount > N_BARS) $("rounds").firstChild.remove();
}

function setRunning(is) {
  $("stop").hidden = !is;
  $("send").hidden = is;
}

function stop() {
  for (const control of running) control.abort();
}

function closeMenu() {
  $("side").classList.remove("open");
  $("menu").setAttribute("aria-expanded", "false");
}

// Events

$("ask").onsubmit = (event) => {
  event.preventDefault();
  const text = $("question").value.trim();
  if (!text || running.length) return;
  const { turns } = chat(), index = editing ?? turns.length;
  if (!index) chat().title = text.slice(0, 60);
  fork(turns, index, { role: "user", content: text });
  endEdit();
  $("question").value = "";
  answerLast();
};
$("question").onkeydown = (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("ask").requestSubmit();
  }
};
document.onkeydown = (event) => {
  if (event.key === "Escape" && !$("setup").open) {
    stop();
    endEdit();
    closeMenu();
  }
  if (event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    newChat();
  }
};
$("stop").onclick = stop;
$("cancel").onclick = () => { endEdit(); $("question").focus(); };
$("new").onclick = () => { newChat(); closeMenu(); };
$("menu").onclick = () => {
  const open = $("side").classList.toggle("open");
  $("menu").setAttribute("aria-expanded", String(open));
};
$("setup-open").onclick = () => $("setup").showModal();
$("setup").onclose = () => {
  for (const name of SETTINGS) save(name, $(name).value);
  if (!$("model").options.length) models = loadModels();
};
$("delete").onclick = () => {
  stop();
  endEdit();
  const gone = chat(), index = chats.indexOf(gone);
  chats = chats.filter((one) => one !== gone);
  current = chats[0]?.id ?? null;
  saveChats();
  $("setup").close();
  draw();
  const undo = make("button", { type: "button", textContent: "Undo" });
  undo.onclick = () => {
    chats.splice(index, 0, gone);
    current = gone.id;
    saveChats();
    draw();
    say("The conversation is back.");
  };
  if (gone.turns.length) say("The conversation was deleted.", undo);
};
$("model").onchange = () => save("model", $("model").value);
for (const name of SWITCHES) {
  const kept = load(name, null);
  if (kept !== null) $(name).checked = kept;
  $(name).onchange = () => {
    save(name, $(name).checked);
    if (name === "colour") draw();
  };
}
for (const name of SETTINGS) $(name).value = load(name, "");
draw();
models = loadModels();
