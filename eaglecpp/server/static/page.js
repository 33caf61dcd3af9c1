// SPDX-License-Identifier: MIT
// The page: the conversation that is shown, and its answers, which /api/chat of the server gives.
import { branch, fork, turnTo } from "./branches.js";
import { chat, drawChats, newChat, saveChat, touch, useChats } from "./chats.js";
import { $, button, complain, copyText, icon, iconButton, lines, load, make, request, save, say, speak } from "./dom.js";
import { asMessage, drawFiles, hold, takeFiles, useFiles } from "./files.js";
import { useMenus } from "./menu.js";
import { chosenModel, loadedModel, loadModels, look, takesImages, useModels } from "./models.js";
import { colour, render } from "./render.js";
import { options, strategy, useSettings } from "./settings.js";

const MIN_TOKENS = 32;  // that an answer has before anything is said of a gain: the speed of a short one is noise
const MIN_GAIN = 1.05;  // that is worth a badge
const NARROW = matchMedia("(max-width: 44em)");
const EXAMPLES = ["Explain speculative decoding to a cook.", "Write a Python function that merges two sorted lists, with a test.",
  "Compare tea and coffee in a table."];

let models = null;  // the promise of their list
let running = [];  // AbortControllers of the answers under way
let editing = null;  // the index of the question that the next one replaces
let rewriting = null;  // the index of the answer that is being edited

// Drawing

function draw() {
  if (!chat()) return newChat();
  drawChats();
  $("log").replaceChildren(...(chat().turns.length ? chat().turns.map(drawTurn) : [make("section", { className: "empty" }, ...drawEmpty())]));
  $("log").scrollTop = chat().turns.length ? $("log").scrollHeight : 0;
  drawGauge();
}

// As before, with what was drafted or without.
function redraw() {
  const { scrollTop } = $("log");
  draw();
  $("log").scrollTop = scrollTop;
}

// How much of the context the conversation fills, as its last answer says.
function drawGauge() {
  const used = chat()?.turns.at(-1)?.answers?.[0].used, all = loadedModel()?.context_length, gauge = $("gauge");
  gauge.hidden = !used || !all;
  if (gauge.hidden) return;
  const text = `${used.toLocaleString("en")} of ${all.toLocaleString("en")} tokens`;
  gauge.ariaValueNow = Math.min(used, all);
  gauge.ariaValueMax = all;
  gauge.ariaValueText = gauge.title = text;
  gauge.firstElementChild.style.setProperty("--used", `${Math.min(100, 100 * used / all)}%`);
  gauge.lastElementChild.textContent = `${Math.round(100 * used / all)} %`;
}

// What a conversation begins with: what this is, what drafting gives here, and what could be asked.
function drawEmpty() {
  const name = chosenModel(), now = loadedModel(), gain = now?.drafting_gain;
  const gave = gain ? `Drafting gave ${gain.speed.toFixed(1)} times the speed of plain decoding in the last answers of ${name} here, with ${gain.tokens.toFixed(1)} tokens a round.`
    : now && !now.drafts ? `${name} has no drafter; eaglecpp drafters ${name} says what could draft for it.`
      : "“Side by side” answers with and without drafting and measures what it gives here.";
  return [make("h2", { textContent: name ? `Ask ${name}` : "A chat with a model on this machine" }),
    make("p", { textContent: "The model runs on the machine that this page comes from, and what you write goes nowhere else. A small drafter guesses several tokens ahead and the model checks them in one step: the same answer, sooner." }),
    make("p", { textContent: gave }),
    ...EXAMPLES.map((text) => button(text, () => { write(text); $("ask").requestSubmit(); }))];
}

function drawTurn(turn, index) {
  const left = editing !== null && index >= editing ? " left" : "";
  if (turn.role === "user") {
    return make("div", { className: "turn user" + left, role: "group", ariaLabel: "You" }, make("h2", { className: "unseen", textContent: "You" }),
      ...drawFiles(turn), make("div", { className: "text", textContent: turn.content }),
      make("div", { className: "tools" }, iconButton("pencil", "Edit", () => editTurn(index)),
        iconButton("copy", "Copy the question", () => copyText(turn.content)), ...drawBranches(turn, index)));
  }
  const isPair = turn.answers.length > 1, isLast = index === chat().turns.length - 1;
  const unlessRunning = (work) => () => (running.length ? say("Stop the answer first.") : work());
  return make("div", { className: "turn assistant" + left, role: "group", ariaLabel: "Answer" },
    ...(isPair ? [] : [make("h2", { className: "unseen", textContent: "Answer" })]),
    index === rewriting ? drawRewriting(turn, index) : make("div", { className: isPair ? "pair" : "" }, ...turn.answers.map((answer) => drawAnswer(answer, isPair))),
    make("div", { className: "tools" }, iconButton("copy", "Copy", () => copyText(turn.answers[0].content)),
      iconButton("refresh-cw", "Regenerate", unlessRunning(() => answerLast(index))),
      ...(isPair ? [] : [iconButton("pencil", "Edit the answer", unlessRunning(() => rewrite(index)))]),
      ...(isPair || !isLast ? [] : [iconButton("step-forward", "Continue", unlessRunning(() => goOn(turn)))]), ...drawBranches(turn, index)));
}

