"use strict";
/* The picture on paper, in pieces: a page may end after each, where one canvas would be cut anywhere
   or leave the page before it empty. */

const PIECE_HEIGHT = 56;  // least, in CSS pixels, so that pieces are few

const PAGE_HEIGHT = 640;  // of a picture that fits on a page, letter or A4 across, and stays whole

/** Heights at which rows end, with the whole height last. */
function pieceEnds(layout) {
  const rows = layout.sections.flatMap((section) => [section.bars, section.memory]).flat();
  const ends = rows.filter((row) => row.height > 0).map((row) => row.y + row.height + 2);
  const found = [];
  for (const end of ends) {
    if (end - (found.at(-1) ?? 0) >= PIECE_HEIGHT) found.push(end);
  }
  if (layout.height - (found.at(-1) ?? 0) < PIECE_HEIGHT) found.pop();
  return [...found, layout.height];
}

/** What is painted on `canvas`, as canvases one below the other. */
function piecesOf(canvas, layout) {
  const ratio = canvas.height / layout.height;
  let from = 0;
  return pieceEnds(layout).map((end) => {
    const piece = document.createElement("canvas"), top = Math.round(from * ratio);
    piece.width = canvas.width;
    piece.height = Math.round(end * ratio) - top;
    piece.getContext("2d").drawImage(canvas, 0, -top);
    from = end;
    return piece;
  });
}
