"use strict";
/* Rows of pixels whose colours are mixed by area, for bars narrower than a few pixels. */

/** Colours of one row of pixels, by the area that bars cover of each. */
class Mixer {
  of(columns) {
    if (this.columns !== columns) {
      this.columns = columns;
      this.sums = new Float32Array(4 * columns);  // red, green, blue, covered area
      this.marked = new Float32Array(columns);
    } else {
      this.sums.fill(0);
    }
    return this;
  }

  add(x, right, channels, weight) {
    const { sums } = this, last = right - 1;
    for (let c = Math.floor(x); c < right; c++) {
      const area = weight * ((c < last ? c + 1 : right) - (c > x ? c : x)), at = 4 * c;
      sums[at] += area * channels[0];
      sums[at + 1] += area * channels[1];
      sums[at + 2] += area * channels[2];
      sums[at + 3] += area;
    }
  }

  mark(x, right) {
    for (let c = Math.floor(x); c < right; c++) {
      this.marked[c] += Math.min(right, c + 1) - Math.max(x, c);
    }
  }

  /** Over an opaque background; pixels are little-endian, red first. */
  write(pixels, [red, green, blue]) {
    const { sums } = this, idle = packed(red, green, blue, 255);
    for (let c = 0, at = 0; c < pixels.length; c++, at += 4) {
      const area = sums[at + 3];
      if (area === 0) {
        pixels[c] = idle;
        continue;
      }
      const share = area > 1 ? 1 / area : 1, rest = area > 1 ? 0 : 1 - area;
      pixels[c] = packed(sums[at] * share + rest * red, sums[at + 1] * share + rest * green,
        sums[at + 2] * share + rest * blue, 255);
    }
  }

  /** As opaque as a pixel is covered; leaves no marks behind. */
  writeMarks(pixels, [red, green, blue]) {
    for (let c = 0; c < pixels.length; c++) {
      pixels[c] = packed(red, green, blue, 255 * Math.min(this.marked[c], 1));
    }
    this.marked.fill(0);
  }
}

function packed(red, green, blue, alpha) {
  return ((alpha << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

function channelsOf(color) {
  const value = parseInt(color.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
}
