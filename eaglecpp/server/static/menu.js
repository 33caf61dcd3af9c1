// SPDX-License-Identifier: MIT
// The menu beside a button: one element for all of them, filled when it opens.
import { $, icon, make } from "./dom.js";

const GAP = 4;  // pixels between the button and the menu, and around it

// name: of the icon; more: attributes and what else the entry shows
export function entry(name, label, onclick, { extra = [], ...more } = {}) {
  const node = make("button", { type: "button", role: "menuitem", tabIndex: -1, ...more,
    onclick: () => { $("popup").hidePopover(); onclick(); } }, make("span", {}, label), ...extra);
  node.prepend(icon(name));
  return node;
}

export function openMenu(from, label, entries) {
  const popup = $("popup");
  popup.replaceChildren(...entries);
  popup.ariaLabel = label;
  popup.showPopover();
  const { left, bottom, top } = from.getBoundingClientRect(), { width, height } = popup.getBoundingClientRect();
  popup.style.left = `${Math.max(GAP, Math.min(left, innerWidth - width - GAP))}px`;
  popup.style.top = `${bottom + height + GAP < innerHeight ? bottom + GAP : Math.max(GAP, top - height - GAP)}px`;
  (popup.querySelector("[aria-checked=true]") ?? popup.firstChild).focus();
}

export function useMenus() {
  $("popup").onkeydown = (event) => {
    const all = [...$("popup").children], at = all.indexOf(document.activeElement);
    const next = { ArrowDown: at + 1, ArrowUp: at - 1 + all.length, Home: 0, End: all.length - 1 }[event.key];
    if (event.key === "Tab") $("popup").hidePopover();
    if (next === undefined) return;
    event.preventDefault();
    all[next % all.length].focus();
  };
}
