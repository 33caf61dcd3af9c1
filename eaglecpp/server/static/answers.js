// SPDX-License-Identifier: MIT
// Sends questions: streams the server's /api/chat answer into a turn of the conversation.
import { $, complain, lines, request, set, speak, state } from "./base.js";
import { addTurn, shown } from "./branches.js";
import { chat, clear, endEdit, saveChat, touch } from "./chats.js";
import { asMessage } from "./files.js";
import { haveModels, loadedModel, loadModels } from "./models.js";
import { options, strategy } from "./settings.js";

const MIN_TOKENS = 32;  // Minimum tokens of an answer whose speed-up is shown. The speed of a shorter answer is noise.

export const views = new WeakMap();  // maps each answer to the component that shows it

Object.assign(state, {
  live: new Set(),  // answers that are still running
  editing: null,  // the turn that is being edited
});

// Sends the text as a question, or as another version of the edited turn.
export function ask(content) {
  const one = chat(), turns = shown(one), { editing, files, images } = state, index = editing ? turns.indexOf(editing) : turns.length;
  if (!content || state.running.has(one.id)) return;
  if (!index && one.title === "New conversation") one.title = content.slice(0, 60);
  clear();
  if (editing?.answers) {
    const [{ draft, thinking }] = editing.answers;
    addTurn(one, index, { role: "assistant", answers: [{ draft, thinking, content, figures: "edited", runs: [] }] });
    saveChat();
    set();
  } else {
    addTurn(one, index, { role: "user", content, files, images });
    answer();
  }
}

// Generates an answer. index: number of the answer to generate again; turn: an answer to continue at its end
export async function answer(index = shown(chat()).length, turn = null) {
  const owner = chat(), { compare: isPair, drafting } = turn ? {} : state.settings, control = new AbortController();
  endEdit();
  touch(owner);
  state.running.set(owner.id, control);
  set();
  await haveModels();
  const asked = messages(owner, index), wanted = options();
  // both answers of a pair have the same seed, so they have the same text
  if (isPair) wanted.seed ??= Math.floor(Math.random() * 2 ** 31);
  speak(turn ? "The answer continues." : "The answer has started.");
  if (turn) delete turn.answers[0].error;
  else {
    turn = { role: "assistant", answers: (isPair ? [true, false] : [drafting]).map((draft) => ({ draft, content: "", thinking: "", runs: [] })) };
    addTurn(owner, index, turn);
    saveChat(owner);
    if (owner === chat()) $("log").scrollTop = 0;  // the log is in reverse order, so this position shows its end
  }
  let isWhole = true;
  // The two answers run one after the other, so that their speeds are comparable.
  for (const one of turn.answers) isWhole &&= await stream(one, asked, wanted, isPair, control.signal);
  if (isPair) compare(...turn.answers);
  state.running.delete(owner.id);
  set();
  saveChat(owner);
  const where = owner === chat() ? "" : ` in “${owner.title}”`;
  if (isWhole) speak(`The answer${where} is complete.`);
  else if (turn.answers.some((one) => one.error)) complain(`The answer${where} failed.`);
  else speak("Stopped.");
  loadModels();  // updates the list, because this answer may have loaded the model
}

function messages(one, end) {
  const said = shown(one).slice(0, end).map((turn) => turn.answers ? { role: turn.role, content: turn.answers[0].content } : asMessage(turn));
  return [{ role: "system", content: one.system?.trim() }, ...said].filter(({ content }) => content);
}

// Shows under the first answer how much faster drafting made that answer than the second answer.
function compare(first, second) {
  if (!second.speed) return;
  const n = Math.min(first.n, second.n);
  if (n < MIN_TOKENS) first.figures += ` · ${n} tokens are too few to compare speeds`;
  else first.figures += ` · ${(first.speed / second.speed).toFixed(2)} × the speed without drafting (measured)`;
  if (first.content === second.content) first.figures += ", the same text";
}

// isPair: the speed without drafting is measured, so the planner's estimate is not shown
async function stream(answer, messages, options, isPair, signal) {
  let isPending = false, next = 0;
  const show = () => {
    const begun = performance.now();
    isPending = false;
    // the pause limits the drawing of a long answer to a fifth of the time
    views.get(answer)?.forceUpdate(() => { next = performance.now() + 4 * (performance.now() - begun); });
  };
  const { think } = state.settings, body = { model: state.chosen, messages, options, show_drafts: true, draft: answer.draft };
  if (think) body.think = think === "true";
  if (answer.draft && strategy()) body.strategy = strategy();
  // true if the planner has estimated the speed-up
  const isPlanned = answer.draft && !isPair && ["", "auto"].includes(strategy());
  if (!loadedModel()) answer.figures = "Loading the model.";
  state.live.add(answer);
  set();
  try {
    for await (const part of lines(await request("api/chat", { method: "POST", body, signal }))) {
      answer.content += part.message?.content ?? "";
      answer.thinking += part.message?.thinking ?? "";
      if (part.drafts) {
        const now = part.drafts;
        for (const [text, isAccepted, isThinking] of now.pieces) if (!isThinking) addRun(answer.runs, text.length, isAccepted);
        if (now.predicted_n) answer.figures = inWords({ ...now, predicted_per_second: 1000 * now.predicted_n / Math.max(now.predicted_ms, 1) }).join(" · ");
      }
      if (part.done) finish(answer, part, isPlanned);
      if (!isPending) setTimeout(() => requestAnimationFrame(show), Math.max(0, next - performance.now()));
      isPending = true;
    }
    return true;
  } catch (error) {
    answer.figures = [answer.content && answer.figures, error.name === "AbortError" && "stopped"].filter(Boolean).join(" · ");
    if (error.name !== "AbortError") answer.error = error.message;
    return false;
  } finally {
    state.live.delete(answer);
  }
}

// Appends a run to `runs`. runs: lengths in characters of parts of the answer, alternately drafted and not drafted.
function addRun(runs, length, isAccepted) {
  const end = runs.at(-1);
  if (end && end[1] === isAccepted) end[0] += length;
  else runs.push([length, isAccepted]);
}

// Returns the text that reports an answer's speed, during the answer and afterwards. The speed-up is in a separate
// badge.
const inWords = ({ predicted_n, predicted_per_second }) => [`${predicted_n} tokens`, `${predicted_per_second.toFixed(1)} tokens/s`];

function finish(answer, part, isPlanned) {
  const t = part.timings;
  answer.speed = t.predicted_per_second;
  answer.n = t.predicted_n;
  answer.used = part.prompt_eval_count + part.eval_count;
  delete answer.speedup;  // this speed-up was measured before the answer was continued
  answer.drafts = `acceptance length ${t.acceptance_length.toFixed(1)}, ${t.draft_n_accepted} of ${t.draft_n} drafted tokens accepted`;
  if (isPlanned && t.plan.strategy === "auto" && t.predicted_n >= MIN_TOKENS) answer.speedup = t.plan.speedup ?? undefined;
  const figures = inWords(t);
  if (part.done_reason === "length") figures.push("cut off at the token limit");
  if (t.messages_left_out) figures.push(`${t.messages_left_out} old messages did not fit`);
  figures.push(...(t.notices ?? []));
  answer.figures = figures.join(" · ");
}
