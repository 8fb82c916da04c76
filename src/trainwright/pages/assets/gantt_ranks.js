"use strict";
/* Which ranks are shown. */

const HIDDEN_ROW = Object.freeze({ y: -1e9, height: 0 });  // of a rank that is filtered out

/** Ranks written as "0-3, 7" as a set; null where the text is empty, undefined where it is not that. */
function parseRanks(text) {
  if (!text.trim()) return null;
  const found = new Set();
  for (const part of text.split(",")) {
    const match = /^\s*(\d{1,5})(?:\s*(?:-|–|\.\.)\s*(\d{1,5}))?\s*$/.exec(part);
    if (!match) return undefined;
    const [first, last] = [Number(match[1]), Number(match[2] ?? match[1])];
    if (last < first) return undefined;
    for (let rank = first; rank <= last; rank++) found.add(rank);
  }
  return found;
}

/** Whether a rank of a panel is shown; a panel with none of the wanted ranks is shown whole. */
function rankFilter(panel, wanted) {
  const has = (rank) => wanted.has(rank);
  if (!wanted || !Array.from({ length: panel.numRanks }, (_, rank) => rank).some(has)) return () => true;
  return has;
}
