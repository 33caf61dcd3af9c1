// SPDX-License-Identifier: MIT
// Renders the Markdown, code and formulas of an answer as nodes. No script in the text runs, and nothing is
// loaded: HTML is shown as text, a remote picture becomes a link, and DOMPurify sanitizes the result.
/* global markdownit, DOMPurify, hljs, katex */

// Limits in characters. A model's text may be of any length, and it is rendered again as it grows.
const MAX_CODE = 50_000;  // maximum length of a highlighted code block
const MAX_FORMULA = 4_000, MAX_LINES = 100;  // Maximum length of one formula. A longer text is not a formula.
// Maximum length of all formulas of a text together, and their maximum number. Further formulas are shown as source.
const MAX_SET = 20_000, MAX_FORMULAS = 500;
// Maximum length of a rendered text, and of a rendered text that is still growing. The rest is shown as source.
const MAX_TEXT = 200_000, MAX_LIVE = 40_000;
const DELIMITERS = [["$$", "$$", true], ["\\[", "\\]", true], ["\\(", "\\)", false], ["$", "$", false]];
// MathML needs neither styles nor fonts.
const FORMULA = { output: "mathml", throwOnError: false, errorColor: "currentcolor", strict: "ignore", trust: false, maxExpand: 300 };
const ALLOWED = { RETURN_DOM_FRAGMENT: true, USE_PROFILES: { html: true, mathMl: true }, ADD_TAGS: ["semantics", "annotation"],
  FORBID_TAGS: ["style", "form", "input", "button", "textarea", "select", "dialog", "audio", "video", "picture", "source"],
  FORBID_ATTR: ["style", "id", "name"], ALLOW_DATA_ATTR: false, ALLOW_ARIA_ATTR: false };

const markdown = markdownit({ html: false, linkify: false, breaks: false, highlight });
markdown.block.ruler.before("fence", "formula", formulaBlock, { alt: ["paragraph", "list", "blockquote"] });
markdown.inline.ruler.before("escape", "formula", formulaInline);
markdown.core.ruler.push("headings", headings);
markdown.renderer.rules.formula = (tokens, i) => formula(tokens[i].content, Boolean(tokens[i].meta));
markdown.renderer.rules.image = (tokens, i) => {
  const { escapeHtml } = markdown.utils, src = escapeHtml(tokens[i].attrGet("src")), alt = escapeHtml(tokens[i].content);
  return src.startsWith("data:") ? `<img src="${src}" alt="${alt}">` : `<a href="${src}">${alt || src}</a>`;
};
DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName === "A") Object.assign(node, { target: "_blank", rel: "noopener noreferrer" });
  if (node.tagName === "IMG" && !/^data:image\//.test(node.getAttribute("src"))) node.remove();
  if (node.tagName === "PRE") node.tabIndex = 0;  // the keyboard can scroll an element with a tab index
});

const set = new Map();  // cache of rendered formulas
let nSet = 0, nFormulas = 0;  // number of characters in the text's uncached formulas, and number of its formulas

// isLive: true while the answer is running
export function render(text, isLive = false) {
  nSet = nFormulas = 0;
  const max = isLive ? MAX_LIVE : MAX_TEXT;
  const end = text.length > max ? text.lastIndexOf("\n", max) + 1 || max : text.length;
  const out = DOMPurify.sanitize(markdown.render(text.slice(0, end)), ALLOWED);
  if (end < text.length) out.append(Object.assign(document.createElement("p"), { className: "rest", textContent: text.slice(end) }));
  return out;
}

function highlight(code, language) {
  if (!hljs.getLanguage(language) || code.length > MAX_CODE) return "";
  return hljs.highlight(code, { language, ignoreIllegals: true }).value;
}

function formula(tex, displayMode) {
  const key = `${displayMode}${tex}`;
  if (++nFormulas > MAX_FORMULAS) return asWritten(tex);
  if (!set.has(key)) {
    nSet += tex.length;
    if (nSet > MAX_SET) return asWritten(tex);
    if (set.size > 1000) set.clear();
    try {
      set.set(key, katex.renderToString(tex, { ...FORMULA, displayMode }));
    } catch {
      set.set(key, asWritten(tex));
    }
  }
  return set.get(key);
}

