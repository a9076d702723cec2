// Where the input may change: a ready-made region, or one that is painted on the original.
import { fromBytes, toBytes } from "./format.js";

export class Mask {
  constructor(about, onChanged) {
    [this.height, this.width] = about.shape.slice(1);
    this.onChanged = onChanged;
    this.painted = new Uint8Array(this.height * this.width);
    this.choice = document.getElementById("mask");
    this.hint = document.getElementById("mask-hint");
    this.choice.addEventListener("change", () => this.changed());
    document.getElementById("mask-clear").addEventListener("click", () => { this.painted.fill(0); this.changed(); });
    this.pads = [];
  }
  get painting() {
    return this.choice.value === "painted";
  }
  changed() {
    this.hint.hidden = !this.painting;
    this.show();
    if (!this.painting || this.painted.some(Boolean)) this.onChanged();
  }
  allowed() {
    const inside = {
      middle: (x, y) => Math.abs(x - 0.5) < 0.25 && Math.abs(y - 0.5) < 0.25,
      edge: (x, y) => Math.abs(x - 0.5) >= 0.25 || Math.abs(y - 0.5) >= 0.25,
      left: (x) => x < 0.5, right: (x) => x >= 0.5, top: (_, y) => y < 0.5, bottom: (_, y) => y >= 0.5,
    }[this.choice.value];
    if (this.painting) return this.painted;
    if (!inside) return null;
    return this.painted.map((_, i) => Number(inside(((i % this.width) + 0.5) / this.width, (Math.floor(i / this.width) + 0.5) / this.height)));
  }
  encoded() {
    const allowed = this.allowed();
    return allowed && allowed.some(Boolean) ? fromBytes(allowed) : null;
  }
  restore(text) {
    if (!text) { this.choice.value = ""; return; }
    this.painted = toBytes(text);
    this.choice.value = "painted";
    this.hint.hidden = false;
  }
  // A canvas over the original, on which is painted.
  attach(pad) {
    this.pads = this.pads.filter((each) => each.isConnected);
    this.pads.push(pad);
    pad.width = this.width;
    pad.height = this.height;
    const dab = (event) => {
      const box = pad.getBoundingClientRect(), radius = Math.max(1, this.width / 11);
      const x = ((event.clientX - box.left) / box.width) * this.width, y = ((event.clientY - box.top) / box.height) * this.height;
      for (let j = Math.floor(y - radius); j <= y + radius; j++) for (let i = Math.floor(x - radius); i <= x + radius; i++) {
        const near = (i + 0.5 - x) ** 2 + (j + 0.5 - y) ** 2 <= radius ** 2;
        if (near && i >= 0 && j >= 0 && i < this.width && j < this.height) this.painted[j * this.width + i] = 1;
      }
      this.show();
    };
    let down = false;
    pad.addEventListener("pointerdown", (event) => { down = true; pad.setPointerCapture(event.pointerId); dab(event); });
    pad.addEventListener("pointermove", (event) => { if (down) dab(event); });
    pad.addEventListener("pointerup", () => { down = false; this.onChanged(); });
    this.show();
  }
  show() {
    const allowed = this.allowed();
    for (const pad of this.pads) {
      pad.hidden = !allowed;
      if (!allowed) continue;
      const context = pad.getContext("2d"), image = context.createImageData(this.width, this.height);
      allowed.forEach((free, i) => {  // a veil where it must stay
        image.data.set(free ? [213, 94, 0, this.painting ? 70 : 0] : [90, 100, 112, 150], 4 * i);
      });
      context.putImageData(image, 0, 0);
      pad.style.pointerEvents = this.painting ? "auto" : "none";
    }
  }
}
