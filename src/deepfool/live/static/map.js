// The decision regions in a plane through x, with the path of DeepFool and the balls.
import { draw, number, percent, toBytes, toFloats } from "./format.js";
import { colour } from "./pixels.js";

const FINE = 460;  // pixels on a side of the drawn map

export class DecisionMap {
  constructor(card, { tones, name, onPeek }) {
    this.card = card;
    this.box = card.querySelector(".map");
    this.canvas = this.box.querySelector("canvas");
    this.svg = this.box.querySelector("svg");
    this.note = card.querySelector(".map-note");
    this.tones = tones;
    this.name = name;
    this.onPeek = onPeek;
    this.spot = [0.5, 0.5];
    this.box.addEventListener("pointermove", (event) => this.follow(event));
    this.box.addEventListener("pointerdown", (event) => this.follow(event));
    this.box.addEventListener("keydown", (event) => this.type(event));
    new ResizeObserver(() => this.overlay()).observe(this.box);
  }
  follow(event) {
    const box = this.box.getBoundingClientRect();
    this.point((event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height);
  }
  type(event) {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (!(event.key in moves)) return;
    event.preventDefault();
    const step = event.shiftKey ? 0.08 : 0.02;
    this.point(this.spot[0] + step * moves[event.key][0], this.spot[1] + step * moves[event.key][1]);
  }
  // A point of the map, from the top left in [0, 1]: shows what is there.
  point(x, y) {
    if (!this.grid) return;
    this.spot = [Math.min(Math.max(x, 0), 1), Math.min(Math.max(y, 0), 1)];
    const { n, classes } = this.grid;
    const at = Math.round(this.spot[1] * (n - 1)) * n + Math.round(this.spot[0] * (n - 1));
    const a = (2 * this.spot[0] - 1) * this.plane.half, b = (1 - 2 * this.spot[1]) * this.plane.half;
    this.cross();
    this.onPeek({ a, b, u: this.plane.u, v: this.plane.v, label: classes[this.labels[at]], share: this.shares[at] / 255, far: Math.hypot(a, b) });
  }
  update(event) {
    if (event.u) this.plane = { ...event, u: toFloats(event.u), v: toFloats(event.v) };
    this.grid = event;
    this.labels = toBytes(event.labels);
    this.shares = toBytes(event.shares);
    this.card.hidden = false;
    this.box.hidden = false;
    this.paint();
    this.overlay();
    if (event.u) this.describe();
  }
  describe() {
    const { attack, towards, path } = this.plane;
    const second = towards === null ? "a random direction" : `the way to ${this.name(towards)}`;
    this.note.textContent = `A plane through the original, the boundary point that ${attack} found (to the right) and ${second}. ` +
      `The dashed line is the ball that reaches that point. The path is DeepFool's, ${path.length - 1} ${path.length === 2 ? "step" : "steps"}, projected on the plane.` +
      " Lighter colours: less sure. The map does not stop at the box.";
    this.box.setAttribute("aria-label", `Map of the decisions around the input: ${this.grid.classes.map((label) => this.name(label)).join(", ")}. Arrow keys move a point over it.`);
  }
  // The ball in which no decision changes, as its line in the plane.
  prove(line) {
    this.proven = line;
    this.overlay();
    this.note.append(" In the green ball no change that is allowed alters the decision: that is proven.");
  }
  refuse(why) {
    this.card.hidden = false;
    this.box.hidden = true;
    this.note.textContent = why;
  }
  // How much of each class is around each point of the grid: the steps of the grid, rounded off.
  smooth() {
    const { n, classes } = this.grid;
    const pass = (from, next) => Float32Array.from(from, (value, i) => {
      const at = next === 1 ? i % n : Math.floor(i / n);
      return (2 * value + from[at > 0 ? i - next : i] + from[at < n - 1 ? i + next : i]) / 4;
    });
    return classes.map((_, k) => {
      let one = Float32Array.from(this.labels, (label) => Number(label === k));
      for (let turn = 0; turn < 2; turn++) one = pass(pass(one, 1), n);
      return one;
    });
  }
  // Between four points of the grid each class has a weight, and the largest one wins.
  paint() {
    const { n, classes } = this.grid, base = colour("--card"), ink = colour("--text");
    const palette = classes.map((label) => colour(`--s${this.tones.get(label)}`));
    this.canvas.width = this.canvas.height = FINE;
    const context = this.canvas.getContext("2d"), image = context.createImageData(FINE, FINE);
    const winner = new Uint8Array(FINE * FINE), weight = new Float32Array(classes.length), smooth = this.smooth();
    for (let row = 0; row < FINE; row++) for (let column = 0; column < FINE; column++) {
      const gx = (column / (FINE - 1)) * (n - 1), gy = (row / (FINE - 1)) * (n - 1);
      const i = Math.min(Math.floor(gx), n - 2), j = Math.min(Math.floor(gy), n - 2), fx = gx - i, fy = gy - j;
      let share = 0;
      weight.fill(0);
      for (const [di, dj, part] of [[0, 0, (1 - fx) * (1 - fy)], [1, 0, fx * (1 - fy)], [0, 1, (1 - fx) * fy], [1, 1, fx * fy]]) {
        const at = (j + dj) * n + i + di;
        for (let k = 0; k < classes.length; k++) weight[k] += part * smooth[k][at];
        share += (part * this.shares[at]) / 255;
      }
      let best = 0;
      for (let k = 1; k < classes.length; k++) if (weight[k] > weight[best]) best = k;
      const at = row * FINE + column, strong = 0.16 + 0.5 * share * share;
      winner[at] = best;
      for (let c = 0; c < 3; c++) image.data[4 * at + c] = base[c] + strong * (palette[best][c] - base[c]);
      image.data[4 * at + 3] = 255;
    }
    for (let row = 1; row < FINE; row++) for (let column = 1; column < FINE; column++) {
      const at = row * FINE + column;
      if (winner[at] !== winner[at - 1] || winner[at] !== winner[at - FINE])
        for (let c = 0; c < 3; c++) image.data[4 * at + c] = 0.35 * image.data[4 * at + c] + 0.65 * ink[c];
    }
    context.putImageData(image, 0, 0);
  }
  overlay() {
    const side = this.box.clientWidth;
    if (!this.plane || !side) return;
    const { half, path, ball, found, other, towards } = this.plane;
    const place = ([a, b]) => [((a / half + 1) / 2) * side, ((1 - b / half) / 2) * side];
    const line = (points) => points.map((point, i) => `${i ? "L" : "M"}${place(point).map((value) => value.toFixed(1)).join(" ")}`).join("");
    const inside = (at, room) => Math.min(Math.max(at, room), side - room);  // a name is not cut off at the edge
    this.svg.setAttribute("viewBox", `0 0 ${side} ${side}`);
    this.svg.replaceChildren();
    if (this.proven) this.svg.append(draw("path", { class: "ball ball-certified", d: `${line(this.proven)}Z` }));
    this.svg.append(draw("path", { class: "ball", d: `${line(ball)}Z` }));
    for (const [label, x, y] of this.grid.names)
      this.svg.append(draw("text", { class: "region", x: inside(x * side, 5 * this.short(label).length + 6), y: Math.min(Math.max(y * side, 20), side - 12) + 5 }, this.short(label)));
    if (other) {
      const [x, y] = place(other);
      this.svg.append(draw("circle", { class: `other tone${this.tones.get(towards)}`, cx: x, cy: y, r: 5 }));
    }
    this.svg.append(draw("path", { class: "path", d: line(path) }));
    for (const point of path.slice(1)) { const [x, y] = place(point); this.svg.append(draw("circle", { class: "stop", cx: x, cy: y, r: 3.6 })); }
    const [fx, fy] = place(found), [sx, sy] = place([0, 0]);
    this.svg.append(draw("path", { class: "found", d: `M${fx} ${fy - 8}L${fx + 8} ${fy}L${fx} ${fy + 8}L${fx - 8} ${fy}Z` }));
    this.svg.append(draw("circle", { class: "start", cx: sx, cy: sy, r: 6 }), draw("text", { x: sx - 14, y: sy - 10 }, "x"));
    this.at = draw("path", { class: "cross" });
    this.svg.append(this.at);
  }
  cross() {
    const side = this.box.clientWidth, [x, y] = this.spot.map((value) => value * side);
    this.at?.setAttribute("d", `M${x - 7} ${y}h14M${x} ${y - 7}v14`);
  }
  short(label) {
    const text = this.name(label);
    return text.length > 18 ? `${text.slice(0, 17)}…` : text;
  }
}
export const tellPeek = ({ share, far }) => `${percent(share)} sure, ${number(far)} away (ℓ2)`;
