// SPDX-License-Identifier: MIT
// The page, which is drawn entirely from the state. This file draws everything except the turns.
import { ask } from "./answers.js";
import { $, html, Icon, IconButton, Notice, say, set, state } from "./base.js";
import { shown } from "./branches.js";
import { chat, endEdit, leave, NARROW, newChat, showList, Side, useChats } from "./chats.js";
import { attach, Attached } from "./files.js";
import { loadedModel, loadModels, Models } from "./models.js";
import { openSettings, Settings, toggle } from "./settings.js";
import { Turn } from "./turns.js";

const EXAMPLES = ["Explain speculative decoding to a cook.", "Write a Python function that merges two sorted lists, with a test.",
  "Compare tea and coffee in a table."];

// On-screen keyboards cannot type Shift+Enter. With such a keyboard, Enter starts a new line.
const TOUCH = matchMedia("(pointer: coarse)");

function Page() {
  const turns = shown(chat()), edited = turns.indexOf(state.editing), name = state.chosen || "No model";
  document.documentElement.dataset.theme = state.settings.theme;
  return html`
    <a class="unseen" href="#question">Skip to the question</a>
    <${Side}/>
    <main>
      <header class="bar">
        <h1 class="unseen">eaglecpp</h1>
        <${IconButton} id="menu" icon="menu" label="Conversations" aria-expanded=${state.isListOpen} aria-controls="side" onClick=${toggleList}/>
        <button id="model" type="button" aria-haspopup="dialog" aria-label="Model: ${name}" onClick=${() => $("models").showModal()}><span>${name}</span><${Icon} name="chevron-down"/></button>
        <${IconButton} id="setup-open" icon="sliders-horizontal" label="Settings" aria-haspopup="dialog" onClick=${openSettings}/>
      </header>
      <div id="log" key=${state.current} role="log" aria-label="Conversation" aria-live="off" tabindex="0">
        <div>
          ${turns.length === 0 && html`<${Empty}/>`}
          ${turns.map((turn, index) => html`
            <${Turn} key=${turn} turn=${turn} index=${index} isLast=${index === turns.length - 1} isLeft=${edited >= 0 && index >= edited}/>`)}
        </div>
      </div>
      <p class="unseen" id="spoken" role="status">${state.spoken}</p>
      <p class="bad" id="unsaved" role="alert" hidden=${!state.unsaved}>${state.unsaved}</p>
      <${Notice}/>
      <${Ask} used=${turns.at(-1)?.answers?.[0].used}/>
    </main>
    <${Settings}/>
    <${Models}/>`;
}

// Shows a new conversation: the purpose of this page, the speed-up by drafting, and example questions.
function Empty() {
  const name = state.chosen, now = loadedModel(), gain = now?.drafting_gain;
  const gave = gain ? `In its last answers, ${name} was ${gain.speed.toFixed(1)} times as fast with drafting as without, with an acceptance length of ${gain.tokens.toFixed(1)}.`
    : now && !now.drafts ? `${name} has no drafter; eaglecpp drafters ${name} lists drafters that could fit.`
      : "“Side by side” answers with and without drafting, and measures the speed-up.";
  return html`
    <section class="empty">
      <h2>${name ? `Ask ${name}` : "A chat with a model on this machine"}</h2>
      <p>The model runs on the server of this page, and your text is sent nowhere else. A small drafter guesses several tokens ahead and the model checks them in one step: the same answer, sooner.</p>
      <p>${gave}</p>
      ${EXAMPLES.map((text) => html`<button class="row" type="button" onClick=${() => ask(text)}>${text}</button>`)}
    </section>`;
}

function Ask({ used }) {
  const control = state.running.get(state.current);
  const onSubmit = (event) => {
    event.preventDefault();
    ask($("question").value.trim());
  };
  const onKeyDown = (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || TOUCH.matches) return;
    event.preventDefault();
    $("ask").requestSubmit();
  };
  const onChange = ({ target }) => {
    attach([...target.files]);
    target.value = "";
  };
  return html`
    <form id="ask" onSubmit=${onSubmit}>
      ${state.editing && html`<p id="editing" class="bar soft">Editing an earlier ${state.editing.answers ? "answer" : "question"}; the earlier version is kept. <button type="button" onClick=${endEdit}>Cancel</button></p>`}
      <${Attached}/>
      <label class="unseen" for="question">Your question</label>
      <textarea id="question" rows="1" placeholder="Ask something" autocomplete="off" onKeyDown=${onKeyDown}/>
      <div class="bar">
        <${IconButton} id="attach" icon="paperclip" label="Attach files" title="Attach text files or pictures" onClick=${() => $("attach-file").click()}/>
        <input id="attach-file" type="file" multiple aria-label="Files to attach" hidden onChange=${onChange}/>
        <label class="chip" title="Draft tokens with the model's drafter"><${Icon} name="zap"/><input role="switch" aria-label="Drafting" ...${toggle("drafting")}/><span>Drafting</span></label>
        <label class="chip" title="Answer with and without drafting, and measure the speed-up"><${Icon} name="columns-2"/><input role="switch" aria-label="Side by side" ...${toggle("compare")}/><span>Side by side</span></label>
        <${Gauge} used=${used} all=${loadedModel()?.context_length}/>
        ${control ? html`<${IconButton} key="stop" id="stop" class="icon-only main" icon="square" label="Stop" onClick=${() => control.abort()}/>`
          : html`<${IconButton} key="send" id="send" class="icon-only main" type="submit" icon="arrow-up" label="Send"/>`}
      </div>
    </form>`;
}

// Shows the share of the context that the conversation filled in its last answer.
function Gauge({ used, all }) {
  if (!used || !all) return null;
  const text = `${used.toLocaleString("en")} of ${all.toLocaleString("en")} tokens`, percent = Math.round(100 * used / all);
  return html`
    <span id="gauge" class="soft" role="meter" aria-label="Context in use" aria-valuemin="0" aria-valuenow=${Math.min(used, all)} aria-valuemax=${all} aria-valuetext=${text} title=${text}>
      <i style=${{ "--used": `${percent}%` }}/><span>${percent} %</span>
    </span>`;
}

function toggleList() {
  showList(!state.isListOpen);
  if (NARROW.matches) $("side-close").focus();
}

NARROW.onchange = () => set({ isListOpen: !NARROW.matches });
await useChats();
set({ page: Page });
document.onkeydown = (event) => {
  if (event.key === "Escape" && !document.querySelector("dialog[open], :popover-open")) {
    if (state.isBad && state.notice) return say("");
    leave();
    if (NARROW.matches && state.isListOpen) {
      showList(false);
      $("menu").focus();
    }
  }
  const chord = (event.ctrlKey || event.metaKey) && `${event.shiftKey ? "shift+" : ""}${event.key.toLowerCase()}`;
  if (chord !== "k" && chord !== "shift+o") return;  // llama.cpp's page has the same keys
  event.preventDefault();
  if (chord === "shift+o") return newChat();
  showList(true);
  $("search").focus();
};
if (!chat()) newChat();
loadModels();
