// SPDX-License-Identifier: MIT
// The page: the conversation that is shown, and its answers, which /api/chat of the server gives.
import { branch, fork, turnTo } from "./branches.js";
import { chat, drawChats, newChat, saveChat, useChats } from "./chats.js";
import { $, button, complain, copyText, lines, load, make, request, save, say } from "./dom.js";
import { asMessage, drawFiles, hold, takeFiles, useFiles } from "./files.js";
import { loadedModel, loadModels, look, takesImages, useModels } from "./models.js";
import { colour, render } from "./render.js";
import { options, strategy, useSettings } from "./settings.js";

const N_BARS = 160;
const EXAMPLES = ["Explain speculative decoding to a cook.", "Write a Python function that merges two sorted lists, with a test.",
  "Compare tea and coffee in a table."];

let models = null;  // the promise of their list
let running = [];  // AbortControllers of the answers under way
let editing = null;  // the index of the question that the next one replaces

// Drawing

function draw() {
  if (!chat()) return newChat();
  drawChats();
  $("log").replaceChildren(...(chat().turns.length ? chat().turns.map(drawTurn) : [make("section", { className: "empty" }, ...drawEmpty())]));
  $("log").scrollTop = chat().turns.length ? $("log").scrollHeight : 0;
  if (!running.length) $("strip").hidden = true;
}

// What a conversation begins with: what this is, what drafting gives here, and what could be asked.
function drawEmpty() {
  const name = $("model").value, now = loadedModel(), gain = now?.drafting_gain;
  const gave = gain ? `Drafting gave ${gain.speed.toFixed(1)} times the speed of plain decoding in the last answers of ${name} here, with ${gain.tokens.toFixed(1)} tokens a round.`
    : now && !now.drafts ? `${name} has no drafter; eaglecpp drafters ${name} says what could draft for it.`
      : "“Side by side” answers with and without drafting and measures what it gives here.";
  return [make("h2", { textContent: name ? `Ask ${name}` : "A chat with a model on this machine" }),
    make("p", { textContent: "The model runs on the machine that this page comes from, and what you write goes nowhere else. A small drafter guesses several tokens ahead and the model checks them in one step: the same answer, sooner." }),
    make("p", { textContent: gave }),
    ...EXAMPLES.map((text) => button(text, () => { $("question").value = text; $("ask").requestSubmit(); }))];
}

function drawTurn(turn, index) {
  const left = editing !== null && index >= editing ? " left" : "";
  if (turn.role === "user") {
    return make("div", { className: "turn user" + left, role: "group", ariaLabel: "You" }, make("h2", { className: "unseen", textContent: "You" }),
      ...drawFiles(turn), make("div", { className: "text", textContent: turn.content }),
      make("div", { className: "tools" }, button("Edit", () => editTurn(index)), ...drawBranches(turn, index)));
  }
  const isPair = turn.answers.length > 1;
  return make("div", { className: "turn assistant" + left, role: "group", ariaLabel: "Answer" },
    ...(isPair ? [] : [make("h2", { className: "unseen", textContent: "Answer" })]),
    make("div", { className: isPair ? "pair" : "" }, ...turn.answers.map((answer) => drawAnswer(answer, isPair))),
    make("div", { className: "tools" }, button("Regenerate", () => (running.length ? say("Stop the answer first.") : answerLast(index))),
      button("Copy", () => copyText(turn.answers[0].content)), ...drawBranches(turn, index)));
}

// Where a question was edited, or answered again: ‹ 2 of 3 ›
function drawBranches(turn, index) {
  const { at, count } = branch(turn);
  if (count < 2) return [];
  const step = (text, ariaLabel, by) => button(text, () => {
    if (running.length) return say("Stop the answer first.");
    endEdit();
    turnTo(chat().turns, index, by);
    saveChat();
    draw();
  }, { ariaLabel, disabled: at + by < 1 || at + by > count });
  return [step("‹", "Earlier version", -1), make("span", { textContent: `${at} of ${count}` }), step("›", "Later version", 1)];
}

