// SPDX-License-Identifier: MIT
// The turns of a conversation, `one`. It has all that were ever made, in that order, so that none is lost by an edit: a turn says
// which one it comes behind, `before`, and which of those behind it is shown, `next`; the conversation says it of the first.

export function shown(one) {
  const turns = [];
  for (let at = one?.next; at !== undefined; at = one.turns[at].next) turns.push(one.turns[at]);
  return turns;
}

// Puts a turn in place of what is shown at the index and behind it.
export function addTurn(one, index, turn) {
  turn.before = one.turns.indexOf(shown(one)[index - 1]);
  (one.turns[turn.before] ?? one).next = one.turns.push(turn) - 1;
}

// Those that are in the place of a turn, itself among them.
export const versions = (one, turn) => one.turns.filter(({ before }) => before === turn.before);

export function showTurn(one, turn) {
  (one.turns[turn.before] ?? one).next = one.turns.indexOf(turn);
}

// Whether what the browser gives back is turns as above.
export function isTree({ turns, next }) {
  const isBehind = (at, one) => one === undefined || (one > at && one in turns);
  return isBehind(-1, next) && turns.every((turn, at) => turn.before < at && (turn.before === -1 || turn.before in turns) && isBehind(at, turn.next));
}
