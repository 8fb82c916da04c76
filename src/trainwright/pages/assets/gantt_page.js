"use strict";
/* The page: what is in view, which action is pointed at, and what is said about it. */

const MIN_VIEW_SHARE = 1e-6;  // of the whole span: the closest zoom
const MOST_BARS = 80;  // of a rank beside each other that can be told apart

class Page {
  constructor(config, panels) {
    this.config = config;
    this.panels = panels;
    this.scroller = document.getElementById("scroller");
    this.content = document.getElementById("content");
    this.bars = document.getElementById("bars");
    this.overlay = document.getElementById("overlay");
    this.tip = document.getElementById("tip");
    this.pieces = document.getElementById("pieces");
    this.painter = new Painter(this.bars, config);
    this.whole = Math.max(...panels.map((panel) => panel.makespan)) || 1;
    this.options = { showCritical: true, showMemory: true, ranks: null };
    this.selected = null;  // { section, i }
    this.isPrinting = false;
    this.performance = { redraws: 0, lastRedrawMs: 0, counters: {} };
    this.open();
    listen(this);
    this.restyle();
  }

  // -- what is in view ---------------------------------------------------------------------------

  fit() {
    this.from = 0;
    this.to = this.whole;
    this.scroller.scrollTop = 0;
    this.requestRedraw();
  }

  /** All of a short schedule; of a long one, whose whole is a band, the warm-up of its first rank
      and one steady period: until each chunk took as many backwards as pass it in a group. */
  open() {
    this.fit();
    const [panel] = this.panels, first = panel.offsets[0], last = panel.offsets[1];
    if (this.panels.length > 1 || last - first <= MOST_BARS) return;
    const chunks = new Set(panel.stage.subarray(first, last)).size;
    let left = chunks > 1 ? chunks * panel.numRanks : 1;
    for (let i = first; i < last; i++) {
      const kind = panel.kind(i);
      if (kind !== BACKWARD && kind !== INPUT_GRAD) continue;
      if (left-- > 0) continue;
      this.setView(0, panel.end[i]);
      return;
    }
  }

  setView(from, span) {
    span = Math.min(Math.max(span, this.whole * MIN_VIEW_SHARE), this.whole);
    this.from = Math.min(Math.max(from, 0), this.whole - span);
    this.to = this.from + span;
    this.requestRedraw();
  }

  zoom(factor, at = (this.from + this.to) / 2) {
    const span = Math.min((this.to - this.from) * factor, this.whole);
    const share = (at - this.from) / (this.to - this.from);
    this.setView(at - share * Math.max(span, this.whole * MIN_VIEW_SHARE), span);
  }

  pan(share) {
    const span = this.to - this.from;
    this.setView(this.from + share * span, span);
  }

  timeAt(x) {
    return this.from + ((x - this.layout.left) / this.layout.plotWidth) * (this.to - this.from);
  }

  /** Only ranks as in "0-3, 7"; all where the text is empty. Whether it could be read. */
  showRanks(text) {
    const ranks = parseRanks(text);
    if (ranks === undefined) return false;
    this.options.ranks = ranks;
    this.leave();
    this.scroller.scrollTop = 0;
    this.resize();
    return true;
  }

  // -- drawing -----------------------------------------------------------------------------------

  requestRedraw() {
    this.pending ??= requestAnimationFrame(() => {
      this.pending = null;
      this.redraw();
    });
  }

  redraw() {
    if (!this.isPrinting && this.painter.ratio !== window.devicePixelRatio) {
      this.resize();
      return;
    }
    const began = performance.now();
    const view = { from: this.from, to: this.to, whole: this.whole,
      scroll: this.isPrinting ? 0 : this.scroller.scrollTop };
    const counters = this.painter.paint(this.layout, view, this.options);
    this.performance.redraws++;
    this.performance.lastRedrawMs = performance.now() - began;
    this.performance.counters = counters;
    this.drawOverlay();
  }

  /** Sizes follow the window; the content may be taller than it, and then scrolls. */
  resize() {
    const width = this.isPrinting ? 1040 : this.scroller.clientWidth;
    const room = this.scroller.clientHeight;
    this.layout = layOut(this.panels, width, room, this.options);
    const height = this.isPrinting ? this.layout.height : Math.min(room, this.layout.height);
    const ratio = this.isPrinting ? 2 : window.devicePixelRatio;
    this.content.style.height = `${Math.max(this.layout.height, room)}px`;
    this.painter.resize(width, height, ratio);
    this.overlay.width = Math.round(width * ratio);
    this.overlay.height = Math.round(height * ratio);
    this.overlay.style.width = `${width}px`;
    this.overlay.style.height = `${height}px`;
    this.overlayRatio = ratio;
    this.redraw();
  }