function drawAnswer(answer, isNamed) {
  const node = make("article", { className: "answer" });
  if (isNamed) node.append(make("h2", { textContent: answer.draft ? "With drafting" : "Without drafting" }));
  const thinking = make("details", {}, make("summary", { textContent: "Thinking" }), make("div"));
  const text = make("div", { className: "text" });
  const figures = make("p", { className: "figures" });
  node.append(thinking, text, figures);
  Object.defineProperty(answer, "view", { value: { thinking, text, figures }, configurable: true });
  paint(answer);
  return node;
}

// isLive: whether more of it is coming
function paint(answer, isLive = false) {
  const { thinking, text, figures } = answer.view;
  thinking.hidden = !answer.thinking;
  thinking.lastChild.textContent = answer.thinking;
  text.replaceChildren(render(answer.content, isLive));
  if (answer.runs.some((run) => run[1]) && $("colour").checked) colour(text, answer.content, answer.runs);
  for (const pre of text.querySelectorAll("pre")) {
    pre.append(button("Copy", () => copyText(pre.querySelector("code").textContent), { ariaLabel: "Copy code" }));
  }
  if (answer.error) text.append(make("p", { className: "error", role: "alert", textContent: answer.error }));
  figures.textContent = answer.figures ?? "";
}

// Nothing changes before the new question is sent.
function editTurn(index) {
  editing = index;
  $("editing").hidden = false;
  $("question").value = chat().turns[index].content;
  hold(chat().turns[index]);
  draw();
  $("question").focus();
}

function endEdit() {
  if (editing === null) return;
  editing = null;
  $("editing").hidden = true;
  $("question").value = "";
  hold();
  draw();
}

// Asking

function ask(event) {
  event.preventDefault();
  const content = $("question").value.trim();
  if (!content || running.length || !chat()) return;
  const { turns } = chat(), index = editing ?? turns.length;
  if (!index && chat().title === "New conversation") chat().title = content.slice(0, 60);
  fork(turns, index, { role: "user", content, ...takeFiles() });
  endEdit();
  $("question").value = "";
  answerLast();
}

