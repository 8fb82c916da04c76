"use strict";
/* Drawing: where rows are, and how much of them is drawn.

   A row whose bars are wide is drawn bar by bar, with outlines, textures and numbers. A row whose
   bars are narrow is drawn pixel by pixel: every pixel is the mix, by area, of the bars and the idle
   time it covers. So bubbles never vanish, and the cost is that of the pixels, not of the bars. */

const AXIS_HEIGHT = 26, TITLE_HEIGHT = 24, MEMORY_TITLE_HEIGHT = 22;
const BOX_WIDTH = 14;       // narrowest mean bar, in CSS pixels, that is drawn bar by bar
const DIGIT_WIDTH = 6.6, LABEL_MARGIN = 6;  // of numbers on bars
const SEPARATED_WIDTH = 5;  // narrowest bar, in device pixels, that leaves a gap to the next
const FONT = 'system-ui, "Segoe UI", Helvetica, Arial, sans-serif';

/** Where everything is on the whole content, top to bottom, for a viewport of a given size. */
function layOut(panels, width, height, options) {
  const narrow = width < 560;
  const left = narrow ? 30 : 62, right = narrow ? 10 : 126;
  const filters = panels.map((panel) => rankFilter(panel, options.ranks));
  const shown = (panel, isShown) => {
    let count = 0;
    for (let rank = 0; rank < panel.numRanks; rank++) count += isShown(rank);
    return count;
  };
  const numRows = panels.reduce((sum, panel, at) => sum + shown(panel, filters[at]), 0);
  const titles = panels.length > 1 ? TITLE_HEIGHT : 4;
  const memoryTitle = options.showMemory ? MEMORY_TITLE_HEIGHT : 0;
  const room = height - AXIS_HEIGHT - panels.length * (titles + memoryTitle + 10);
  const clamp = (value, low, high) => Math.max(low, Math.min(high, value));
  const barPitch = Math.floor(clamp((room * (options.showMemory ? 0.52 : 1)) / numRows, 9, 42));
  const memoryPitch = Math.floor(clamp((room - barPitch * numRows) / numRows, 30, 92));
  const barGap = barPitch > 20 ? 5 : barPitch > 12 ? 3 : 2;
  const layout = { left, right, plotWidth: Math.max(width - left - right, 40), width, narrow,
    sections: [], height: 0 };
  let y = AXIS_HEIGHT;
  for (const [at, panel] of panels.entries()) {
    const section = { panel, isShown: filters[at], titleY: y, bars: [], memory: [], memoryTitleY: 0 };
    const rows = (pitch, gap) => Array.from({ length: panel.numRanks }, (_, rank) => {
      if (!section.isShown(rank)) return HIDDEN_ROW;
      y += pitch;
      return { y: y - pitch, height: pitch - gap };
    });
    y += titles;
    section.bars = rows(barPitch, barGap);
    section.memoryTitleY = y;
    y += memoryTitle;
    if (options.showMemory) section.memory = rows(memoryPitch, 8);
    y += 10;
    layout.sections.push(section);
  }
  layout.height = y;
  return layout;
}

