// SPDX-License-Identifier: MIT
// What every part of the page uses: the state that all is drawn from, controls, notices, what the browser keeps, requests.
import htm from "./vendor/htm.mjs";
import { h, render } from "./vendor/preact.mjs";

const SAID_MS = 8000;
let fading = 0;

export const html = htm.bind(h);
export const $ = (id) => document.getElementById(id);
export const state = {};

// Changes the state; `state.page`, once it is there, is drawn anew.
export function set(changes = {}) {
  Object.assign(state, changes);
  if (state.page) render(h(state.page), document.body);
}

// One of vendor/icons.svg, which says nothing to a screen reader.
export const Icon = ({ name }) => html`<svg class="icon" aria-hidden="true"><use href="static/vendor/icons.svg#${name}"/></svg>`;

// A button that is only an icon; its label is its tooltip.
export const IconButton = ({ icon, label, ...more }) => html`
  <button type="button" class="icon-only" aria-label=${label} title=${label} ...${more}><${Icon} name=${icon}/></button>`;

// What the browser keeps of that name, if it is of the kind that is expected.
export function load(name, otherwise) {
  try {
    const value = JSON.parse(localStorage.getItem("eaglecpp." + name)) ?? otherwise;
    return typeof value === typeof otherwise && Array.isArray(value) === Array.isArray(otherwise) ? value : otherwise;
  } catch {
    return otherwise;
  }
}

export function save(name, value) {
  try {
    localStorage.setItem("eaglecpp." + name, JSON.stringify(value));
  } catch {
    complain("The browser does not keep settings: they end with this window.");
  }
}

// What only screen readers say: everybody else sees it.
export const speak = (spoken) => set({ spoken });

// A notice above the question, which screen readers say. What went wrong stays until it is closed or something else is said.
// retry: what "Try again" does
export function say(notice, isBad = false, retry = null) {
  set({ notice, isBad, retry });
  clearTimeout(fading);
  if (!isBad) fading = setTimeout(() => set({ notice: "" }), SAID_MS);
}

function tryAgain() {
  const { retry } = state;
  say("");
  retry();
}

export const Notice = () => html`
  <div class="notice bar ${state.isBad ? "bad" : ""}" role=${state.isBad ? "alert" : "status"}>${state.notice && html`
    <span>${state.notice}</span>
    ${state.retry && html`<button type="button" onClick=${tryAgain}>Try again</button>`}
    <${IconButton} icon="x" label="Close the notice" onClick=${() => say("")}/>`}</div>`;

export const complain = (text, retry) => say(text, true, retry);

export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    say("Copied.");
  } catch {
    complain("The browser does not allow this page to copy.");
  }
}

// Of what the browser says of a connection: the words of this page. An end that the user wanted stays.
function inOurWords(error, what) {
  if (error.name === "AbortError") throw error;
  throw new Error(`The server at ${location.host} ${what}; is eaglecpp serve still running?`);
}

// A request to the server this page came from. Throws an Error with what the server says.
export async function request(path, { method = "GET", body, signal } = {}) {
  const key = state.settings.key.trim();
  const headers = { "Content-Type": "application/json", ...(key ? { Authorization: "Bearer " + key } : {}) };
  const answer = await fetch(path, { method, headers, signal, body: body && JSON.stringify(body) })
    .catch((error) => inOurWords(error, "does not answer"));
  if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).error ?? answer.statusText);
  return answer;
}

// The objects of a streamed answer, one a line. Throws where one of them is an error.
export async function* lines(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (let done = false; !done;) {
    const read = await reader.read().catch((error) => inOurWords(error, "ended in the middle of the answer"));
    done = read.done;
    const parts = (held + (read.value ?? "\n")).split("\n");
    held = parts.pop();
    for (const part of parts.filter((one) => one.trim())) {
      const told = JSON.parse(part);
      if (told.error) throw new Error(told.error);
      yield told;
    }
  }
}
