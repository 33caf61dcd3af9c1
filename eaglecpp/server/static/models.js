// SPDX-License-Identifier: MIT
// The server's models: which one answers, what is known of it, downloading and deleting.
import { $, button, complain, lines, load, make, request, save, say } from "./dom.js";

let listed = [];  // of /api/tags
let inMemory = [];  // of /api/ps
let capabilities = new Map();  // by name, of /api/show
let pulling = null;  // the AbortController of a download
let changed = null;

// onChange: the model that answers, or what is known of it, is another
export function useModels(onChange) {
  changed = onChange;
  $("model").onchange = () => { save("model", $("model").value); changed(); };
  $("models-open").onclick = () => { $("models").showModal(); drawModels(); };
  $("pull").onsubmit = (event) => {
    event.preventDefault();
    if (pulling) pulling.abort();
    else pull($("pull-name").value.trim());
  };
}

export const loadedModel = (name = $("model").value) => inMemory.find((one) => one.name === name);

export async function takesImages() {
  return (await facts($("model").value)).includes("vision");
}

async function facts(name) {
  if (!capabilities.has(name)) {
    const asked = request("api/show", { method: "POST", body: { model: name } });
    capabilities.set(name, asked.then((answer) => answer.json()).then((told) => told.capabilities ?? [], () => []));
  }
  return capabilities.get(name);
}

export async function loadModels() {
  const wanted = load("model", "");
  try {
    listed = (await (await request("api/tags")).json()).models;
    inMemory = (await (await request("api/ps")).json()).models;
    const loaded = inMemory.map((one) => one.name);
    const names = [...new Set([...listed.map((one) => one.name), ...loaded])];
    const told = await Promise.all(names.map(facts));
    // a model that only makes vectors answers nothing
    const chatting = names.filter((name, i) => !told[i].length || told[i].includes("completion"));
    $("model").replaceChildren(...chatting.map((name) => new Option(name, name)));
    // What is in memory answers at once; another one is loaded only where somebody picks it.
    const first = loaded.length && !loaded.includes(wanted) ? loaded.find((name) => chatting.includes(name)) : wanted;
    if (chatting.includes(first)) $("model").value = first;
    if (!chatting.length) complain("There is no model on this machine yet. Models, above, downloads one; so does eaglecpp pull NAME.");
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

function drawModels() {
  $("stored").replaceChildren(...listed.map(({ name, size, details }) => make("li", {},
    make("span", { textContent: name }), make("span", { className: "soft", textContent: [details?.parameter_size, details?.quantization_level, bytes(size)].filter(Boolean).join(" · ") }),
    button("Delete", () => remove(name), { ariaLabel: `Delete ${name}` }))));
}

const bytes = (n) => (n ? `${(n / 1e9).toFixed(2)} GB` : "");

async function remove(name) {
  if (!confirm(`Delete ${name} from this machine? It would have to be downloaded again.`)) return;
  try {
    await request("api/delete", { method: "DELETE", body: { model: name } });
    capabilities.delete(name);
    await loadModels();
    tell(`${name} was deleted.`);
  } catch (error) {
    tell(`${name} was not deleted: ${error.message}`, true);
  }
}

async function pull(name) {
  if (!name) return;
  pulling = new AbortController();
  $("pull-go").textContent = "Cancel";
  $("pull-bar").hidden = false;
  $("pull-bar").removeAttribute("value");
  try {
    for await (const { status, total, completed } of lines(await request("api/pull", { method: "POST", body: { model: name }, signal: pulling.signal }))) {
      tell(total ? `${status}: ${bytes(completed)} of ${bytes(total)}` : status);
      if (total) $("pull-bar").value = completed / total;
    }
    capabilities.delete(name);
    await loadModels();
    tell(`${name} is here.`);
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
