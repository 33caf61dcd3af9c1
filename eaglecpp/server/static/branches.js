// SPDX-License-Identifier: MIT
// The turns of a conversation, `one`. All turns ever made are kept, in order, so that an edit loses none.
// Each turn has the index of its predecessor, `before`, and of its shown successor, `next`; the conversation
// has the `next` of the first.

export function shown(one) {
  const turns = [];
  for (let at = one?.next; at !== undefined; at = one.turns[at].next) turns.push(one.turns[at]);
  return turns;
}

// Replaces the shown turn at the index, and all after it, by a turn.
export function addTurn(one, index, turn) {
  turn.before = one.turns.indexOf(shown(one)[index - 1]);
  (one.turns[turn.before] ?? one).next = one.turns.push(turn) - 1;
}

// Returns all versions of a turn, including itself.
export const versions = (one, turn) => one.turns.filter(({ before }) => before === turn.before);

export function showTurn(one, turn) {
  (one.turns[turn.before] ?? one).next = one.turns.indexOf(turn);
}

// Checks that a stored conversation is such a tree.
export function isTree({ turns, next }) {
  const isBehind = (at, one) => one === undefined || (one > at && one in turns);
  return isBehind(-1, next) && turns.every((turn, at) => turn.before < at && (turn.before === -1 || turn.before in turns) && isBehind(at, turn.next));
}
