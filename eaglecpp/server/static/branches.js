// SPDX-License-Identifier: MIT
// A conversation's turns and what was there before a turn was edited or answered again. Nothing is lost: the
// turn that begins a branch keeps the other branches, each with all that followed, as `others`.

// Puts `turn` in place of the turn at `index` and all behind it, which stay as another branch.
export function fork(turns, index, turn) {
  const tail = turns.splice(index);
  if (tail.length) {
    const { others = [], ...first } = tail[0];
    turn.others = [...others, [Object.assign(first, { born: first.born ?? 0 }), ...tail.slice(1)]];
    turn.born = 1 + Math.max(...turn.others.map((one) => one[0].born));
  }
  turns.push(turn);
}

// Which branch is shown at a turn, from 1, and how many there are.
export function branch(turn) {
  const born = (turn.others ?? []).map((one) => one[0].born);
  return { at: 1 + born.filter((one) => one < turn.born).length, count: 1 + born.length };
}

// Shows the branch before (-1) or behind (1) the one that is shown at a turn.
export function turnTo(turns, index, step) {
  const { at, count } = branch(turns[index]);
  if (at + step < 1 || at + step > count) return;
  const { others, ...first } = turns[index];
  const sorted = [...others].sort((a, b) => a[0].born - b[0].born);
  const wanted = sorted[at + step - (step > 0 ? 2 : 1)];
  const tail = [first, ...turns.splice(index).slice(1)];
  const [head, ...rest] = wanted;
  turns.push({ ...head, others: [...others.filter((one) => one !== wanted), tail] }, ...rest);
}