  restyle() {
    const chosen = document.documentElement.dataset.theme;
    const dark = chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    this.painter.setTheme(this.config.themes[dark && !this.isPrinting ? "dark" : "light"]);
    this.resize();
  }

  /** Cursor line, the action under it, and where its tensors come from and go to. */
  drawOverlay() {
    const context = this.overlay.getContext("2d"), { theme } = this.painter;
    context.setTransform(this.overlayRatio, 0, 0, this.overlayRatio, 0, 0);
    context.clearRect(0, 0, this.layout.width, this.overlay.height);
    const { left, plotWidth } = this.layout;
    context.save();
    context.beginPath();
    context.rect(left, 0, plotWidth, this.overlay.height);
    context.clip();
    context.strokeStyle = theme.faintInk;
    if (this.cursorX !== undefined) {
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(this.cursorX, AXIS_HEIGHT - 8);
      context.lineTo(this.cursorX, this.overlay.height);
      context.stroke();
    }
    if (this.selected) this.drawSelection(context, theme);
    context.restore();
  }

  drawSelection(context, theme) {
    const { section, i } = this.selected, { panel } = section;
    const box = this.boxOf(section, i);
    context.strokeStyle = theme.page;
    context.lineWidth = 4;
    context.strokeRect(box.x, box.y, box.width, box.height);
    context.strokeStyle = theme.ink;
    context.lineWidth = 2;
    context.strokeRect(box.x, box.y, box.width, box.height);
    const { from, to } = panel.neighbours(i);
    const isShown = (other) => other >= 0 && section.isShown(panel.rank(other));
    if (isShown(from)) this.drawArrow(context, theme, this.boxOf(section, from), box);
    if (isShown(to)) this.drawArrow(context, theme, box, this.boxOf(section, to));
  }

  drawArrow(context, theme, source, target) {
    const x = source.x + source.width, y = source.y + source.height / 2;
    const toX = target.x, toY = target.y + target.height / 2;
    const angle = Math.atan2(toY - y, toX - x), head = 6;
    for (const [color, width] of [[theme.page, 3.5], [theme.ink, 1.4]]) {
      context.strokeStyle = color;
      context.lineWidth = width;
      context.beginPath();
      context.moveTo(x, y);
      context.lineTo(toX, toY);
      context.moveTo(toX - head * Math.cos(angle - 0.5), toY - head * Math.sin(angle - 0.5));
      context.lineTo(toX, toY);
      context.lineTo(toX - head * Math.cos(angle + 0.5), toY - head * Math.sin(angle + 0.5));
      context.stroke();
    }
  }

  boxOf(section, i) {
    const { panel } = section, row = section.bars[panel.rank(i)];
    const x = this.painter.x(panel.start[i]), width = this.painter.x(panel.end[i]) - x;
    const [y, height] = laneBox(panel.lane(i), row.y - this.scroller.scrollTop, row.height);
    return { x, y, width: Math.max(width, 2), height };
  }

  // -- what an action is -------------------------------------------------------------------------

  rowAt(y) {
    const at = y + this.scroller.scrollTop;
    for (const section of this.layout.sections) {
      for (const isMemory of [false, true]) {
        const rows = isMemory ? section.memory : section.bars;
        const rank = rows.findIndex((row) => at >= row.y && at < row.y + row.height);
        if (rank >= 0) return { section, rank, isMemory, share: (at - rows[rank].y) / rows[rank].height };
      }
    }
    return null;
  }

  hover(x, y) {
    const inPlot = x >= this.layout.left && x < this.layout.left + this.layout.plotWidth;
    const row = inPlot && y > AXIS_HEIGHT ? this.rowAt(y) : null;
    this.cursorX = inPlot ? x : undefined;
    this.selected = null;
    if (!row) {
      this.hideTip();
    } else if (row.isMemory) {
      this.showTip(x, y, `rank ${row.rank}`, this.memoryWords(row.section.panel, row.rank, this.timeAt(x)));
    } else {
      const i = row.section.panel.at(row.rank, this.timeAt(x), row.share);
      if (i >= 0) this.select(row.section, i, x, y);
      else this.showTip(x, y, `rank ${row.rank}: idle`, this.idleWords(row.section.panel, row.rank, this.timeAt(x)));
    }
    this.drawOverlay();
  }

  select(section, i, x, y) {
    const { panel } = section;
    this.selected = { section, i };
    const waits = this.options.showCritical && panel.waitsFor[i];
    const lines = [
      `stage ${panel.stage[i]}, microbatch ${panel.microbatch[i]}, rank ${panel.rank(i)}`,
      `${formatTime(panel.start[i])} to ${formatTime(panel.end[i])}`,
      `takes ${formatTime(panel.end[i] - panel.start[i])}`,
      `memory ${panel.formatMemory(panel.during[i])}`,
    ];
    if (waits) lines.push(waits === "nothing" ? "critical: starts first" : `critical: waits for its ${waits}`);
    this.showTip(x, y, `${panel.name(i)} ${this.config.kindNames[panel.kind(i)]}`, lines);
  }