class Painter {
  constructor(canvas, config) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d", { alpha: false });
    this.strip = document.createElement("canvas");
    this.stripContext = this.strip.getContext("2d", { willReadFrequently: true });
    this.config = config;
    this.mixer = new Mixer();
    this.counters = {};
  }

  setTheme(theme) {
    this.theme = theme;
    this.barChannels = theme.bars.flat().map(channelsOf);
    this.rowChannels = channelsOf(theme.row);
    this.outlineChannels = channelsOf(theme.outline);
    this.textures = this.config.textures.map((path) => this.makeTexture(path));
  }

  makeTexture(path) {
    if (!path) return null;
    const tile = document.createElement("canvas");
    tile.width = tile.height = 8;
    const context = tile.getContext("2d");
    context.strokeStyle = "#00000024";
    context.lineWidth = 1.4;
    context.stroke(new Path2D(path));
    return this.context.createPattern(tile, "repeat");
  }

  resize(width, height, ratio) {
    this.ratio = ratio;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
  }

  /** Draw what lies between `view.from` and `view.to`, `view.scroll` pixels down the content. */
  paint(layout, view, options) {
    const { context, theme } = this, height = this.canvas.height / this.ratio;
    this.layout = layout;
    this.view = view;
    this.options = options;
    this.scale = layout.plotWidth / (view.to - view.from);
    this.counters = { boxes: 0, pixelRows: 0, labels: 0, outlines: 0, memoryRows: 0, barsInView: 0 };
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.fillStyle = theme.page;
    context.fillRect(0, 0, layout.width, height);
    context.textBaseline = "middle";
    this.paintGrid(height);
    this.pixelRows = [];
    this.stripRows = 0;
    for (const section of layout.sections) this.paintSection(section, height);
    this.copyPixels();
    this.paintAxis();
    return this.counters;
  }

  x(time) { return this.layout.left + (time - this.view.from) * this.scale; }

  paintSection(section, height) {
    const { scroll } = this.view;
    const isVisible = (row) => row.y - scroll < height && row.y + row.height - scroll > AXIS_HEIGHT;
    if (this.layout.sections.length > 1) {
      this.text(section.panel.title, 8, section.titleY - scroll + TITLE_HEIGHT / 2, "600 13px");
    }
    section.bars.forEach((row, rank) => {
      if (isVisible(row)) this.paintBarRow(section.panel, rank, row.y - scroll, row.height);
    });
    if (section.memory.length) {
      const y = section.memoryTitleY - scroll + MEMORY_TITLE_HEIGHT / 2 + 2;
      this.text("memory", 8, y, "12px", this.theme.faintInk);
    }
    section.memory.forEach((row, rank) => {
      if (isVisible(row)) this.paintMemoryRow(section.panel, rank, row.y - scroll, row.height);
    });
  }

  paintBarRow(panel, rank, y, height) {
    const { context, layout, view } = this;
    this.rankLabel(rank, y, height);
    let first = panel.firstEndingAfter(rank, view.from);
    if (panel.isPaired && first > panel.offsets[rank]) first--;
    let last = first;
    const end = panel.offsets[rank + 1];
    if (end > first && panel.start[end - 1] < view.to) last = end;
    else while (last < end && panel.start[last] < view.to) last++;
    const inView = last - first;
    this.counters.barsInView += inView;
    if (inView * BOX_WIDTH > layout.plotWidth) {
      this.mixPixels(panel, first, last, y, height);
      return;
    }
    context.fillStyle = this.theme.row;
    context.fillRect(layout.left, y, layout.plotWidth, height);
    context.save();
    context.beginPath();
    context.rect(layout.left, y - 1, layout.plotWidth, height + 2);
    context.clip();
    this.paintBoxes(panel, first, last, y, height);
    context.restore();
  }

  paintBoxes(panel, first, last, y, height) {
    const { context, theme } = this;
    const size = Math.min(11, height - 3);
    context.font = `${size}px ${FONT}`;
    context.textAlign = "center";
    for (let i = first; i < last; i++) {
      const x = this.x(panel.start[i]), width = this.x(panel.end[i]) - x;
      const kind = panel.kind(i), chunk = panel.chunk(i);
      const [top, tall] = laneBox(panel.lane(i), y, height);
      const gap = Math.min(1, width / 5);
      context.fillStyle = theme.bars[kind][chunk];
      context.fillRect(x, top, width - gap, tall);
      if (this.textures[kind] && tall >= 9) {
        context.fillStyle = this.textures[kind];
        context.fillRect(x, top, width - gap, tall);
      }
      this.counters.boxes++;
      if (this.options.showCritical && panel.isCritical(i)) this.outline(x, top, width - gap, tall);
      const label = size >= 7 ? barLabel(panel, i, width) : "";
      if (label) {
        this.counters.labels++;
        context.fillStyle = theme.barInks[kind][chunk];
        context.fillText(label, x + width / 2, top + tall / 2 + 0.5);
      }
    }
    context.textAlign = "left";
  }

  outline(x, y, width, height) {
    const { context } = this, line = height > 12 ? 2 : 1.2;
    context.strokeStyle = this.theme.outline;
    context.lineWidth = line;
    context.strokeRect(x + line / 2, y + line / 2, Math.max(width - line, 0), height - line);
    this.counters.outlines++;
  }

  /** One row of pixels, mixed by area, kept until all are copied down at once. */
  mixPixels(panel, first, last, y, height) {
    const columns = Math.round(this.layout.plotWidth * this.ratio);
    const mix = this.mixer.of(columns);
    const scale = columns / (this.view.to - this.view.from), { from } = this.view;
    const { start, end, color, marks } = panel, { showCritical } = this.options;
    let isMarked = false;
    for (let i = first; i < last; i++) {
      const x = Math.max((start[i] - from) * scale, 0);
      let right = Math.min((end[i] - from) * scale, columns);
      if (right - x > SEPARATED_WIDTH) right -= 1;
      mix.add(x, right, this.barChannels[color[i]], panel.isPaired && panel.lane(i) !== 0 ? 0.5 : 1);
      if (showCritical && marks[i] & CRITICAL_BIT) {
        mix.mark(x, right);
        isMarked = true;
      }
    }
    this.pixelRows.push({ y, height, isMarked });
    mix.write(this.stripRow(columns), this.rowChannels);
    if (isMarked) mix.writeMarks(this.stripRow(columns), this.outlineChannels);
    this.counters.pixelRows++;
  }

  /** The next row of the strip as 32-bit pixels. */
  stripRow(columns) {
    const row = this.stripRows++;
    if (this.image?.width !== columns || this.image.height <= row) {
      const larger = new ImageData(columns, Math.max(2 * row, 160));
      if (this.image?.width === columns) larger.data.set(this.image.data);
      this.image = larger;
    }
    return new Uint32Array(this.image.data.buffer, 4 * row * columns, columns);
  }

  /** Copy the mixed rows to where they belong; the critical path is a line at a row's foot. */
  copyPixels() {
    if (!this.stripRows) return;
    const { context, strip, layout, image } = this;
    if (strip.width !== image.width || strip.height !== image.height) {
      strip.width = image.width;
      strip.height = image.height;
    }
    this.stripContext.putImageData(image, 0, 0, 0, 0, image.width, this.stripRows);
    context.imageSmoothingEnabled = false;
    const copy = (row, y, height) => context.drawImage(strip, 0, row, image.width, 1,
      layout.left, y, layout.plotWidth, height);
    let row = 0;
    for (const { y, height, isMarked } of this.pixelRows) {
      copy(row++, y, height);
      const line = height > 12 ? 3 : 2;
      if (isMarked) copy(row++, y + height - line, line);
    }
  }

  /** The most a rank holds within each pixel column, as a filled curve, with limit and peak. */
  paintMemoryRow(panel, rank, y, height) {
    const { context, theme, layout } = this, bottom = y + height;
    const top = this.config.memoryTops[panel.memoryUnit];
    const levelY = (amount) => bottom - (amount / top) * height;
    this.rankLabel(rank, y, height);
    context.fillStyle = theme.row;
    context.fillRect(layout.left, y, layout.plotWidth, height);
    const columns = this.memoryColumns(panel, rank);
    const step = layout.plotWidth / columns.length;
    const curve = new Path2D();
    curve.moveTo(layout.left, levelY(columns[0]));
    for (let c = 1; c < columns.length; c++) {
      if (columns[c] === columns[c - 1]) continue;
      curve.lineTo(layout.left + c * step, levelY(columns[c - 1]));
      curve.lineTo(layout.left + c * step, levelY(columns[c]));
    }
    curve.lineTo(layout.left + layout.plotWidth, levelY(columns[columns.length - 1]));
    const area = new Path2D(curve);
    area.lineTo(layout.left + layout.plotWidth, bottom);
    area.lineTo(layout.left, bottom);
    context.fillStyle = theme.memoryFill;
    context.fill(area);
    context.strokeStyle = theme.memory;
    context.lineWidth = 1;
    context.stroke(curve);
    this.paintLimit(panel.limit[rank], top, levelY);
    this.paintPeak(panel, rank, y, height, levelY);
    this.counters.memoryRows++;
  }

  memoryColumns(panel, rank) {
    const columns = Math.round(this.layout.plotWidth), { from, to } = this.view;
    const levels = new Float64Array(columns), scale = columns / (to - from);
    const raise = (start, end, level) => {
      const stop = Math.min(Math.ceil(end * scale), columns);
      for (let c = Math.max(Math.floor(start * scale), 0); c < stop; c++) {
        if (level > levels[c]) levels[c] = level;
      }
    };
    let i = panel.firstEndingAfter(rank, from), now = 0;
    let idle = i > panel.offsets[rank] ? panel.after[i - 1] : panel.static[rank];
    for (; i < panel.offsets[rank + 1] && panel.start[i] < to; i++) {
      raise(now, panel.start[i] - from, idle);
      raise(panel.start[i] - from, panel.end[i] - from, panel.during[i]);
      now = panel.end[i] - from;
      idle = panel.after[i];
    }
    raise(now, to - from, idle);
    return levels;
  }

  paintLimit(limit, top, levelY) {
    if (limit === null || limit > top) return;
    const { context, layout } = this;
    context.strokeStyle = this.theme.limit;
    context.lineWidth = 1.3;
    context.setLineDash([5, 3]);
    context.beginPath();
    context.moveTo(layout.left, levelY(limit));
    context.lineTo(layout.left + layout.plotWidth, levelY(limit));
    context.stroke();
    context.setLineDash([]);
  }

  paintPeak(panel, rank, y, height, levelY) {
    const { context, theme, layout } = this;
    const peak = panel.peak[rank], limit = panel.limit[rank];
    const isOver = limit !== null && peak > limit * (1 + 1e-12);
    if (panel.offsets[rank + 1] > panel.offsets[rank]) {
      const x = this.x(panel.start[panel.peakAction[rank]]);
      if (x >= layout.left && x <= layout.left + layout.plotWidth) {
        context.beginPath();
        context.arc(x, levelY(peak), 3, 0, 2 * Math.PI);
        context.fillStyle = theme.page;
        context.strokeStyle = theme.outline;
        context.lineWidth = 1.5;
        context.fill();
        context.stroke();
      }
    }
    if (layout.narrow) return;
    const words = panel.formatMemory(peak) + (isOver ? ", over" : "");
    const at = layout.left + layout.plotWidth + 8, middle = y + height / 2;
    this.text(words, at, limit === null ? middle : middle - 6, isOver ? "600 11.5px" : "11.5px",
      isOver ? theme.limit : theme.ink);
    if (limit !== null) {
      this.text(`of ${panel.formatMemory(limit)}`, at, middle + 7, "11px", theme.faintInk);
    }
  }

  rankLabel(rank, y, height) {
    if (height < 9 && rank % 2) return;
    const { layout } = this, size = Math.max(8, Math.min(12, height + 1));
    this.context.textAlign = "right";
    this.text(layout.narrow ? String(rank) : `rank ${rank}`, layout.left - 8, y + height / 2 + 0.5,
      `${size}px`);
    this.context.textAlign = "left";
  }

  ticks() {
    const { view, layout } = this;
    return timeTicks(view.from, view.to, Math.max(layout.plotWidth / 76, 2), view.whole);
  }

  paintGrid(height) {
    this.context.fillStyle = this.theme.line;
    for (const { time } of this.ticks().ticks) this.context.fillRect(this.x(time) - 0.5, 0, 1, height);
  }

  /** Last, over whatever was scrolled below it. */
  paintAxis() {
    const { context, layout, theme } = this, { unit, ticks } = this.ticks();
    context.fillStyle = theme.page;
    context.fillRect(0, 0, layout.width, AXIS_HEIGHT - 1);
    context.fillStyle = theme.line;
    context.fillRect(layout.left, AXIS_HEIGHT - 2, layout.plotWidth, 1);
    const isShort = !layout.narrow && unit.length <= 2;  // room beside the tick at 0
    const title = isShort ? `time, ${unit}` : unit;
    this.text(title, 6, AXIS_HEIGHT / 2, "11.5px", theme.faintInk);
    const titleEnd = 6 + context.measureText(title).width;
    context.textAlign = "center";
    for (const { time, label } of ticks) {
      context.fillStyle = theme.line;
      context.fillRect(this.x(time) - 0.5, AXIS_HEIGHT - 7, 1, 6);
      const x = Math.min(Math.max(this.x(time), layout.left + 2), layout.width - 14);
      if (x - context.measureText(label).width / 2 < titleEnd + 3) continue;
      this.text(label, x, AXIS_HEIGHT / 2 - 2, "11.5px", theme.faintInk);
    }
    context.textAlign = "left";
  }

  text(words, x, y, font, color = this.theme.ink) {
    this.context.font = `${font} ${FONT}`;
    this.context.fillStyle = color;
    this.context.fillText(words, x, y);
  }
}

/**
 * The name in full where there is ample room for that of the last microbatch, so that bars of one
 * length are named alike; the microbatch where there is some, else nothing.
 */
function barLabel(panel, i, width) {
  const name = panel.name(i), microbatch = String(panel.microbatch[i]);
  const needed = (digits) => digits * DIGIT_WIDTH + LABEL_MARGIN;
  panel.digits ??= String(panel.microbatch.reduce((most, each) => Math.max(most, each), 0)).length;
  if (width >= 1.4 * needed(name.length - microbatch.length + panel.digits)) return name;
  return width >= needed(microbatch.length) ? microbatch : "";
}

function laneBox(lane, y, height) {
  if (lane === 0) return [y, height];
  return [lane === 1 ? y : y + height / 2, height / 2];
}
