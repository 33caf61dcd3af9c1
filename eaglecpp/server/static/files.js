// SPDX-License-Identifier: MIT
// Files and pictures that go with a question: chosen, dropped or pasted.
import { $, complain, iconButton, make } from "./dom.js";
import { chosenModel } from "./models.js";

const MAX_TEXT = 256 * 1024;  // bytes; more than fits in most contexts
const MAX_SIDE = 1024;  // pixels; models make pictures smaller than that anyway
let held = { files: [], images: [] };
let takesImages = () => false;

// takes: whether the chosen model reads pictures
export function useFiles(takes) {
  takesImages = takes;
  $("attach").onclick = () => $("attach-file").click();
  $("attach-file").onchange = () => {
    add([...$("attach-file").files]);
    $("attach-file").value = "";
  };
  $("question").addEventListener("paste", (event) => {
    if (!event.clipboardData.files.length) return;
    event.preventDefault();
    add([...event.clipboardData.files]);
  });
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();  // the browser would leave this page for the file
    add([...event.dataTransfer.files]);
  });
}

// What is attached, which the question takes with it.
export function takeFiles() {
  const taken = held;
  hold();
  return taken;
}

export function hold({ files = [], images = [] } = {}) {
  held = { files: [...files], images: [...images] };
  drawHeld();
}

async function add(files) {
  for (const file of files) {
    try {
      if (file.type.startsWith("image/") && file.type !== "image/svg+xml") held.images.push(await readImage(file));
      else held.files.push({ name: file.name, text: await readText(file) });
    } catch (error) {
      complain(`${file.name}: ${error.message}`);
    }
  }
  drawHeld();
  $("question").focus();
}

async function readText(file) {
  if (file.size > MAX_TEXT) throw new Error(`it has ${Math.ceil(file.size / 1024)} KiB, at most ${MAX_TEXT / 1024} are read`);
  const bytes = await file.arrayBuffer();
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    if (!text.includes("\0")) return text;
  } catch { /* the same reason */ }
  throw new Error("it is not text in UTF-8; only text and pictures can be read");
}

async function readImage(file) {
  if (!takesImages()) throw new Error(`${chosenModel() || "the model"} does not read pictures; choose a model that does`);
  let picture;
  try {
    picture = await createImageBitmap(file);
  } catch {
    throw new Error("the browser cannot read this picture");
  }
  const scale = Math.min(1, MAX_SIDE / Math.max(picture.width, picture.height));
  const canvas = make("canvas", { width: Math.ceil(scale * picture.width), height: Math.ceil(scale * picture.height) });
  const on = canvas.getContext("2d");
  on.fillStyle = "#fff";  // JPEG has no transparency
  on.fillRect(0, 0, canvas.width, canvas.height);
  on.drawImage(picture, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/jpeg", 0.9);
}

function drawHeld() {
  const without = (list, one) => () => { list.splice(list.indexOf(one), 1); drawHeld(); $("question").focus(); };
  $("held").replaceChildren(
    ...held.files.map((one) => make("li", {}, one.name, iconButton("x", `Remove ${one.name}`, without(held.files, one)))),
    ...held.images.map((one, i) => make("li", {}, drawImage(one, i), iconButton("x", `Remove picture ${i + 1}`, without(held.images, one)))));
}

const drawImage = (src, i) => make("img", { src, alt: `Picture ${i + 1}` });

// What a question carries, below it.
export function drawFiles({ files = [], images = [] }) {
  return [...files.map((one) => make("details", {}, make("summary", { textContent: one.name }), make("pre", { textContent: one.text, tabIndex: 0 }))),
    ...images.map(drawImage)];
}

// A question as a message of Ollama's API: files are quoted behind a fence that none of their lines ends.
export function asMessage({ content, files = [], images = [] }) {
  const quoted = files.map(({ name, text }) => {
    const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((run) => run.length));
    const fence = "`".repeat(longest + 1);
    return `${name}:\n${fence}\n${text}\n${fence}\n\n`;
  });
  const out = { role: "user", content: quoted.join("") + content };
  return images.length ? { ...out, images: images.map((url) => url.slice(url.indexOf(",") + 1)) } : out;
}
