"use strict";
/* Panels as typed arrays, and questions about them. Written by gantt_pack.py. */

const KIND_LETTERS = "FIWBR";
const FORWARD = 0, INPUT_GRAD = 1, BACKWARD = 3;
const LANE_SHIFT = 3, CRITICAL_BIT = 1 << 5, KIND_MASK = 7, LANE_MASK = 3;

async function inflate(base64) {
  const packed = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

/** One schedule with times in seconds; arrays have an entry per action, by rank, then in order. */
class Panel {
  static async read(packed, numChunks) {
    return new Panel(packed, await inflate(packed.columns), numChunks);
  }

  constructor(packed, buffer, numChunks) {
    Object.assign(this, packed);
    this.numRanks = this.offsets.length - 1;
    this.numBars = this.offsets[this.numRanks];
    const n = this.numBars;
    const gaps = new Int32Array(buffer, 0, n), lengths = new Uint32Array(buffer, 4 * n, n);
    this.stage = new Uint32Array(buffer, 8 * n, n);
    this.microbatch = new Uint32Array(buffer, 12 * n, n);
    this.marks = new Uint8Array(buffer, 16 * n, n);
    this.color = Uint16Array.from(this.marks, (_, i) => this.kind(i) * numChunks + this.chunk(i));
    this.start = new Float64Array(n);
    this.end = new Float64Array(n);
    this.isPaired = false;
    this.unpackTimes(gaps, lengths);
    this.unpackMemory();
  }

  unpackTimes(gaps, lengths) {
    for (let rank = 0; rank < this.numRanks; rank++) {
      let ticks = 0;
      for (let i = this.offsets[rank]; i < this.offsets[rank + 1]; i++) {
        ticks += gaps[i];
        this.start[i] = ticks * this.tick;
        ticks += lengths[i];
        this.end[i] = ticks * this.tick;
        this.isPaired ||= this.lane(i) !== 0;
      }
    }
  }

  /** Bytes its rank holds `during[i]`, from the start of action i, and `after[i]`, from its end;
      `peakAction[rank]` is the first action during which a rank holds the most. */
  unpackMemory() {
    this.peakAction = this.static.map((_, rank) => this.offsets[rank]);
    this.during = new Float64Array(this.numBars);
    this.after = new Float64Array(this.numBars);
    for (let rank = 0; rank < this.numRanks; rank++) {
      let level = this.static[rank];
      for (let i = this.offsets[rank]; i < this.offsets[rank + 1]; i++) {
        const delta = this.delta[this.kind(i)][this.stage[i]];
        this.during[i] = level + Math.max(delta, 0) + this.transient[this.kind(i)][this.stage[i]];
        if (this.during[i] > this.during[this.peakAction[rank]]) this.peakAction[rank] = i;
        level += delta;
        this.after[i] = level;
      }
    }
  }

  kind(i) { return this.marks[i] & KIND_MASK; }
  lane(i) { return (this.marks[i] >> LANE_SHIFT) & LANE_MASK; }
  isCritical(i) { return (this.marks[i] & CRITICAL_BIT) !== 0; }
  chunk(i) { return this.chunkOfStage[this.stage[i]]; }
  rank(i) { return this.rankOfStage[this.stage[i]]; }
  name(i) { return `${this.stage[i]}${KIND_LETTERS[this.kind(i)]}${this.microbatch[i]}`; }

  /** The first action of a rank that ends after `time`. */
  firstEndingAfter(rank, time) {
    let low = this.offsets[rank], high = this.offsets[rank + 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.end[middle] > time) high = middle; else low = middle + 1;
    }
    return low;
  }

  /** The action of a rank at `time`, in the lane at `share` of the row's height; -1 if idle. */
  at(rank, time, share) {
    const first = Math.max(this.firstEndingAfter(rank, time) - 1, this.offsets[rank]);
    for (let i = first; i < Math.min(first + 3, this.offsets[rank + 1]); i++) {
      const inLane = this.lane(i) === 0 || this.lane(i) === (share < 0.5 ? 1 : 2);
      if (inLane && this.start[i] <= time && time < this.end[i]) return i;
    }
    return -1;
  }

  memoryAt(rank, time) {
    const i = this.firstEndingAfter(rank, time);
    if (i < this.offsets[rank + 1] && this.start[i] <= time) return this.during[i];
    return i > this.offsets[rank] ? this.after[i - 1] : this.static[rank];
  }

  /** Actions on both sides of the tensors that action i receives and sends. */
  neighbours(i) {
    const kind = this.kind(i), stage = this.stage[i], microbatch = this.microbatch[i];
    const gives = kind === FORWARD ? 1 : kind === INPUT_GRAD || kind === BACKWARD ? -1 : 0;
    const turn = (s) => (kind === FORWARD
      ? this.find([FORWARD], s, microbatch) : this.find([INPUT_GRAD, BACKWARD], s, microbatch));
    if (gives === 0) return { from: -1, to: -1 };
    return { from: turn(stage - gives), to: turn(stage + gives) };
  }

  find(kinds, stage, microbatch) {
    const rank = this.rankOfStage[stage];
    if (rank === undefined) return -1;
    for (let i = this.offsets[rank]; i < this.offsets[rank + 1]; i++) {
      const same = this.stage[i] === stage && this.microbatch[i] === microbatch;
      if (same && kinds.includes(this.kind(i))) return i;
    }
    return -1;
  }

  formatMemory(amount) {
    if (this.memoryUnit !== "bytes") return `${significant(amount, 4)} act.`;
    for (const [unit, size] of [["TiB", 2 ** 40], ["GiB", 2 ** 30], ["MiB", 2 ** 20], ["KiB", 2 ** 10]]) {
      if (Math.abs(amount) >= size) return `${(amount / size).toFixed(2)} ${unit}`;
    }
    return `${amount.toFixed(0)} B`;
  }
}

let timeUnits = [];  // name and size of each, largest first; the page says which

function significant(value, digits) {
  return String(Number(value.toPrecision(digits)));
}

function formatTime(seconds) {
  if (seconds === 0) return `0 ${timeUnits[0][0]}`;
  const [unit, size] = timeUnits.find(([, size]) => Math.abs(seconds) >= size) ?? timeUnits.at(-1);
  return `${significant(seconds / size, 6)} ${unit}`;
}

/** Ticks of 1, 2 or 5 times a power of ten over a stretch of time, and how to print them. */
function timeTicks(from, to, maxTicks, wholeSpan) {
  const [unit, size] = timeUnits.find(([, size]) => wholeSpan >= size) ?? timeUnits.at(-1);
  const atLeast = (to - from) / maxTicks / size;
  const power = 10 ** Math.floor(Math.log10(atLeast));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((s) => s >= atLeast * (1 - 1e-9));
  const decimals = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const ticks = [];
  for (let k = Math.ceil(from / size / step - 1e-9); k * step * size <= to * (1 + 1e-12); k++) {
    ticks.push({ time: k * step * size, label: (k * step).toFixed(decimals) });
  }
  return { unit, ticks };
}
