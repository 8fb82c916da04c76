"use strict";
/* What a reader does with the page: sort and copy tables, pick a plan, choose a theme. */

function say(words) { document.getElementById("said").textContent = words; }

// -- tables ----------------------------------------------------------------------------------------

function valueOf(row, column) {
  const text = row.cells[column].dataset.value, number = Number(text);
  return text === "" || Number.isNaN(number) ? text : number;
}

/** Numbers by size, words by letters, what is empty last. */
function compare(one, other) {
  if (one === "" || other === "") return (one === "") - (other === "");
  const numbers = typeof one === "number" && typeof other === "number";
  return numbers ? one - other : String(one).localeCompare(String(other), "en", { numeric: true });
}

function sortBy(table, header) {
  const ascending = header.getAttribute("aria-sort") !== "ascending";
  const column = header.cellIndex, body = table.tBodies[0];
  const rows = [...body.rows].sort((one, other) => {
    const a = valueOf(one, column), b = valueOf(other, column);
    const sign = ascending || a === "" || b === "" ? 1 : -1;
    return sign * compare(a, b);
  });
  for (const other of table.tHead.rows[0].cells) other.setAttribute("aria-sort", "none");
  header.setAttribute("aria-sort", ascending ? "ascending" : "descending");
  body.append(...rows);
  say(`sorted by ${header.textContent}, ${ascending ? "ascending" : "descending"}`);
}

/** A field of CSV; text that a spreadsheet would take for a formula is marked as text. */
function csvField(text) {
  const isNumber = text !== "" && !Number.isNaN(Number(text));
  const safe = !isNumber && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

function csvOf(table) {
  const keys = [...table.tHead.rows[0].cells].map((header) => header.dataset.key);
  const rows = [...table.tBodies[0].rows].map((row) => (
    [...row.cells].map((cell) => cell.dataset.value)));
  return [keys, ...rows].map((row) => row.map(csvField).join(",")).join("\r\n") + "\r\n";
}

async function copy(text, button) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  window.copied = text;
  button.textContent = "Copied";
  say("copied");
  setTimeout(() => { button.textContent = before; }, 1500);
}

for (const table of document.querySelectorAll("table.sortable")) {
  for (const header of table.tHead.rows[0].cells) {
    header.querySelector("button").addEventListener("click", () => sortBy(table, header));
  }
}
for (const button of document.querySelectorAll("button.copy")) {
  button.addEventListener("click", () => (
    copy(csvOf(button.closest(".table").querySelector("table")), button)));
}
for (const button of document.querySelectorAll("button.copy-code")) {
  button.addEventListener("click", () => (
    copy(button.parentElement.querySelector("pre").textContent, button)));
}

/* A change is a command to copy; inside another page of ours, which then asks for it, a move. */
const isFramed = window.parent !== window;
if (isFramed) document.documentElement.dataset.framed = "yes";  // heading and figures stand above
for (const button of document.querySelectorAll("button.copy-command")) {
  if (isFramed) {
    button.textContent = "Try";
    button.setAttribute("aria-label", button.getAttribute("aria-label").replace("Copy the command", "Try"));
  }
  button.addEventListener("click", () => {
    if (isFramed) window.parent.postMessage({ options: button.dataset.options }, location.origin);
    else copy(button.dataset.command, button);
  });
}

// -- folded sections: what a link leads to is open -------------------------------------------------

function unfold() {
  const aimed = location.hash.length > 1 && document.getElementById(location.hash.slice(1));
  const details = aimed && aimed.querySelector(":scope > details");
  if (details) details.open = true;
}

window.addEventListener("hashchange", unfold);
for (const link of document.querySelectorAll("nav a")) link.addEventListener("click", () => setTimeout(unfold));
unfold();

// -- the scatter -----------------------------------------------------------------------------------

function pick(figure, mark) {
  for (const other of figure.querySelectorAll(".mark")) {
    other.setAttribute("aria-pressed", String(other === mark));
  }
  for (const facts of figure.querySelectorAll(".pick")) {
    facts.hidden = facts.dataset.pick !== mark.dataset.pick;
  }
}

const NEAR_PX = 11;

/** Of the marks under the pointer the nearest; the one after it where that is picked already. */
function markAt(figure, { clientX, clientY }) {
  const near = [...figure.querySelectorAll(".mark")].map((mark) => {
    const box = mark.querySelector(".target").getBoundingClientRect();
    const x = box.x + box.width / 2 - clientX, y = box.y + box.height / 2 - clientY;
    return { mark, distance: Math.hypot(x, y) };
  }).filter(({ distance }) => distance <= NEAR_PX).sort((a, b) => a.distance - b.distance);
  const picked = near.findIndex(({ mark }) => mark.getAttribute("aria-pressed") === "true");
  return near.length ? near[(picked + 1) % near.length].mark : null;
}

for (const figure of document.querySelectorAll("figure.scatter")) {
  figure.querySelector(".plane").addEventListener("click", (event) => {
    const mark = markAt(figure, event);
    if (mark) pick(figure, mark);
  });
  for (const mark of figure.querySelectorAll(".mark")) {
    mark.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      pick(figure, mark);
    });
  }
}

// -- the page --------------------------------------------------------------------------------------

document.getElementById("theme").addEventListener("change", (event) => {
  document.documentElement.dataset.theme = event.target.value;
});
window.addEventListener("beforeprint", () => {
  for (const details of document.querySelectorAll("details")) details.open = true;
});
if (!document.getElementById("data")) document.documentElement.dataset.ready = "yes";
