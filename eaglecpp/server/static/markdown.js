// SPDX-License-Identifier: MIT
// Markdown to DOM nodes. Text becomes text nodes and nothing else, so no answer can bring markup, scripts or requests
// of its own into the page; links go to http, https and mailto only, and pictures become links.

const INLINE = /(`+)([\s\S]*?[^`])\1(?!`)|\*\*([^\s*](?:[\s\S]*?[^\s*])?)\*\*|__([^\s_](?:[\s\S]*?[^\s_])?)__(?!\w)|\*([^\s*](?:[^*]*?[^\s*])?)\*|(?<!\w)_([^\s_](?:[^_]*?[^\s_])?)_(?!\w)|~~([^~]+)~~|!?\[([^\]]*)\]\(([^()\s]+)(?:\s+"[^"]*")?\)|(https?:\/\/[^\s<>()]+[^\s<>().,;:!?'"])/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;

function make(name, ...children) {
  const node = document.createElement(name);
  node.append(...children);
  return node;
}

function link(href, children) {
  if (!/^(https?:|mailto:)/i.test(href)) return make("span", ...children);
  const node = make("a", ...children);
  node.href = href;
  node.rel = "noopener noreferrer nofollow";
  node.target = "_blank";
  return node;
}

export function inline(text, depth = 0) {
  const out = [];
  while (text) {
    const m = depth < 6 ? INLINE.exec(text) : null;
    if (!m) {
      out.push(document.createTextNode(text));
      break;
    }
    if (m.index) out.push(document.createTextNode(text.slice(0, m.index)));
    const deeper = (part) => inline(part, depth + 1);
    if (m[1]) out.push(make("code", m[2].replace(/^ (.*) $/s, "$1")));
    else if (m[3] || m[4]) out.push(make("strong", ...deeper(m[3] || m[4])));
    else if (m[5] || m[6]) out.push(make("em", ...deeper(m[5] || m[6])));
    else if (m[7]) out.push(make("s", ...deeper(m[7])));
    else if (m[9]) out.push(link(m[9], deeper(m[8])));
    else if (m[10]) out.push(link(m[10], [document.createTextNode(m[10])]));
    text = text.slice(m.index + m[0].length);
  }
  return out;
}

function paragraph(lines) {
  const node = make("p");
  lines.forEach((line, i) => {
    if (i) node.append(/ {2}$|\\$/.test(lines[i - 1]) ? make("br") : "\n");
    node.append(...inline(line.replace(/(\s+|\\)$/, "")));
  });
  return node;
}

function code(lines, language) {
  const pre = make("pre", make("code", lines.join("\n")));
  if (language) pre.dataset.language = language;
  pre.tabIndex = 0;
  return pre;
}

function cells(line) {
  return line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((cell) => cell.trim().replace(/\\\|/g, "|"));
}

function table(lines) {
  const row = (name, line) => make("tr", ...cells(line).map((cell) => make(name, ...inline(cell))));
  const node = make("table", make("thead", row("th", lines[0])), make("tbody", ...lines.slice(2).map((l) => row("td", l))));
  return node;
}

function list(lines, depth) {
  const first = ITEM.exec(lines[0]);
  const node = make(/\d/.test(first[2]) ? "ol" : "ul");
  if (/\d/.test(first[2]) && parseInt(first[2]) !== 1) node.start = parseInt(first[2]);
  const indent = first[1].length;
  let item = [];
  const flush = () => item.length && node.append(make("li", ...tight(blocks(item, depth + 1))));
  for (const line of lines) {
    const m = ITEM.exec(line);
    if (m && m[1].length <= indent + 1) {
      flush();
      item = [m[3]];
    } else item.push(line.slice(Math.min(line.search(/\S|$/), indent + 2)));
  }
  flush();
  return node;
}

function tight(nodes) {
  return nodes.length && nodes[0].nodeName === "P" ? [...nodes[0].childNodes, ...nodes.slice(1)] : nodes;
}

function blocks(lines, depth = 0) {
  const out = [];
  let i = 0, held = [];
  const flush = () => {
    if (held.length) out.push(paragraph(held));
    held = [];
  };
  while (i < lines.length) {
    const line = lines[i];
    const fence = /^\s*(`{3,}|~{3,})\s*([\w+#.-]*)/.exec(line);
    const head = /^(#{1,6})\s+(.*?)\s*#*$/.exec(line);
    if (fence) {
      flush();
      const body = [];
      for (i++; i < lines.length && !lines[i].trim().startsWith(fence[1]); i++) body.push(lines[i]);
      i++;
      out.push(code(body, fence[2]));
    } else if (!line.trim()) {
      flush();
      i++;
    } else if (head) {
      flush();
      out.push(make("h" + Math.min(6, head[1].length + 2), ...inline(head[2])));
      i++;
    } else if (/^\s*([-*_])(\s*\1){2,}\s*$/.test(line)) {
      flush();
      out.push(make("hr"));
      i++;
    } else if (/^\s*>/.test(line) && depth < 6) {
      flush();
      const body = [];
      for (; i < lines.length && /^\s*>/.test(lines[i]); i++) body.push(lines[i].replace(/^\s*>\s?/, ""));
      out.push(make("blockquote", ...blocks(body, depth + 1)));
    } else if (ITEM.test(line) && depth < 6) {
      flush();
      const body = [];
      const indent = ITEM.exec(line)[1].length;
      for (; i < lines.length; i++) {
        const inside = lines[i].search(/\S/) > indent || !lines[i].trim();
        const m = ITEM.exec(lines[i]);
        if (!inside && !(m && m[1].length >= indent)) break;
        if (!lines[i].trim() && (i + 1 >= lines.length || !(ITEM.test(lines[i + 1]) || lines[i + 1].search(/\S/) > indent))) break;
        body.push(lines[i]);
      }
      out.push(list(body, depth));
    } else if (line.includes("|") && i + 1 < lines.length && /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/.test(lines[i + 1]) && lines[i + 1].includes("-")) {
      flush();
      const body = [];
      for (; i < lines.length && lines[i].includes("|"); i++) body.push(lines[i]);
      out.push(table(body));
    } else {
      held.push(line);
      i++;
    }
  }
  flush();
  return out;
}

export function render(text) {
  const out = document.createDocumentFragment();
  out.append(...blocks(text.replace(/\r\n?/g, "\n").split("\n")));
  return out;
}

// Wraps the characters of `root` whose flag is set. The rendered text is the source with marks left out, in order, so
// both are walked side by side.
export function colour(root, source, flags) {
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  const nodes = [];
  while (walker.nextNode()) nodes.push(walker.currentNode);
  let at = 0;
  for (const node of nodes) {
    const text = node.data;
    const parts = [];
    let run = "", on = false;
    for (const char of text) {
      let now = on;
      const found = source.indexOf(char, at);
      if (found >= 0 && found - at < 120) {
        now = flags[found];
        at = found + char.length;
      }
      if (now !== on && run) {
        parts.push([run, on]);
        run = "";
      }
      on = now;
      run += char;
    }
    if (run) parts.push([run, on]);
    if (!parts.some((part) => part[1])) continue;
    node.replaceWith(...parts.map(([piece, accepted]) => {
      if (!accepted) return document.createTextNode(piece);
      const span = make("span", piece);
      span.className = "acc";
      return span;
    }));
  }
}
