// SPDX-License-Identifier: MIT
// The models of the server: the chosen model, facts about each model, downloads.
import { $, complain, html, Icon, lines, load, Notice, request, save, say, set, state } from "./base.js";

Object.assign(state, {
  listed: [],  // models in /api/tags
  inMemory: [],  // models in /api/ps
  chosen: "",  // name of the chosen model
  pulling: null,  // AbortController of the running download
  pulled: 0,  // downloaded share of a model; 0 if unknown
});

export const loadedModel = (name = state.chosen) => state.inMemory.find((one) => one.name === name);

export const takesImages = () => state.listed.find((one) => one.name === state.chosen)?.capabilities?.includes("vision");

// Returns true if a model generates text. An embedding model does not.
const answers = ({ capabilities = [] }) => !capabilities.length || capabilities.includes("completion");

// Returns the model's default options, or null if the model is not in memory. This function must not load a model.
export async function defaults() {
  if (!loadedModel()) return null;
  const settings = (await (await request(`props?model=${encodeURIComponent(state.chosen)}`)).json()).default_generation_settings;
  return { ...settings.params, num_predict: settings.params.n_predict, num_ctx: settings.n_ctx };
}

let loading = null;  // promise of the list of models

export const loadModels = () => loading = listModels();

// Waits for the list of models. A question may be sent before the list has arrived.
export async function haveModels() {
  await loading;
  if (!state.chosen) await loadModels();
}

async function listModels() {
  const wanted = load("model", "");
  try {
    state.listed = (await (await request("api/tags")).json()).models;
    state.inMemory = (await (await request("api/ps")).json()).models;
    // A loaded model answers at once, so it is chosen. Other models are only loaded if the user picks them.
    const names = state.listed.filter(answers).map((one) => one.name), loaded = state.inMemory.map((one) => one.name);
    const first = loaded.length && !loaded.includes(wanted) ? loaded.find((name) => names.includes(name)) : wanted;
    set({ chosen: [state.chosen, first, names[0]].find((name) => names.includes(name)) ?? "" });
    if (!names.length) complain("No models on this machine yet. Download one with the button at the top, or with eaglecpp pull NAME.");
  } catch (error) {
    complain(`Cannot list the server's models: ${error.message}`, loadModels);
  }
}

// The dialog for choosing and downloading models. It shows notices itself, because it covers the page's notices.
export const Models = () => html`
  <dialog id="models" aria-labelledby="models-title">
    <form method="dialog" class="bar"><h2 id="models-title">Models</h2><button class="main">Done</button></form>
    <ul>${state.listed.map((model) => html`<${Model} model=${model}/>`)}</ul>
    <form id="pull" onSubmit=${submit}>
      <label>Download a model<input name="model" placeholder="smollm2, or hf.co/owner/name" spellcheck=${false} autocomplete="off"/></label>
      <button class="main">${state.pulling ? "Cancel" : "Download"}</button>
      <label class="switch"><input name="draft" type="checkbox" defaultChecked/> With a drafter, where one is known for it</label>
    </form>
    ${state.pulling && html`<progress aria-label="Download" value=${state.pulled || undefined}/>`}
    <${Notice}/>
  </dialog>`;

// Shows the parameters, type, size, context and drafter of a model.
function Model({ model }) {
  const { name, details, size, context_length, draft } = model, now = loadedModel(name), isChosen = name === state.chosen;
  const context = now?.context_length ?? context_length, drafter = draft || (now?.drafts && (now.draft?.split(/[\\/]/).pop() || "its own"));
  const facts = [details?.parameter_size, details?.quantization_level, size && bytes(size), context && `context ${context.toLocaleString("en")}`, now && "in memory"];
  return html`
    <li>
      <button class="row" type="button" aria-pressed=${isChosen} disabled=${!answers(model)} onClick=${() => choose(name)}>
        <${Icon} name=${isChosen ? "check" : "box"}/>
        <span>${name} ${drafter && html`<span class="badge">drafter: ${drafter}</span>`}<small>${facts.filter(Boolean).join(" · ")}</small></span>
      </button>
      ${!drafter && !model.file && answers(model) && html`<button type="button" aria-label="Get a drafter for ${name}" disabled=${state.pulling} onClick=${() => pull(name, "auto")}>Get a drafter</button>`}
    </li>`;
}

function choose(chosen) {
  save("model", chosen);
  set({ chosen });
  $("models").close();
}

// Formats a size in the same way as the command line.
function bytes(n) {
  const [size, unit] = [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"]].find(([least]) => n >= least) ?? [1e3, "KB"];
  return `${(n / size).toFixed(n && n < 10 * size ? 1 : 0)} ${unit}`;
}

function submit(event) {
  event.preventDefault();
  const { model, draft } = event.target.elements;
  if (state.pulling) state.pulling.abort();
  else pull(model.value.trim(), draft.checked ? "auto" : undefined);
}

// Downloads a model. draft: "auto" also looks for a known drafter; undefined keeps the model's own drafter.
async function pull(name, draft) {
  if (!name) return;
  set({ pulling: new AbortController(), pulled: 0 });
  try {
    for await (const { status, total, completed } of lines(await request("api/pull", { method: "POST", body: { model: name, draft }, signal: state.pulling.signal }))) {
      if (total) state.pulled = (completed ?? 0) / total;
      say(total ? `${status}: ${bytes(completed ?? 0)} of ${bytes(total)}` : status);
    }
    await loadModels();
    const entered = state.listed.find((one) => one.name === name || one.name === `${name}:latest`);
    say(`${name} is downloaded.${draft && entered && !entered.draft ? " No drafter is known for it." : ""}`);
  } catch (error) {
    if (error.name === "AbortError") say("Cancelled; downloading it again continues from here.");
    else complain(error.message.includes(name) ? error.message : `${name}: ${error.message}`);
  } finally {
    set({ pulling: null });
  }
}