// The text of an answer in a field; what was there stays as another version.
function drawRewriting(turn, index) {
  const field = make("textarea", { value: turn.answers[0].content, ariaLabel: "The answer" });
  const keep = () => {
    const content = field.value.trim(), { draft, thinking } = turn.answers[0];
    if (content && content !== turn.answers[0].content) fork(chat().turns, index, { role: "assistant", answers: [{ draft, thinking, content, figures: "edited", runs: [] }] });
    rewrite(null);
    saveChat();
  };
  field.onkeydown = (event) => {
    if (event.key !== "Escape") return;
    event.stopPropagation();
    rewrite(null);
  };
  return make("div", { className: "rewrite" }, field, make("div", { className: "bar" }, button("Keep", keep, { className: "main" }), button("Cancel", () => rewrite(null))));
}

// index: null ends it
function rewrite(index) {
  rewriting = index;
  redraw();
  ($("log").querySelector(".rewrite textarea") ?? $("question")).focus();
}

// Where a turn was edited, or answered again: ‹ 2 of 3 ›
function drawBranches(turn, index) {
  const { at, count } = branch(turn);
  if (count < 2) return [];
  const step = (name, ariaLabel, by) => iconButton(name, ariaLabel, () => {
    if (running.length) return say("Stop the answer first.");
    endEdit();
    turnTo(chat().turns, index, by);
    saveChat();
    draw();
  }, { disabled: at + by < 1 || at + by > count });
  return [step("chevron-left", "Earlier version", -1), make("span", { textContent: `${at} of ${count}` }), step("chevron-right", "Later version", 1)];
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
  text.querySelectorAll("pre").forEach(frame);
  text.classList.toggle("waiting", isLive && !answer.content && !answer.thinking);
  if (answer.error) text.append(make("p", { className: "error", role: "alert", textContent: answer.error }));
  figures.replaceChildren(answer.figures ?? "");
  if (answer.speedup >= MIN_GAIN) figures.prepend(drawGain(answer));
}

// A code block below a bar with its language and what copies it.
function frame(pre) {
  const code = pre.querySelector("code"), language = /language-(\S+)/.exec(code?.className)?.[1] ?? "text";
  const box = make("div", { className: "code" });
  pre.replaceWith(box);
  box.append(make("div", { className: "bar" }, make("span", { textContent: language }), iconButton("copy", "Copy code", () => copyText(pre.textContent))), pre);
}

// A badge that shows and hides what was drafted.
function drawGain({ speedup, drafts }) {
  const isShown = $("colour").checked;
  const badge = button(`${speedup.toFixed(1)}× faster`, () => $("colour").click(), { className: "chip", ariaPressed: String(isShown),
    title: `Drafting: about ${speedup.toFixed(2)} times the speed without it, ${drafts}. ${isShown ? "Hides" : "Shows"} what was drafted.` });
  badge.prepend(icon("zap"));
  return badge;
}

// Nothing changes before the new question is sent.
function editTurn(index) {
  editing = index;
  $("editing").hidden = false;
  write(chat().turns[index].content);
  hold(chat().turns[index]);
  draw();
  $("question").focus();
}

function endEdit() {
  if (editing === null) return;
  editing = null;
  $("editing").hidden = true;
  write("");
  hold();
  draw();
}

// Puts a text into the field of questions, which grows with it.
function write(text) {
  $("question").value = text;
  grow();
}

function grow() {
  $("question").style.height = "auto";
  $("question").style.height = `${$("question").scrollHeight}px`;
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
  write("");
  answerLast();
}

function messages(turns) {
  const { system } = chat(), out = system?.trim() ? [{ role: "system", content: system }] : [];
  for (const turn of turns) {
    if (turn.role === "user") out.push(asMessage(turn));
    else if (turn.answers[0].content) out.push({ role: "assistant", content: turn.answers[0].content });
  }
  return out;
}

// index: of an answer that is asked for again
const answerLast = (index = chat().turns.length) => answerWith("The answer has started.", index);

// The last answer goes on from where it ends.
const goOn = (turn) => answerWith("The answer goes on.", chat().turns.length, turn);

// turn: of an answer that goes on; a new one comes in place of what is at the index
async function answerWith(said, index, turn) {
  endEdit();
  rewriting = null;
  const owner = chat(), isPair = !turn && $("compare").checked;
  touch(owner);
  setRunning(true);
  await haveModels();
  const asked = messages(owner.turns.slice(0, index)), wanted = options();
  if (isPair) wanted.seed ??= Math.floor(Math.random() * 2 ** 31);  // the same text in both
  if (turn) delete turn.answers[0].error;
  else {
    turn = { role: "assistant", answers: (isPair ? [true, false] : [$("drafting").checked]).map((draft) => ({ draft, content: "", thinking: "", runs: [] })) };
    fork(owner.turns, index, turn);
    saveChat(owner);
    draw();
  }
  speak(said);
  let isWhole = true;
  try {
    for (const answer of turn.answers) {  // one after the other, so that their speeds compare
      isWhole = await stream(owner, answer, asked, wanted, isPair);
      if (!isWhole) break;
    }
  } finally {
    setRunning(false);
    if (isPair) compare(...turn.answers);
    saveChat(owner);
    if (chat() === owner) drawChats();
  }
  if (isWhole) speak("The answer is complete.");
  else if (turn.answers.some((one) => one.error)) complain("The answer failed.");
  else speak("Stopped.");
  drawGauge();
  look();
}

