// Images as arrays (channels, height, width) in [0, 1], painted on canvases.
export function paint(canvas, x, [channels, height, width]) {
  canvas.width = width;
  canvas.height = height;
  canvas.classList.toggle("sharp", Math.max(height, width) <= 96);
  const context = canvas.getContext("2d"), image = context.createImageData(width, height), area = height * width;
  for (let i = 0; i < area; i++) {
    for (let c = 0; c < 3; c++) image.data[4 * i + c] = Math.round(255 * (channels === 1 ? x[i] : x[c * area + i]));
    image.data[4 * i + 3] = 255;
  }
  context.putImageData(image, 0, 0);
}

// x + t r, inside the box [low, high] if there is one.
export function along(x, r, t, box) {
  const out = new Float32Array(x.length);
  for (let i = 0; i < x.length; i++) {
    out[i] = x[i] + t * r[i];
    if (box) out[i] = Math.min(Math.max(out[i], box[0]), box[1]);
  }
  return out;
}

// The colours of a theme, read from the style sheet: "--s0" and so on as [r, g, b].
export function colour(name) {
  const text = getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  return [1, 3, 5].map((at) => parseInt(text.slice(at, at + 2), 16));
}

// Blue is what it was, vermilion what it became, then the others as they come.
export class Tones {
  constructor(label) {
    this.of = new Map([[label, 0]]);
  }
  became(label) {
    if (this.get(label) < 2) return;
    for (const [other, tone] of this.of) if (tone === 1) this.of.set(other, this.of.get(label));
    this.of.set(label, 1);
  }
  get(label) {
    if (!this.of.has(label)) this.of.set(label, 2 + ((this.of.size - 1) % 4));
    return this.of.get(label);
  }
}
