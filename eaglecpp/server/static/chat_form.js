// SPDX-License-Identifier: MIT
// What a conversation is: everything that comes from a file or from the browser's storage goes through here before it
// is kept or drawn. Throws an Error that says what is wrong.

// { title, turns }, and where it has one its system prompt
export const asChat = ({ title, turns, system }) => ({ title: asText(title).slice(0, 200), turns: asTurns(turns), ...(system ? { system: asText(system) } : {}) });

// As `asChat`, with the turns before the first one that is broken; null where none is left.
export function goodPart(one) {
  const turns = [];
  try {
    for (const turn of one.turns) turns.push(...asTurns([turn]));
  } catch { /* what comes before it is good */ }
  return turns.length ? { title: typeof one.title === "string" ? one.title.slice(0, 200) : "Conversation", turns } : null;
}

function asText(value) {
  if (typeof value !== "string") throw new Error(`expected a text, found ${JSON.stringify(value)?.slice(0, 60)}`);
  return value;
}

function asList(value, what, isFilled = false) {
  if (!Array.isArray(value) || (isFilled && !value.length)) throw new Error(`expected a list of ${what}, found ${JSON.stringify(value)?.slice(0, 60)}`);
  return value;
}

const asTurns = (turns) => asList(turns, "turns").map(asTurn);

function asTurn(turn) {
  const { role, content, files = [], images = [], answers, born, others = [] } = turn ?? {};
  const read = role === "user" ? { role, content: asText(content),
    files: asList(files, "files").map((one) => ({ name: asText(one?.name), text: asText(one?.text) })),
    images: asList(images, "pictures").map(asText).filter((image) => image.startsWith("data:image/")) }
    : { role: "assistant", answers: asList(answers, "answers", true).map(asAnswer) };
  if (born !== undefined) read.born = Number(born) || 0;
  if (!asList(others, "branches").length) return read;
  read.others = others.map((one) => asTurns(asList(one, "turns of a branch", true)));
  const branches = [read, ...read.others.map((one) => one[0])];
  if (new Set(branches.map((one) => one.born)).size < branches.length) branches.forEach((one, i) => { one.born = i; });
  return read;
}

function asAnswer(answer) {
  const { draft, content, thinking = "", figures = "", error = "", runs = [], used, speedup } = answer ?? {};
  const numbers = Object.entries({ used, speedup }).filter(([, value]) => Number.isFinite(value));
  return { ...Object.fromEntries(numbers), draft: Boolean(draft), content: asText(content), thinking: asText(thinking), figures: asText(figures), error: asText(error),
    runs: asList(runs, "runs").map((one) => [Number(asList(one, "numbers")[0]) || 0, Boolean(one[1])]) };
}
