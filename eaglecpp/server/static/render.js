// SPDX-License-Identifier: MIT
// Markdown, code and formulas of an answer as nodes. Whatever the text says, no script of it runs, and it loads
// nothing: HTML in it is shown as text, a picture elsewhere is a link, and DOMPurify looks at all that is left.
/* global markdownit, DOMPurify, hljs, katex */

// What a model says has no bounds, and it is laid out again with its pieces as they come. In characters:
const MAX_CODE = 50_000;  // that are highlighted
const MAX_FORMULA = 4_000, MAX_LINES = 100;  // of one formula: what has no end so soon is none
const MAX_SET = 20_000, MAX_FORMULAS = 500;  // of the formulas of a text, and how many: more are shown as they were written
const MAX_TEXT = 200_000, MAX_LIVE = 40_000;  // that are laid out, and while more is coming; what is behind is shown as it is
const DELIMITERS = [["$$", "$$", true], ["\\[", "\\]", true], ["\\(", "\\)", false], ["$", "$", false]];
// no styles and no fonts are needed for MathML
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
  if (node.tagName === "PRE") node.tabIndex = 0;  // it scrolls, with the keyboard as well
});

const set = new Map();  // formulas, as they were set before
let nSet = 0, nFormulas = 0;  // of this text: characters that were not, and formulas

// isLive: whether more is coming
export function render(text, isLive = false) {
  nSet = nFormulas = 0;
  const most = isLive ? MAX_LIVE : MAX_TEXT;
  const end = text.length > most ? text.lastIndexOf("\n", most) + 1 || most : text.length;
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

// Whether a mark is still to come. Many that have no end would be looked for at each of them.
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
  if (open === "$" && (/^\s|\s$/.test(tex) || /\d/.test(src[end + 1] ?? ""))) return false;  // $5 and $6
  if (!silent) Object.assign(state.push("formula", "", 0), { content: tex, meta: isDisplay });
  state.pos = end + close.length;
  return true;
}

// A formula on lines of its own, whatever stands at their beginnings.
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

// Headings of an answer are below the page's own, in two levels: none is left out for those who go from one to the next.
function headings({ tokens }) {
  const found = tokens.filter((one) => one.type.startsWith("heading_")), top = found[0]?.tag;
  for (const token of found) token.tag = token.tag > top ? "h4" : "h3";
}

// Wraps the characters of `root` that were drafted. runs: [length, whether it was], over the source. The rendered text
// is the source with marks left out, in order, so both are walked side by side.
export function colour(root, source, runs) {
  let nLeft = source.length;  // a file of conversations may say anything
  const flags = runs.flatMap(([length, isOn]) => {
    const n = Math.max(0, Math.min(length | 0, nLeft));
    nLeft -= n;
    return Array(n).fill(isOn);
  });
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  const nodes = [];
  for (let node; (node = walker.nextNode());) {
    const isBetweenBlocks = /^\s*\n\s*$/.test(node.data) && !node.parentNode.closest("pre");  // rows of a table, lines of a list
    if (!isBetweenBlocks && !node.parentNode.closest("math")) nodes.push(node);
  }
  let at = 0;
  for (const node of nodes) {
    const parts = [], begin = /\S[^\n]{0,15}/.exec(node.data);
    const ahead = begin ? source.slice(at, at + 4000).indexOf(begin[0]) : -1;  // behind marks, and addresses of links
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