function messages(turns) {
  const out = $("system").value.trim() ? [{ role: "system", content: $("system").value }] : [];
  for (const turn of turns) {
    if (turn.role === "user") out.push(asMessage(turn));
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
  const asked = messages(owner.turns.slice(0, index)), wanted = options(), name = $("model").value;
  const both = $("compare").checked;
  if (both && wanted.seed === undefined) wanted.seed = Math.floor(Math.random() * 2 ** 31);  // the same text in both
  const turn = { role: "assistant", answers: (both ? [true, false] : [$("drafting").checked]).map((draft) => ({ draft, content: "", thinking: "", runs: [] })) };
  fork(owner.turns, index, turn);
  saveChat(owner);
  draw();
  clearStrip();
  say("The answer has started.");
  let isWhole = true;
  try {
    for (const answer of turn.answers) {  // one after the other, so that their speeds compare
      isWhole = await stream(owner, answer, asked, wanted, both);
      if (!isWhole) break;
    }
  } finally {
    setRunning(false);
    saveChat(owner);
    if (chat() === owner) drawChats();
  }
  const [first, second] = turn.answers;
  if (both && second.speed) {
    first.speedup = first.speed / second.speed;
    first.figures += ` · ${first.speedup.toFixed(2)} × the speed without drafting, measured`;
    if (first.content === second.content) first.figures += ", the same text";
    if (chat() === owner) paint(first);
    saveChat(owner);
  }
  if (isWhole) say("The answer is complete.");
  else if (turn.answers.some((one) => one.error)) complain("The answer failed.");
  else say("Stopped.");
  look();
}

// isPair: the speed without drafting is measured, so that the planner's estimate is not told beside it
async function stream(owner, answer, asked, wanted, isPair) {
  const control = new AbortController();
  running.push(control);
  let last = null, pending = false, next = 0, isLive = true;
  const show = () => {
    pending = false;
    if (chat() !== owner || !answer.view) return;
    const log = $("log"), begun = performance.now();
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
    paint(answer, isLive);
    if (atEnd) log.scrollTop = log.scrollHeight;
    next = performance.now() + 4 * (performance.now() - begun);  // a long answer takes a fifth of the page's time
  };
  const body = { model: $("model").value, messages: asked, options: wanted, show_drafts: true, draft: answer.draft };
  if ($("think").value) body.think = $("think").value === "true";
  if (answer.draft && strategy()) body.strategy = strategy();
  const isPlanned = answer.draft && !isPair && ["", "auto"].includes(strategy());  // then the gain is estimated
  try {
    for await (const part of lines(await request("api/chat", { method: "POST", body, signal: control.signal }))) {
      answer.content += part.message?.content ?? "";
      answer.thinking += part.message?.thinking ?? "";
      if (part.drafts) {
        const now = part.drafts;
        for (const [text, isAccepted, isThinking] of now.pieces) if (!isThinking) addRun(answer.runs, text.length, isAccepted);
        if (answer.draft) showStrip(now, last);
        if (now.predicted_n) answer.figures = inWords({ ...now, predicted_per_second: 1000 * now.predicted_n / Math.max(now.predicted_ms, 1) }, isPlanned && now.speedup).join(" · ");
        last = now;
      }
      if (part.done) finish(answer, part, isPlanned);
      if (!pending) setTimeout(() => requestAnimationFrame(show), Math.max(0, next - performance.now()));
      pending = true;
    }
    return true;
  } catch (error) {
    if (error.name === "AbortError") answer.figures = [answer.figures, "stopped"].filter(Boolean).join(" · ");
    else answer.error = error.message;
    return false;
  } finally {
    running = running.filter((one) => one !== control);
    isLive = false;
    show();
  }
}

// runs: how many characters of the answer were drafted, or not, one after the other
function addRun(runs, length, isAccepted) {
  const end = runs.at(-1);
  if (end && end[1] === isAccepted) end[0] += length;
  else runs.push([length, isAccepted]);
}

// The one place that says how fast an answer is, while it comes and afterwards.
function inWords({ predicted_n, predicted_per_second }, speedup) {
  const gain = speedup ? [`about ${speedup.toFixed(2)} × the speed without drafting, estimated`] : [];
  return [`${predicted_n} tokens`, `${predicted_per_second.toFixed(1)} tokens/s`, ...gain];
}

function finish(answer, part, isPlanned) {
  const t = part.timings, hasDrafts = answer.draft && t.draft_n > 0;
  answer.speed = t.predicted_per_second;
  if (hasDrafts) answer.length = t.acceptance_length;
  if (isPlanned && t.plan.strategy === "auto") answer.speedup = t.plan.speedup ?? undefined;
  const figures = inWords(t, answer.speedup);
  if (hasDrafts) figures.push(`${answer.length.toFixed(2)} tokens per round`);
  if (part.done_reason === "length") figures.push("cut at the limit");
  if (t.messages_left_out) figures.push(`${t.messages_left_out} old messages did not fit`);
  figures.push(...(t.notices ?? []));
  answer.figures = figures.join(" · ");
}

// The strip: what was drafted for the answer that came last

function clearStrip() {
  for (const id of ["length", "rows", "accepted"]) $("s-" + id).textContent = "–";
  $("rounds").replaceChildren();
}

function showStrip(now, last) {
  if (!now.predicted_n) return;
  $("strip").hidden = false;
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

// Events

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

function leave() {
  stop();
  endEdit();
}

$("ask").onsubmit = ask;
$("question").onkeydown = (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("ask").requestSubmit();
  }
};
document.onkeydown = (event) => {
  if (event.key === "Escape" && !document.querySelector("dialog[open]")) {
    leave();
    closeMenu();
  }
  if (event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    newChat();
  }
};
$("stop").onclick = stop;
$("cancel").onclick = () => { endEdit(); $("question").focus(); };
$("menu").onclick = () => {
  const open = $("side").classList.toggle("open");
  $("menu").setAttribute("aria-expanded", String(open));
};
$("strip").open = load("strip", !matchMedia("(max-width: 44em)").matches);
$("strip").ontoggle = () => save("strip", $("strip").open);
useSettings((name) => { if (name === "colour") draw(); }, () => { if (!$("model").options.length) models = loadModels(); });
useFiles(takesImages);
useModels(() => { if (!running.length && !chat()?.turns.length) draw(); });
await useChats({ show: () => { draw(); closeMenu(); }, leave, isBusy: () => running.length > 0 || editing !== null });
draw();
models = loadModels();