const asWritten = (tex) => `<code>${markdown.utils.escapeHtml(tex)}</code>`;

// Returns true if a mark occurs in the text after `from`. The result is cached, because a search for each unclosed mark
// would take quadratic time.
function comes(state, mark, from) {
  state.marks ??= {};
  state.marks[mark] ??= state.src.lastIndexOf(mark);
  return from <= state.marks[mark];
}

function formulaInline(state, silent) {
  const { src, pos } = state;
  const [open, close, isDisplay] = DELIMITERS.find(([mark]) => src.startsWith(mark, pos)) ?? [];
  if (!open) return false;
  const start = pos + open.length;
  if (!comes(state, close, start)) return false;
  const length = src.slice(start, start + MAX_FORMULA).indexOf(close), end = start + length;
  const tex = src.slice(start, end);
  if (length < 0 || !tex.trim()) return false;
  // The text is not a formula, for example in "$5 and $6".
  if (open === "$" && (/^\s|\s$/.test(tex) || /\d/.test(src[end + 1] ?? ""))) return false;
  if (!silent) Object.assign(state.push("formula", "", 0), { content: tex, meta: isDisplay });
  state.pos = end + close.length;
  return true;
}

// Parses a formula on separate lines.
function formulaBlock(state, first, end, silent) {
  const line = (n) => state.src.slice(state.bMarks[n] + state.tShift[n], state.eMarks[n]);
  const [open, close] = DELIMITERS.slice(0, 2).find(([mark]) => line(first).startsWith(mark)) ?? [];
  if (!open || !comes(state, close, state.bMarks[first] + open.length)) return false;
  let text = line(first).slice(open.length), last = first;
  for (let added = text; !added.includes(close); text += "\n" + added) {
    if (++last >= end || state.sCount[last] < state.blkIndent || last - first > MAX_LINES || text.length > MAX_FORMULA) return false;
    added = line(last);
  }
  if (!text.trimEnd().endsWith(close)) return false;
  if (silent) return true;
  Object.assign(state.push("formula", "", 0), { content: text.trimEnd().slice(0, -close.length), meta: true, block: true });
  state.line = last + 1;
  return true;
}

// Moves an answer's headings below the page's own headings, on two levels without gaps. So users can navigate by
// headings.
function headings({ tokens }) {
  const all = tokens.filter(({ type }) => type.startsWith("heading_")), top = all[0]?.tag;
  for (const token of all) token.tag = token.tag > top ? "h4" : "h3";
}

// Wraps the drafted characters of `root`. runs: pairs [length, isDrafted] over the source. The rendered text is the
// source without its marks and in the same order, so both are walked in parallel.
export function colour(root, source, runs) {
  let nLeft = source.length;  // in an imported file, runs may have any length
  const flags = runs.flatMap(([length, isOn]) => {
    const n = Math.max(0, Math.min(length | 0, nLeft));
    nLeft -= n;
    return Array(n).fill(isOn);
  });
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  const nodes = [];
  for (let node; (node = walker.nextNode());) {
    // for example the white space between rows of a table or lines of a list
    const isBetweenBlocks = /^\s*\n\s*$/.test(node.data) && !node.parentNode.closest("pre");
    if (!isBetweenBlocks && !node.parentNode.closest("math")) nodes.push(node);
  }
  let at = 0;
  for (const node of nodes) {
    const parts = [], begin = /\S[^\n]{0,15}/.exec(node.data);
    // number of characters to skip, which are marks and link addresses
    const ahead = begin ? source.slice(at, at + 4000).indexOf(begin[0]) : -1;
    at += Math.max(0, ahead - (begin?.index ?? 0));
    let isOn = false;
    for (const char of node.data) {
      const found = at + source.slice(at, at + 120).indexOf(char);
      if (found >= at) {
        isOn = flags[found];
        at = found + char.length;
      }
      if (parts.at(-1)?.isOn === isOn) parts.at(-1).text += char;
      else parts.push({ text: char, isOn });
    }
    const spans = parts.map(({ text, isOn }) => isOn ? Object.assign(document.createElement("span"), { className: "acc", textContent: text }) : text);
    if (parts.some((part) => part.isOn)) node.replaceWith(...spans);
  }
}
