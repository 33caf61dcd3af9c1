// SPDX-License-Identifier: MIT
// The settings and their presets, which are stored in the browser, and the options of a request. The system prompt is
// stored with the conversation.
import { $, html, IconButton, load, save, set, state } from "./base.js";
import { backUp, chat, restore, saveChat } from "./chats.js";
import { defaults, loadedModel, loadModels } from "./models.js";

// Each setting has a label, a step, a maximum and a minimum. On a narrow screen, only the first two settings are shown
// at first.
const NUMBERS = {
  temperature: ["Temperature", 0.1, 2], num_predict: ["Max tokens", 1, undefined, 1], num_ctx: ["Context", 1, undefined, 1],
  top_p: ["Top p", 0.05, 1], top_k: ["Top k", 1], min_p: ["Min p", 0.01, 1], repeat_penalty: ["Repeat penalty", 0.05], seed: ["Seed", 1] };
const SAVED = [...Object.keys(NUMBERS), "think", "strategy"];  // settings in a preset, in addition to the system prompt
const BUILT_IN = { "Model's own": {}, Precise: { temperature: "0" }, Balanced: { temperature: "0.7", top_p: "0.9" },
  Creative: { temperature: "1.1", top_p: "0.95", min_p: "0.05" } };
const FIRST = { ...Object.fromEntries(SAVED.map((name) => [name, ""])), key: "", theme: "", drafting: true, compare: false, colour: false };

Object.assign(state, {
  settings: Object.fromEntries(Object.entries(FIRST).map(([name, value]) => [name, load(name, value)])),
  preset: "",  // name of the chosen preset
  inForce: {},  // default values, which apply to empty fields
});

export function change(changes) {
  for (const [name, value] of Object.entries(changes)) save(name, value);
  set({ settings: { ...state.settings, ...changes } });
}

// `field` returns the attributes of an input field for a setting, and `toggle` those of a switch.
const field = (id) => ({ id, value: state.settings[id], onInput: ({ target }) => change({ [id]: target.value }) });
export const toggle = (id) => ({ id, type: "checkbox", checked: state.settings[id], onChange: ({ target }) => change({ [id]: target.checked }) });

export async function openSettings() {
  set({ preset: "" });
  $("setup").showModal();
  set({ inForce: (await defaults().catch(() => null)) ?? {} });
}

function closeSettings() {
  saveChat();
  if (!state.chosen) loadModels();  // the list of models may be empty because the API key was missing
}

function setSystem(system) {
  chat().system = system;
  set();
}

export function Settings() {
  const own = load("presets", {}), { preset } = state;
  const numbers = Object.entries(NUMBERS).map(([name, [label, step, max, min = 0]]) => html`
    <label>${label}<input type="number" min=${min} max=${max} step=${step} placeholder=${inForce(name)} ...${field(name)}/></label>`);
  return html`
    <dialog id="setup" class="sheet" aria-labelledby="setup-title" closedby="any" onClose=${closeSettings}>
      <form method="dialog">
        <div class="bar"><h2 id="setup-title">Settings</h2><button class="main">Done</button></div>
        <fieldset><legend>This conversation</legend>
          <label>System prompt<textarea rows="2" placeholder="Role and knowledge of the model" value=${chat()?.system ?? ""} onInput=${({ target }) => setSystem(target.value)}/></label>
        </fieldset>
        <fieldset><legend>Drafting</legend>
          <label>Strategy<input list="strategies" placeholder="server's default" spellcheck=${false} autocomplete="off" ...${field("strategy")}/></label>
          <datalist id="strategies"><option>auto</option><option>chain:3</option><option>chain:5</option><option>tree:k=4,depth=5,nodes=16</option></datalist>
          <label class="switch"><input ...${toggle("colour")}/> Show drafted text</label>
        </fieldset>
        <fieldset><legend>Answers</legend>
          <div class="bar">
            <select aria-label="Preset" value=${preset} onChange=${({ target }) => choose(target.value)}>
              <option value="">Preset …</option>
              ${Object.keys({ ...BUILT_IN, ...own }).map((name) => html`<option>${name}</option>`)}
            </select>
            <input id="preset-name" aria-label="Name of a new preset" placeholder="New preset" title="It takes the system prompt, the values and the strategy" maxlength="60" onKeyDown=${(event) => event.key === "Enter" && savePreset(event.preventDefault())}/>
            <button type="button" onClick=${savePreset}>Save preset</button>
            <${IconButton} icon="trash-2" label="Delete this preset" disabled=${!(preset in own)} onClick=${deletePreset}/>
          </div>
          <div class="grid">${numbers.slice(0, 2)}</div>
          <details open=${matchMedia("(min-width: 44em)").matches}><summary>More values</summary>
            <div class="grid">${numbers.slice(2)}
              <label>Thinking<select ...${field("think")}><option value="">model's own</option><option value="true">on</option><option value="false">off</option></select></label>
            </div>
            <p id="in-force" class="soft">${inMemory(loadedModel())}</p>
          </details>
        </fieldset>
        <fieldset class="grid"><legend>This page</legend>
          <label>Theme<select ...${field("theme")}><option value="">the system's</option><option>light</option><option>dark</option></select></label>
          <label>API key<input type="password" autocomplete="off" placeholder="if required" ...${field("key")}/></label>
        </fieldset>
        <fieldset class="grid"><legend>All conversations</legend>
          <button type="button" onClick=${backUp}>Save as a file</button>
          <button type="button" onClick=${() => $("backup").click()}>Add from a file</button>
          <input id="backup" type="file" accept=".json" aria-label="A file with saved conversations" hidden onChange=${({ target }) => { restore(target.files[0]); $("setup").close(); target.value = ""; }}/>
        </fieldset>
      </form>
    </dialog>`;
}

function choose(name) {
  const preset = load("presets", {})[name] ?? BUILT_IN[name];
  if (!preset) return;
  change(Object.fromEntries(SAVED.map((one) => [one, typeof preset[one] === "string" ? preset[one] : ""])));
  if (typeof preset.system === "string") setSystem(preset.system);
  set({ preset: name });
}

function savePreset() {
  const name = $("preset-name").value.trim();
  if (!name || name in BUILT_IN) return $("preset-name").focus();
  const values = [...SAVED.map((one) => [one, state.settings[one]]), ["system", chat().system]].filter(([, value]) => value);
  save("presets", { ...load("presets", {}), [name]: Object.fromEntries(values) });
  $("preset-name").value = "";
  set({ preset: name });
}

function deletePreset() {
  const { [state.preset]: gone, ...rest } = load("presets", {});
  save("presets", rest);
  set({ preset: "" });
}

// Describes the settings of the loaded model.
function inMemory(now) {
  if (!now) return "The model is not in memory yet.";
  return `In memory: a context of ${now.context_length} tokens, ${now.n_parallel} ${now.n_parallel === 1 ? "conversation" : "conversations"} at a time, ` +
    `strategy ${now.strategy}, ${now.drafts ? "with" : "without"} drafts. ${(now.notices ?? []).join(" ")}`;
}

// Returns the default value that applies to an empty field.
function inForce(name) {
  const value = state.inForce[name];
  if (name === "seed") return "random";
  if (name === "num_predict" && !(value > 0)) return "no limit";
  return typeof value === "number" ? String(Number(value.toFixed(4))) : "model's own";
}

export const strategy = () => state.settings.strategy.trim();

export function options() {
  const entries = Object.keys(NUMBERS).map((name) => [name, state.settings[name]]).filter(([, value]) => value !== "" && Number.isFinite(Number(value)));
  return Object.fromEntries(entries.map(([name, value]) => [name, Number(value)]));
}