  memoryWords(panel, rank, time) {
    const limit = panel.limit[rank];
    const lines = [`at ${formatTime(time)}: ${panel.formatMemory(panel.memoryAt(rank, time))}`,
      `peak ${panel.formatMemory(panel.peak[rank])}`];
    return limit === null ? lines : [...lines, `limit ${panel.formatMemory(limit)}`];
  }

  idleWords(panel, rank, time) {
    const next = panel.firstEndingAfter(rank, time);
    const from = next > panel.offsets[rank] ? panel.end[next - 1] : 0;
    const to = next < panel.offsets[rank + 1] ? panel.start[next] : this.whole;
    return [`${formatTime(from)} to ${formatTime(to)}`, `waits ${formatTime(to - from)}`];
  }

  showTip(x, y, heading, lines) {
    const title = document.createElement("strong");
    title.textContent = heading;
    this.tip.replaceChildren(title, lines.join("\n"));
    this.tip.hidden = false;
    const { offsetWidth, offsetHeight } = this.tip;
    const right = x + 14 + offsetWidth < this.layout.width, height = this.bars.clientHeight;
    this.tip.style.left = `${Math.max(right ? x + 14 : x - 14 - offsetWidth, 4)}px`;
    this.tip.style.top = `${Math.max(Math.min(y + 14, height - offsetHeight - 4), 4)}px`;
  }

  hideTip() { this.tip.hidden = true; }

  leave() {
    this.cursorX = undefined;
    this.selected = null;
    this.hideTip();
    this.drawOverlay();
  }

  /** Shift and arrows: to the next action of the rank, or to the one at the same time above or below. */
  step(along, across) {
    const from = this.selected ?? this.firstInView();
    if (!from) return;
    const { section, i } = from, { panel } = section, rank = panel.rank(i);
    let next = i + along;
    if (across) {
      let other = rank + across;
      while (other >= 0 && other < panel.numRanks && !section.isShown(other)) other += across;
      if (other < 0 || other >= panel.numRanks) other = rank;
      next = panel.firstEndingAfter(other, panel.start[i]);
      next = Math.min(next, panel.offsets[other + 1] - 1);
      if (next < panel.offsets[other]) return;
    } else {
      next = Math.min(Math.max(next, panel.offsets[rank]), panel.offsets[rank + 1] - 1);
    }
    this.reveal(section, next);
  }

  /** An action of the first shown rank that has any; null where the shown ranks have none. */
  firstInView() {
    for (const section of this.layout.sections) {
      const { panel } = section;
      const rank = panel.offsets.findIndex((at, r) => section.isShown(r) && panel.offsets[r + 1] > at);
      if (rank < 0) continue;
      return { section, i: Math.min(panel.firstEndingAfter(rank, this.from), panel.offsets[rank + 1] - 1) };
    }
    return null;
  }

  reveal(section, i) {
    const { panel } = section, row = section.bars[panel.rank(i)], span = this.to - this.from;
    if (panel.start[i] < this.from || panel.end[i] > this.to) this.setView(panel.start[i] - span / 2, span);
    const top = row.y - AXIS_HEIGHT, bottom = row.y + row.height - this.bars.clientHeight;
    if (this.scroller.scrollTop > top) this.scroller.scrollTop = top;
    if (this.scroller.scrollTop < bottom) this.scroller.scrollTop = bottom;
    this.redraw();
    const box = this.boxOf(section, i);
    this.select(section, i, box.x + box.width / 2, box.y + box.height);
    this.drawOverlay();
  }

  /** On paper: everything that scrolls, on white. */
  print(isPrinting) {
    this.isPrinting = isPrinting;
    this.leave();
    this.restyle();
    this.pieces.classList.toggle("whole", this.layout.height <= PAGE_HEIGHT);
    this.pieces.replaceChildren(...(isPrinting ? piecesOf(this.bars, this.layout) : []));
  }
}

async function start() {
  const began = performance.now();
  const config = JSON.parse(document.getElementById("data").textContent);
  timeUnits = config.timeUnits;
  const panels = await Promise.all(config.panels.map((packed) => (
    Panel.read(packed, config.numChunks))));
  const decodeMs = performance.now() - began;
  window.gantt = new Page(config, panels);
  window.gantt.performance.decodeMs = decodeMs;
  document.documentElement.dataset.ready = "yes";
}

start();
