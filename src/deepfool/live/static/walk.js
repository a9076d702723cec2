// The scores on the way from x through the boundary to three times r.
import { draw, make, number } from "./format.js";

export class Walk {
  constructor(card, onMove) {
    this.card = card;
    this.svg = card.querySelector(".walk");
    this.slider = card.querySelector(".t");
    this.says = card.querySelector(".t-says");
    this.key = card.querySelector(".key");
    this.play = card.querySelector(".play");
    this.onMove = onMove;
    this.slider.addEventListener("input", () => { this.stop(); this.move(); });
    this.play.addEventListener("click", () => (this.timer ? this.stop() : this.run()));
    new ResizeObserver(() => this.draw()).observe(this.svg);
  }
  get t() {
    return Number(this.slider.value);
  }
  show(data, tones, name) {
    this.data = data;
    this.tones = tones;
    this.name = name;
    this.card.hidden = false;
    this.draw();
    this.key.replaceChildren(...data.classes.map((label) =>
      make("li", {}, make("span", { class: `dot tone${tones.get(label)}` }), name(label))));
    this.move();
  }
  clear() {
    this.stop();
    this.data = null;
    this.card.hidden = true;
    this.slider.value = 1;
  }
  // The scores at t, between the points that were computed.
  scores(t = this.t) {
    const { t: at, classes, shares } = this.data;
    const place = Math.min((t / at[at.length - 1]) * (at.length - 1), at.length - 1 - 1e-9), i = Math.floor(place), rest = place - i;
    return classes.map((label, k) => [label, (1 - rest) * shares[k][i] + rest * shares[k][i + 1]]).sort((a, b) => b[1] - a[1]);
  }
  run() {
    const begin = performance.now(), from = this.t >= 2.99 ? 0 : this.t, quick = 3 - from;
    this.play.textContent = "❚❚";
    this.play.setAttribute("aria-label", "Pause the walk");
    const step = (now) => {
      const t = from + ((now - begin) / 4000) * 3;
      this.slider.value = Math.min(t, 3);
      this.move();
      this.timer = t < from + quick ? requestAnimationFrame(step) : (this.stop(), null);
    };
    this.timer = requestAnimationFrame(step);
  }
  stop() {
    if (this.timer) cancelAnimationFrame(this.timer);
    this.timer = null;
    this.play.textContent = "▶";
    this.play.setAttribute("aria-label", "Play the walk");
  }
  move() {
    if (!this.data) return;
    const scores = this.scores(), [label, share] = scores[0];
    this.says.textContent = `${number(this.t, 3)} × the change: ${this.name(label)}`;
    this.slider.setAttribute("aria-valuetext", `${number(this.t, 3)} times the change: ${this.name(label)}, ${Math.round(100 * share)} percent`);
    if (this.here) for (const name of ["x1", "x2"]) this.here.setAttribute(name, this.x(this.t));
    this.onMove(this.t, scores);
  }
  x(t) {
    return 34 + (t / 3) * (this.width - 44);
  }
  draw() {
    const { clientWidth: width, clientHeight: height } = this.svg;
    if (!this.data || !width) return;
    this.width = width;
    const y = (share) => 8 + (1 - share) * (height - 34), { t, classes, shares } = this.data;
    this.svg.replaceChildren();
    this.svg.setAttribute("aria-label", `Scores along the walk: ${this.scores(0)[0] ? this.name(this.scores(0)[0][0]) : ""} at the original, ${this.name(this.scores(3)[0][0])} at three times the change.`);
    for (const share of [0, 0.5, 1]) {
      this.svg.append(draw("line", { class: "axis", x1: 34, x2: width - 10, y1: y(share), y2: y(share) }));
      this.svg.append(draw("text", { x: 28, y: y(share) + 4, "text-anchor": "end" }, `${100 * share}`));
    }
    for (const [at, text] of [[0, "x"], [1, "x + r"], [2, "x + 2r"], [3, "x + 3r"]])
      this.svg.append(draw("text", { x: this.x(at), y: height - 6, "text-anchor": at === 3 ? "end" : "middle" }, text));
    this.svg.append(draw("line", { class: "edge", x1: this.x(1), x2: this.x(1), y1: y(1), y2: y(0) }));
    classes.forEach((label, k) => {
      const points = shares[k].map((share, i) => `${i ? "L" : "M"}${this.x(t[i]).toFixed(1)} ${y(share).toFixed(1)}`);
      this.svg.append(draw("path", { class: `tone${this.tones.get(label)}`, d: points.join("") }));
    });
    this.here = draw("line", { class: "here", x1: this.x(this.t), x2: this.x(this.t), y1: y(1), y2: y(0) });
    this.svg.append(this.here);
  }
}
