// SPDX-License-Identifier: MIT
// The server's models: which one answers, what is known of it, downloading.
import { $, button, complain, lines, load, make, request, save, say } from "./dom.js";
import { entry, openMenu } from "./menu.js";

let listed = [];  // of /api/tags
let inMemory = [];  // of /api/ps
let offered = [];  // names of those that answer
let chosen = "";  // one of them
let pulling = null;  // the AbortController of a download
let changed = null;

// onChange: the model that answers, or what is known of it, is another
export function useModels(onChange) {
  changed = onChange;
  $("model").onclick = () => openMenu($("model"), "Model", [...offered.map(drawChoice), entry("download", "Download models", openModels)]);
  $("models-open").onclick = openModels;
  $("pull").onsubmit = (event) => {
    event.preventDefault();
    if (pulling) pulling.abort();
    else pull($("pull-name").value.trim(), $("pull-draft").checked ? "auto" : undefined);
  };
}

function openModels() {
  $("models").showModal();
  drawModels();
}

export const chosenModel = () => chosen;

export const loadedModel = (name = chosen) => inMemory.find((one) => one.name === name);

export const takesImages = () => abilities(listed.find((one) => one.name === chosen)).includes("vision");

const abilities = (model) => model?.capabilities ?? [];

// What a request that says nothing of it gets, of a model in memory; null of another one, which would be loaded for it.
export async function defaults() {
  if (!loadedModel()) return null;
  const told = await (await request(`props?model=${encodeURIComponent(chosen)}`)).json();
  return { ...told.default_generation_settings.params, num_predict: told.default_generation_settings.params.n_predict, num_ctx: told.default_generation_settings.n_ctx };
}

function choose(name) {
  chosen = name;
  $("model").querySelector("span").textContent = name || "No model";
  $("model").ariaLabel = `Model: ${name || "No model"}`;
}

export async function loadModels() {
  const wanted = load("model", "");
  try {
    listed = (await (await request("api/tags")).json()).models;
    inMemory = (await (await request("api/ps")).json()).models;
    // a model that only makes vectors answers nothing
    offered = listed.filter((one) => !abilities(one).length || abilities(one).includes("completion")).map((one) => one.name);
    // What is in memory answers at once; another one is loaded only where somebody picks it.
    const loaded = inMemory.map((one) => one.name);
    const first = loaded.length && !loaded.includes(wanted) ? loaded.find((name) => offered.includes(name)) : wanted;
    choose(offered.includes(first) ? first : offered[0] ?? "");
    if (!offered.length) complain("There is no model on this machine yet. Models, in the list at the left, downloads one; so does eaglecpp pull NAME.");
  } catch (error) {
    complain(`Cannot list the server's models: ${error.message}`);
  }
  drawModels();
  changed();
}

// What is in memory now, after an answer has loaded it.
export async function look() {
  try {
    inMemory = (await (await request("api/ps")).json()).models;
    changed();
  } catch { /* an answer came; what it says of the memory can wait */ }
}

// Parameters, type, size and context of a model, and how it drafts.
function describe(name) {
  const { details, size, context_length: trained, draft } = listed.find((one) => one.name === name) ?? {}, now = loadedModel(name);
  const context = now?.context_length ?? trained;
  const parts = [details?.parameter_size, details?.quantization_level, bytes(size), context && `context ${context.toLocaleString("en")}`, now && "in memory"];
  return { text: parts.filter(Boolean).join(" · "), drafter: draft || (now?.drafts && (now.draft?.split(/[\\/]/).pop() || "its own")) };
}

const badge = (drafter) => make("span", { className: drafter ? "badge" : "soft", textContent: drafter ? `drafter: ${drafter}` : "no drafter" });

function drawChoice(name) {
  const { text, drafter } = describe(name), isChosen = name === chosen;
  const node = entry(isChosen ? "check" : "box", name, () => { choose(name); save("model", name); changed(); }, { role: "menuitemradio", extra: [badge(drafter)] });
  node.ariaChecked = String(isChosen);
  node.children[1].append(make("small", { textContent: text }));
  return node;
}

function drawModels() {
  $("stored").replaceChildren(...listed.map(({ name }) => {
    const { text, drafter } = describe(name);
    const facts = drafter ? `${text} · drafter: ${drafter}` : text;
    return make("li", {}, make("div", {}, name, make("div", { className: "soft", textContent: facts })),
      ...(drafter ? [] : [button("Get a drafter", () => { if (!pulling) pull(name, "auto"); }, { ariaLabel: `Get a drafter for ${name}` })]));
  }));
}

function bytes(n) {
  if (!n) return "";
  return n < 1e9 ? `${Math.round(n / 1e6)} MB` : `${(n / 1e9).toFixed(1)} GB`;
}

// draft: "auto" for a drafter that is known for it; undefined leaves that to the model
async function pull(name, draft) {
  if (!name) return;
  pulling = new AbortController();
  $("pull-go").textContent = "Cancel";
  $("pull-bar").hidden = false;
  $("pull-bar").removeAttribute("value");
  try {
    for await (const { status, total, completed } of lines(await request("api/pull", { method: "POST", body: { model: name, draft }, signal: pulling.signal }))) {
      tell(total ? `${status}: ${bytes(completed) || "0 MB"} of ${bytes(total)}` : status);
      if (total) $("pull-bar").value = (completed ?? 0) / total;
    }
    await loadModels();
    const entered = listed.find((one) => one.name === name || one.name === `${name}:latest`);
    tell(`${name} is here.${draft && entered && !entered.draft ? " No drafter is known for it." : ""}`);
  } catch (error) {
    if (error.name === "AbortError") tell("Cancelled; what is here already is used when you download it again.");
    else tell(`${name}: ${error.message}`, true);
  } finally {
    pulling = null;
    $("pull-go").textContent = "Download";
    $("pull-bar").hidden = true;
  }
}

// Where the dialog is open, the notices behind it cannot be seen.
function tell(text, isBad = false) {
  $("pull-said").textContent = text;
  $("pull-said").className = isBad ? "bad" : "";
  if (!$("models").open) (isBad ? complain : say)(text);
}
