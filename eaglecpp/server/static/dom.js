// SPDX-License-Identifier: MIT
// What every part of the page uses: elements, what the browser keeps, notices, requests.

const SAID_MS = 8000;
let fading = 0;

export const $ = (id) => document.getElementById(id);

export function make(name, attributes = {}, ...children) {
  const node = Object.assign(document.createElement(name), attributes);
  node.append(...children);
  return node;
}

export const button = (textContent, onclick, more = {}) => make("button", { type: "button", textContent, onclick, ...more });

// One of vendor/icons.svg, which says nothing to a screen reader.
export function icon(name) {
  const [svg, use] = ["svg", "use"].map((kind) => document.createElementNS("http://www.w3.org/2000/svg", kind));
  use.setAttribute("href", `static/vendor/icons.svg#${name}`);
  svg.classList.add("icon");
  svg.setAttribute("aria-hidden", "true");
  svg.append(use);
  return svg;
}

// A button that is only an icon; its label is its tooltip.
export function iconButton(name, ariaLabel, onclick, more = {}) {
  const node = make("button", { type: "button", className: "icon-only", ariaLabel, title: ariaLabel, onclick, ...more });
  node.append(icon(name));
  return node;
}

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
export const speak = (text) => { $("spoken").textContent = text; };

// A notice over the page, which screen readers say. What went wrong stays until something else is said.
export function say(text, isBad = false) {
  $("status").className = isBad ? "bad" : "";
  $("status").role = isBad ? "alert" : "status";
  $("status").textContent = text;
  clearTimeout(fading);
  if (!isBad) fading = setTimeout(() => { $("status").textContent = ""; }, SAID_MS);
}

export const complain = (text) => say(text, true);

export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    say("Copied.");
  } catch {
    complain("The browser does not allow this page to copy.");
  }
}

// A request to the server this page came from. Throws an Error with what the server says.
export async function request(path, { method = "GET", body, signal } = {}) {
  const key = $("key").value.trim();
  const headers = { "Content-Type": "application/json", ...(key ? { Authorization: "Bearer " + key } : {}) };
  const answer = await fetch(path, { method, headers, signal, body: body && JSON.stringify(body) });
  if (!answer.ok) throw new Error((await answer.json().catch(() => ({}))).error ?? answer.statusText);
  return answer;
}

// The objects of a streamed answer, one a line. Throws where one of them is an error.
export async function* lines(answer) {
  const reader = answer.body.getReader();
  const decoder = new TextDecoder();
  let held = "";
  for (let done = false; !done;) {
    const read = await reader.read();
    done = read.done;
    held += decoder.decode(read.value, { stream: !done }) + (done ? "\n" : "");
    const parts = held.split("\n");
    held = parts.pop();
    for (const part of parts) {
      if (!part.trim()) continue;
      const told = JSON.parse(part);
      if (told.error) throw new Error(told.error);
      yield told;
    }
  }
}
