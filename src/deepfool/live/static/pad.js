// The drawing pad: pen, eraser, thickness, undo; mouse, finger or keyboard.
const LEAST = 16;

export class Pad {
  constructor(onDrawn) {
    this.canvas = document.getElementById("pad");
    this.context = this.canvas.getContext("2d", { willReadFrequently: true });
    this.hint = document.getElementById("pad-hint");
    this.thickness = document.getElementById("thickness");
    this.onDrawn = onDrawn;
    this.past = [];
    this.pen = { x: 70, y: 70, down: false };
    this.wipe();
    this.canvas.addEventListener("pointerdown", (event) => this.begin(event));
    this.canvas.addEventListener("pointermove", (event) => this.move(event));
    for (const name of ["pointerup", "pointercancel"]) this.canvas.addEventListener(name, () => this.end());
    this.canvas.addEventListener("keydown", (event) => this.type(event));
    this.tip = document.getElementById("pen");  // where the keyboard's pen is
    this.canvas.addEventListener("blur", () => { this.tip.hidden = true; });
    document.getElementById("clear").addEventListener("click", () => { this.remember(); this.wipe(); });
    document.getElementById("undo").addEventListener("click", () => this.undo());
  }
  get erasing() {
    return document.querySelector("[name=tool]:checked").value === "eraser";
  }
  wipe() {
    this.context.fillStyle = "#000";
    this.context.fillRect(0, 0, this.canvas.width, this.canvas.height);
    this.hint.hidden = false;
  }
  remember() {
    this.past.push(this.context.getImageData(0, 0, this.canvas.width, this.canvas.height));
    if (this.past.length > 40) this.past.shift();
  }
  undo() {
    const last = this.past.pop();
    if (!last) return;
    this.context.putImageData(last, 0, 0);
    this.tell();
  }
  at(event) {
    const box = this.canvas.getBoundingClientRect();
    return [((event.clientX - box.left) / box.width) * this.canvas.width, ((event.clientY - box.top) / box.height) * this.canvas.height];
  }
  stroke(from, to) {
    const context = this.context;
    context.strokeStyle = this.erasing ? "#000" : "#fff";
    context.lineWidth = Number(this.thickness.value) * (this.erasing ? 1.6 : 1);
    context.lineCap = context.lineJoin = "round";
    context.beginPath();
    context.moveTo(...from);
    context.lineTo(to[0] + 0.01, to[1]);
    context.stroke();
    this.hint.hidden = true;
  }
  begin(event) {
    if (event.button > 0) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.remember();
    this.last = this.at(event);
    this.stroke(this.last, this.last);
  }
  move(event) {
    if (!this.last) return;
    const steps = event.getCoalescedEvents?.() ?? [];
    for (const step of steps.length ? steps : [event]) {
      const here = this.at(step);
      this.stroke(this.last, here);
      this.last = here;
    }
  }
  end() {
    if (!this.last) return;
    this.last = null;
    this.tell();
  }
  type(event) {
    const moves = { ArrowLeft: [-4, 0], ArrowRight: [4, 0], ArrowUp: [0, -4], ArrowDown: [0, 4] };
    if (event.key in moves) {
      const before = [this.pen.x, this.pen.y];
      this.pen.x = Math.min(Math.max(this.pen.x + moves[event.key][0], 0), 140);
      this.pen.y = Math.min(Math.max(this.pen.y + moves[event.key][1], 0), 140);
      if (this.pen.down) this.stroke(before, [this.pen.x, this.pen.y]);
    } else if (event.key === " ") {
      this.pen.down = !this.pen.down;
      if (this.pen.down) { this.remember(); this.stroke([this.pen.x, this.pen.y], [this.pen.x, this.pen.y]); } else this.tell();
    } else if (event.key === "Delete" || event.key === "Backspace") {
      this.remember();
      this.wipe();
    } else return;
    event.preventDefault();
    this.tip.hidden = false;
    this.tip.classList.toggle("down", this.pen.down);
    this.tip.style.left = `${(100 * this.pen.x) / 140}%`;
    this.tip.style.top = `${(100 * this.pen.y) / 140}%`;
  }
  levels() {
    const pixels = this.context.getImageData(0, 0, this.canvas.width, this.canvas.height).data;
    return Uint8Array.from({ length: pixels.length / 4 }, (_, i) => pixels[4 * i]);
  }
  tell() {
    const levels = this.levels();
    const empty = !levels.some((level) => level >= LEAST);
    this.hint.hidden = !empty;
    if (!empty) this.onDrawn(levels, this.canvas.width);
  }
}
