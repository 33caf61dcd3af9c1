// SPDX-License-Identifier: MIT
// The settings, which the browser keeps, and what of them a request says.
import { $, load, save } from "./dom.js";
import { loadedModel } from "./models.js";

const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "repeat_penalty", "presence_penalty", "frequency_penalty", "seed",
  "num_predict", "num_ctx"];
const TEXTS = ["system", "think", "strategy", "strategy-own", "key"];
const SWITCHES = ["drafting", "compare", "colour"];

// onChange: called with the name of a switch; onClose: the dialog was closed
export function useSettings(onChange, onClose) {
  for (const name of [...NUMBERS, ...TEXTS]) $(name).value = load(name, "");
  for (const name of SWITCHES) {
    $(name).checked = load(name, $(name).checked);
    $(name).onchange = () => { save(name, $(name).checked); onChange(name); };
  }
  const kept = load("strategy", "");
  if (kept && $("strategy").value !== kept) Object.assign($("strategy"), { value: "own" }), $("strategy-own").value ||= kept;
  $("strategy").onchange = drawOwn;
  drawOwn();
  $("setup-open").onclick = () => { drawInForce(); $("setup").showModal(); };
  $("setup").onclose = () => {
    for (const name of [...NUMBERS, ...TEXTS]) save(name, $(name).value);
    onClose();
  };
}

const drawOwn = () => { $("own").hidden = $("strategy").value !== "own"; };

// What the server was started with, as far as it says.
function drawInForce() {
  const now = loadedModel();
  $("in-force").textContent = now ? `In memory: a context of ${now.context_length} tokens, ${now.n_parallel} ${now.n_parallel === 1 ? "conversation" : "conversations"} at a time, ` +
    `strategy ${now.strategy}, ${now.drafts ? "with" : "without"} drafts. ${(now.notices ?? []).join(" ")}` : "The model is not in memory yet.";
}

export const strategy = () => ($("strategy").value === "own" ? $("strategy-own").value.trim() : $("strategy").value);

export function options() {
  const given = NUMBERS.filter((name) => $(name).value !== "" && Number.isFinite(Number($(name).value)));
  return Object.fromEntries(given.map((name) => [name, Number($(name).value)]));
}
