// SPDX-License-Identifier: MIT
// The turns of a conversation. The code calls the conversation `one`. An edit loses no turn, because `turns` keeps all
// turns in order of creation. Each turn has the index `before` of its predecessor, and the index `next` of its shown
// successor. The conversation's own `next` is the index of its first shown turn.

export function shown(one) {
  const turns = [];
  for (let at = one?.next; at !== undefined; at = one.turns[at].next) turns.push(one.turns[at]);
  return turns;
}

// Replaces the shown turn at `index` and all turns after it by `turn`.
export function addTurn(one, index, turn) {
  turn.before = one.turns.indexOf(shown(one)[index - 1]);
  (one.turns[turn.before] ?? one).next = one.turns.push(turn) - 1;
}

// Returns all versions of a turn, including the turn itself.
export const versions = (one, turn) => one.turns.filter(({ before }) => before === turn.before);

export function showTurn(one, turn) {
  (one.turns[turn.before] ?? one).next = one.turns.indexOf(turn);
}

// Checks that a stored conversation is a valid tree of turns.
export function isTree({ turns, next }) {
  const isBehind = (at, one) => one === undefined || (one > at && one in turns);
  return isBehind(-1, next) && turns.every((turn, at) => turn.before < at && (turn.before === -1 || turn.before in turns) && isBehind(at, turn.next));
}
