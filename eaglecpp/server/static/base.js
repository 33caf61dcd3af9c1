// SPDX-License-Identifier: MIT
// Parts that the whole page shares: the state, controls, notices, browser storage, requests.
import htm from "./vendor/htm.mjs";
import { h, render } from "./vendor/preact.mjs";

const SAID_MS = 8000;
let fading = 0;

export const html = htm.bind(h);
export const $ = (id) => document.getElementById(id);
export const state = {};

// Changes the state. Redraws `state.page`, if it is set.
export function set(changes = {}) {
  Object.assign(state, changes);
  if (state.page) render(h(state.page), document.body);
}

// An icon of vendor/icons.svg. Screen readers ignore it.
export const Icon = ({ name }) => html`<svg class="icon" aria-hidden="true"><use href="static/vendor/icons.svg#${name}"/></svg>`;

// A button that shows only an icon. Its label is shown as a tooltip.
export const IconButton = ({ icon, label, ...more }) => html`
  <button type="button" class="icon-only" aria-label=${label} title=${label} ...${more}><${Icon} name=${icon}/></button>`;

// Returns a stored value, or the default if their types differ.
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
    complain("The browser cannot save settings; they are lost when this window closes.");
  }
}

// Sets a message that only screen readers read out. Other users see the change itself.
export const speak = (spoken) => set({ spoken });

// Shows a notice above the question, also to screen readers. A notice with an error or a button stays until
// it is closed or replaced. retry: action of the button; label: text of the button
export function say(notice, isBad = false, retry = null, label = "Try again") {
  set({ notice, isBad, retry, label });
  clearTimeout(fading);
  if (!isBad && !retry) fading = setTimeout(() => set({ notice: "" }), SAID_MS);
}

function tryAgain() {
  const { retry } = state;
  say("");
  retry();
}

export const Notice = () => html`
  <div class="notice bar ${state.isBad ? "bad" : ""}" role=${state.isBad ? "alert" : "status"}>${state.notice && html`
    <span>${state.notice}</span>
    ${state.retry && html`<button type="button" onClick=${tryAgain}>${state.label}</button>`}
    <${IconButton} icon="x" label="Close the notice" onClick=${() => say("")}/>`}</div>`;

export const complain = (text, retry) => say(text, true, retry);

export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    say("Copied.");
  } catch {
    complain("The browser does not allow this page to copy; select the text instead.");
  }
}

// Replaces the browser's text of a connection error by our own text. Rethrows the error if the user has aborted the
// request.
function inOurWords(error, what) {
  if (error.name === "AbortError") throw error;
  throw new Error(`The server at ${location.host} ${what}; is eaglecpp serve still running?`);
}

// Sends a request to the server of this page. Throws an Error with the server's message.
export async function request(path, { method = "GET", body, signal } = {}) {
  const key = state.settings.key.trim();
  const headers = { "Content-Type": "application/json", ...(key ? { Authorization: "Bearer " + key } : {}) };
  const answer = await fetch(path, { method, headers, signal, body: body && JSON.stringify(body) })
    .catch((error) => inOurWords(error, "does not answer"));
  if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).error ?? answer.statusText);
  return answer;
}

// Yields the objects of a streamed answer, one per line. Throws an Error if an object reports an error.
export async function* lines(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (let done = false; !done;) {
    const read = await reader.read().catch((error) => inOurWords(error, "closed the connection before the end of the answer"));
    done = read.done;
    const parts = (held + (read.value ?? "\n")).split("\n");
    held = parts.pop();
    for (const part of parts.filter((line) => line.trim())) {
      const value = JSON.parse(part);
      if (value.error) throw new Error(value.error);
      yield value;
    }
  }
}
