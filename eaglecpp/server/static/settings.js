// SPDX-License-Identifier: MIT
// The settings, which the browser keeps, presets of them, and what of them a request says. The system prompt is the
// conversation's.
import { chat, saveChat } from "./chats.js";
import { $, load, save } from "./dom.js";
import { defaults, loadedModel } from "./models.js";

const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "repeat_penalty", "seed", "num_predict", "num_ctx"];
const TEXTS = ["think", "strategy", "key", "theme"];
const SWITCHES = ["drafting", "compare", "colour"];
const SAVED = [...NUMBERS, "think", "strategy"];  // of a preset, with the system prompt
const BUILT_IN = { "Model's own": {}, Precise: { temperature: "0" }, Balanced: { temperature: "0.7", top_p: "0.9" },
  Creative: { temperature: "1.1", top_p: "0.95", min_p: "0.05" } };

// onChange: called with the name of a switch; onClose: the dialog was closed
export function useSettings(onChange, onClose) {
  for (const name of [...NUMBERS, ...TEXTS]) $(name).value = load(name, "");
  for (const name of SWITCHES) {
    $(name).checked = load(name, $(name).checked);
    $(name).onchange = () => { save(name, $(name).checked); onChange(name); };
  }
  $("setup-open").onclick = openSetup;
  $("setup").onclose = () => {
    for (const name of [...NUMBERS, ...TEXTS]) save(name, $(name).value);
    if (chat()) chat().system = $("system").value;
    saveChat();
    onClose();
  };
  $("setup").onclick = (event) => { if (event.target === $("setup")) $("setup").close(); };
  $("preset").onchange = () => usePreset($("preset").value);
  $("preset-save").onclick = savePreset;
  $("preset-delete").onclick = () => {
    const { [$("preset").value]: gone, ...rest } = load("presets", {});
    save("presets", rest);
    drawPresets();
  };
  $("theme").onchange = showTheme;
  showTheme();
}

const showTheme = () => { document.documentElement.dataset.theme = $("theme").value; };

function openSetup() {
  $("system").value = chat()?.system ?? "";
  drawPresets();
  drawInForce();
  $("setup").showModal();
}

const values = () => Object.fromEntries([...SAVED, "system"].map((name) => [name, $(name).value]).filter(([, value]) => value));

function drawPresets(chosen = "") {
  const own = load("presets", {}), names = [...Object.keys(BUILT_IN), ...Object.keys(own)];
  $("preset").replaceChildren(new Option("Choose …", ""), ...names.map((name) => new Option(name, name)));
  $("preset").value = chosen;
  $("preset-delete").disabled = !(chosen in own);
}

function usePreset(name) {
  const preset = load("presets", {})[name] ?? BUILT_IN[name];
  if (!preset) return;
  for (const field of SAVED) $(field).value = typeof preset[field] === "string" ? preset[field] : "";
  if (typeof preset.system === "string") $("system").value = preset.system;
  drawPresets(name);
}

function savePreset() {
  const name = prompt("Name of the preset; it takes the system prompt, the values and the strategy with it.")?.trim().slice(0, 60);
  if (!name || name in BUILT_IN) return;
  save("presets", { ...load("presets", {}), [name]: values() });
  drawPresets(name);
}

// What the server was started with, as far as it says, and what an empty field means.
async function drawInForce() {
  const now = loadedModel();
  $("in-force").textContent = now ? `In memory: a context of ${now.context_length} tokens, ${now.n_parallel} ${now.n_parallel === 1 ? "conversation" : "conversations"} at a time, ` +
    `strategy ${now.strategy}, ${now.drafts ? "with" : "without"} drafts. ${(now.notices ?? []).join(" ")}` : "The model is not in memory yet.";
  const own = await defaults().catch(() => null);
  for (const name of NUMBERS) $(name).placeholder = inForce(name, own?.[name]);
}

function inForce(name, value) {
  if (name === "seed") return "random";
  if (name === "num_predict" && !(value > 0)) return "no limit";
  return typeof value === "number" ? String(Number(value.toFixed(4))) : "model's own";
}

export const strategy = () => $("strategy").value.trim();

export function options() {
  const given = NUMBERS.filter((name) => $(name).value !== "" && Number.isFinite(Number($(name).value)));
  return Object.fromEntries(given.map((name) => [name, Number($(name).value)]));
}
