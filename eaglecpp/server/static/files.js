// SPDX-License-Identifier: MIT
// Files and pictures of a question. The user chooses, drops or pastes them.
import { $, complain, html, IconButton, set, state } from "./base.js";
import { takesImages } from "./models.js";

const MAX_TEXT = 256 * 1024;  // Maximum bytes of a text file. Most contexts are shorter.
const MAX_SIDE = 1024;  // Maximum pixels of a picture's longer side. Models scale larger pictures down anyway.

Object.assign(state, { files: [], images: [] });  // attachments of the question in the input field
document.ondragover = (event) => event.preventDefault();
document.ondrop = document.onpaste = (event) => {
  const { files } = event.dataTransfer ?? event.clipboardData;
  if (files.length) event.preventDefault();  // otherwise the browser would leave this page and open the dropped file
  if (files.length) attach([...files]);
};

export async function attach(files) {
  for (const file of files) {
    try {
      if (file.type.startsWith("image/") && file.type !== "image/svg+xml") state.images = [...state.images, await readImage(file)];
      else state.files = [...state.files, { name: file.name, text: await readText(file) }];
    } catch (error) {
      complain(`${file.name}: ${error.message}`);
    }
  }
  set();
  $("question").focus();
}

async function readText(file) {
  if (file.type === "application/pdf") throw new Error("PDF files are not supported; paste the text");
  if (file.size > MAX_TEXT) throw new Error(`it has ${Math.ceil(file.size / 1024)} KiB, the maximum is ${MAX_TEXT / 1024} KiB`);
  const bytes = await file.arrayBuffer();
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    if (!text.includes("\0")) return text;
  } catch { /* the check below rejects the file */ }
  throw new Error("it is not UTF-8 text; attach text or pictures");
}

async function readImage(file) {
  if (!takesImages()) throw new Error(`${state.chosen || "the model"} does not support pictures; choose a model that does`);
  let picture;
  try {
    picture = await createImageBitmap(file);
  } catch {
    throw new Error("the browser cannot read this picture; use another format");
  }
  const scale = Math.min(1, MAX_SIDE / Math.max(picture.width, picture.height));
  const canvas = Object.assign(document.createElement("canvas"), { width: Math.ceil(scale * picture.width), height: Math.ceil(scale * picture.height) });
  const on = canvas.getContext("2d");
  on.fillStyle = "#fff";  // JPEG has no transparency, so the background is white
  on.fillRect(0, 0, canvas.width, canvas.height);
  on.drawImage(picture, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/jpeg", 0.9);
}

const Picture = ({ src, i }) => html`<img src=${src} alt="Picture ${i + 1}"/>`;

// Shows the attachments of the question in the input field, with buttons to remove them.
export function Attached() {
  const without = (name, at) => () => { set({ [name]: state[name].filter((one, i) => i !== at) }); $("question").focus(); };
  return html`
    <ul id="held" aria-label="Attached">
      ${state.files.map(({ name }, i) => html`<li class="chip">${name}<${IconButton} icon="x" label="Remove ${name}" onClick=${without("files", i)}/></li>`)}
      ${state.images.map((src, i) => html`<li class="chip"><${Picture} src=${src} i=${i}/><${IconButton} icon="x" label="Remove picture ${i + 1}" onClick=${without("images", i)}/></li>`)}
    </ul>`;
}

// Shows the attachments of a sent question.
export const Files = ({ files = [], images = [] }) => html`
  ${files.map(({ name, text }) => html`<details><summary>${name}</summary><pre tabindex="0">${text}</pre></details>`)}
  ${images.map((src, i) => html`<${Picture} src=${src} i=${i}/>`)}`;

// Converts a question to a message of Ollama's API. Each file is quoted in a fence that is longer than any fence in the
// file.
export function asMessage({ content, files = [], images = [] }) {
  const quoted = files.map(({ name, text }) => {
    const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((run) => run.length));
    const fence = "`".repeat(longest + 1);
    return `${name}:\n${fence}\n${text}\n${fence}\n\n`;
  });
  const out = { role: "user", content: quoted.join("") + content };
  return images.length ? { ...out, images: images.map((url) => url.slice(url.indexOf(",") + 1)) } : out;
}
