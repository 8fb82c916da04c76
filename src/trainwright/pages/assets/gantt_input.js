"use strict";
/* What mouse, touch, keyboard, window and printer do to the page. */

function listen(page) {
  const on = (id, event, action) => document.getElementById(id)?.addEventListener(event, action);
  on("zoom-in", "click", () => page.zoom(1 / 1.6));
  on("zoom-out", "click", () => page.zoom(1.6));
  on("fit", "click", () => page.fit());
  on("open", "click", () => page.open());
  on("show-critical", "change", (event) => {
    page.options.showCritical = event.target.checked;
    page.requestRedraw();
  });
  on("show-memory", "change", (event) => {
    page.options.showMemory = event.target.checked;
    page.resize();
  });
  on("show-ranks", "input", (event) => {
    event.target.setAttribute("aria-invalid", String(!page.showRanks(event.target.value)));
  });
  on("theme", "change", (event) => {
    document.documentElement.dataset.theme = event.target.value;
    page.restyle();
  });
  page.bars.addEventListener("wheel", (event) => onWheel(page, event), { passive: false });
  page.bars.addEventListener("dblclick", () => page.fit());
  page.bars.addEventListener("keydown", (event) => onKey(page, event));
  page.scroller.addEventListener("scroll", () => page.requestRedraw());
  window.addEventListener("scroll", () => { page.scrolledAt = performance.now(); });
  listenToPointers(page);
  new ResizeObserver(() => page.resize()).observe(page.scroller);
  window.addEventListener("resize", () => page.requestRedraw());  // maybe on a sharper screen
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => page.restyle());
  window.addEventListener("beforeprint", () => page.print(true));
  window.addEventListener("afterprint", () => page.print(false));
}

/** One pointer drags, two pinch. */
function listenToPointers(page) {
  const down = new Map();
  const spread = () => {
    const [a, b] = [...down.values()];
    return { distance: Math.max(Math.abs(a.x - b.x), 8), middle: (a.x + b.x) / 2 };
  };
  page.bars.addEventListener("pointerdown", (event) => {
    down.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
    page.bars.setPointerCapture(event.pointerId);
    page.bars.classList.add("dragging");
  });
  page.bars.addEventListener("pointermove", (event) => {
    const point = { x: event.offsetX, y: event.offsetY }, last = down.get(event.pointerId);
    if (!last) {
      page.hover(point.x, point.y);
      return;
    }
    const before = down.size === 2 ? spread() : null;
    down.set(event.pointerId, point);
    if (before) {
      const now = spread();
      page.zoom(before.distance / now.distance, page.timeAt(now.middle));
    }
    page.pan((last.x - point.x) / page.layout.plotWidth / down.size);
    page.scroller.scrollTop += last.y - point.y;
    page.leave();
  });
  const release = (event) => {
    down.delete(event.pointerId);
    page.bars.classList.toggle("dragging", down.size > 0);
  };
  page.bars.addEventListener("pointerup", release);
  page.bars.addEventListener("pointercancel", release);
  page.bars.addEventListener("pointerleave", () => page.leave());
}

const SCROLL_PAUSE_MS = 250;  // a wheel that scrolls the document goes on doing so for as long

/** Whether the document around the picture should scroll: it is already, or nothing is left to zoom out. */
function isForDocument(page, event) {
  if (event.ctrlKey || event.shiftKey || event.altKey) return false;
  const room = document.documentElement.scrollHeight > document.documentElement.clientHeight;
  if (!room || Math.abs(event.deltaX) > Math.abs(event.deltaY)) return false;
  const scrolling = performance.now() - (page.scrolledAt ?? -Infinity) < SCROLL_PAUSE_MS;
  return scrolling || (event.deltaY > 0 && page.to - page.from >= page.whole);
}

function onWheel(page, event) {
  if (isForDocument(page, event)) return;
  event.preventDefault();
  if (event.altKey) {
    page.scroller.scrollTop += event.deltaY;
    return;
  }
  const pixels = event.deltaMode === 0 ? 1 : 20;
  if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
    page.pan(((event.deltaX || event.deltaY) * pixels) / page.layout.plotWidth);
  } else {
    const speed = event.ctrlKey ? 0.01 : 0.0018;  // a pinch on a touch pad arrives as ctrl + wheel
    page.zoom(Math.exp(event.deltaY * pixels * speed), page.timeAt(event.offsetX));
  }
  page.hover(event.offsetX, event.offsetY);
}

function onKey(page, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const moves = event.shiftKey ? {
    ArrowLeft: () => page.step(-1, 0),
    ArrowRight: () => page.step(1, 0),
    ArrowUp: () => page.step(0, -1),
    ArrowDown: () => page.step(0, 1),
  } : {
    ArrowLeft: () => page.pan(-0.15),
    ArrowRight: () => page.pan(0.15),
    ArrowUp: () => { page.scroller.scrollTop -= 60; },
    ArrowDown: () => { page.scroller.scrollTop += 60; },
  };
  const keys = { ...moves,
    "+": () => page.zoom(1 / 1.6),
    "=": () => page.zoom(1 / 1.6),
    "-": () => page.zoom(1.6),
    "0": () => page.fit(),
    Home: () => page.setView(0, page.to - page.from),
    End: () => page.setView(page.whole, page.to - page.from),
    Escape: () => page.leave(),
  };
  if (!(event.key in keys)) return;
  event.preventDefault();
  keys[event.key]();
}