// What drafting gave, below the first of two answers.
function compare(first, second) {
  if (!second.speed) return;
  const n = Math.min(first.n, second.n);
  if (n < MIN_TOKENS) first.figures += ` · ${n} tokens are too few to compare speeds`;
  else first.figures += ` · ${(first.speed / second.speed).toFixed(2)} × the speed without drafting, measured`;
  if (first.content === second.content) first.figures += ", the same text";
  if (first.view) paint(first);
}

// A question may come before the list of models has.
async function haveModels() {
  await models;
  if (!chosenModel()) await (models = loadModels());
}

// isPair: the speed without drafting is measured, so that the planner's estimate is not told beside it
async function stream(owner, answer, asked, wanted, isPair) {
  const control = new AbortController();
  running.push(control);
  let pending = false, next = 0, isLive = true;
  const show = () => {
    pending = false;
    if (chat() !== owner || !answer.view) return;
    const log = $("log"), begun = performance.now();
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
    paint(answer, isLive);
    if (atEnd) log.scrollTop = log.scrollHeight;
    next = performance.now() + 4 * (performance.now() - begun);  // a long answer takes a fifth of the page's time
  };
  const body = { model: chosenModel(), messages: asked, options: wanted, show_drafts: true, draft: answer.draft };
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
        if (now.predicted_n) answer.figures = inWords({ ...now, predicted_per_second: 1000 * now.predicted_n / Math.max(now.predicted_ms, 1) }).join(" · ");
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

// The one place that says how fast an answer is, while it comes and afterwards; the gain is a badge beside it.
const inWords = ({ predicted_n, predicted_per_second }) => [`${predicted_n} tokens`, `${predicted_per_second.toFixed(1)} tokens/s`];

function finish(answer, part, isPlanned) {
  const t = part.timings;
  answer.speed = t.predicted_per_second;
  answer.n = t.predicted_n;
  answer.used = part.prompt_eval_count + part.eval_count;
  delete answer.speedup;  // of what came before it went on
  answer.drafts = `${t.acceptance_length.toFixed(1)} tokens a round, ${t.draft_n_accepted} of ${t.draft_n} drafted tokens accepted`;
  if (isPlanned && t.plan.strategy === "auto" && t.predicted_n >= MIN_TOKENS) answer.speedup = t.plan.speedup ?? undefined;
  const figures = inWords(t);
  if (part.done_reason === "length") figures.push("cut at the limit");
  if (t.messages_left_out) figures.push(`${t.messages_left_out} old messages did not fit`);
  figures.push(...(t.notices ?? []));
  answer.figures = figures.join(" · ");
}

// Events

function setRunning(is) {
  $("stop").hidden = !is;
  $("send").hidden = is;
}

function stop() {
  for (const control of running) control.abort();
}

// The list of conversations: a drawer on a phone, beside the conversation where there is room for both.
function showMenu(is) {
  if (NARROW.matches) {
    $("side").classList.toggle("open", is);
    $("shade").hidden = !is;
  } else {
    document.body.classList.toggle("shut", !is);
    save("menu", is);
  }
  $("menu").ariaExpanded = String(is);
}

const closeDrawer = () => { if (NARROW.matches) showMenu(false); };

function leave() {
  stop();
  rewriting = null;
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
    if (!$("shade").hidden) $("menu").focus();
    closeDrawer();
  }
  if (event.key.toLowerCase() === "k" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    newChat();
  }
};
$("stop").onclick = stop;
$("cancel").onclick = () => { endEdit(); $("question").focus(); };
$("question").oninput = grow;
$("menu").onclick = () => {
  showMenu($("menu").ariaExpanded !== "true");
  if (NARROW.matches) $("side-close").focus();
};
$("side-close").onclick = () => { showMenu(false); $("menu").focus(); };
$("shade").onclick = closeDrawer;
NARROW.onchange = () => {
  $("side").classList.remove("open");
  $("shade").hidden = true;
  showMenu(!NARROW.matches);
};
for (const node of document.querySelectorAll("[data-icon]")) node.prepend(icon(node.dataset.icon));
showMenu(!NARROW.matches && load("menu", true));
useMenus();
useSettings((name) => { if (name === "colour") redraw(); }, () => { if (!chosenModel()) models = loadModels(); });
useFiles(takesImages);
useModels(() => {
  if (!running.length && !chat()?.turns.length) draw();
  else drawGauge();
});
await useChats({ show: () => { draw(); closeDrawer(); }, leave, isBusy: () => running.length > 0 || editing !== null || rewriting !== null });
draw();
models = loadModels();
