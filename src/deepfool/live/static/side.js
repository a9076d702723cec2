// Everything about one model and one attack: the three pictures, the scale, the walk, the map, the steps.
import { make, norm, number, percent, plural, ratio, toFloats } from "./format.js";
import { drawKeep } from "./keep.js";
import { DecisionMap, tellPeek } from "./map.js";
import { along, paint, Tones } from "./pixels.js";
import { drawScale } from "./scale.js";
import { drawSteps } from "./steps.js";
import { Walk } from "./walk.js";

export class Side {
  constructor(context) {
    Object.assign(this, context);  // about, side {model, attack}, question, title, mask, link, onPlane
    this.root = document.getElementById("side").content.firstElementChild.cloneNode(true);
    this.find = (selector) => this.root.querySelector(selector);
    this.answers = [];
    this.walks = {};
    this.title = context.title;
    if (this.title) {
      this.find(".side-name").hidden = false;
      this.find(".side-name").textContent = this.title;
    }
    this.picture = this.about.kind === "picture";
    if (!this.picture) { this.find(".tri").remove(); this.find(".peek .frame").remove(); }
    this.walk = new Walk(this.find(".walk-card"), (t, scores) => this.moved(t, scores));
    const plane = this.find(".plane");
    plane.value = this.question.plane;
    plane.addEventListener("change", () => this.onPlane(plane.value));
  }
  get box() {
    return Array.isArray(this.question.bounds) ? this.question.bounds : null;
  }
  name(label) {
    return this.about.models[this.side.model].classes[label] ?? String(label);
  }
  on(name, event) {
    this[`on_${name}`]?.(event);
  }

  on_input(event) {
    this.x = toFloats(event.x);
    this.input = event;
    this.tones = new Tones(event.label);
    this.map = new DecisionMap(this.find(".map-card"), { tones: this.tones, name: (label) => this.name(label), onPeek: (spot) => this.peek(spot) });
    if (this.picture) {
      const canvas = this.find(".original .pic");
      paint(canvas, this.x, this.about.shape);
      canvas.setAttribute("aria-label", `The original: the model sees ${this.name(event.label)}`);
      this.mask?.attach(this.find(".maskpad"));
      this.find(".original .is").textContent = this.name(event.label);
    }
  }
  on_answer(event) {
    event.r = toFloats(event.r);
    this.answers.push(event);
    const own = new Set(this.question.sides.map((side) => side.attack)).size > 1 && event.attack === this.side.attack;
    const better = own || !this.shown || !this.shown.fooled || (event.fooled && event.norm <= this.shown.norm);
    this.choices();
    if (better) this.choose(event);
    this.scale();
  }
  on_walk(event) {
    this.walks[event.attack] = event;
    if (this.shown?.attack === event.attack) this.walk.show(event, this.tones, (label) => this.name(label));
  }
  on_steps(event) {
    drawSteps(this.find(".steps-card"), event.steps, {
      p: this.question.p, name: (label) => this.name(label), label: this.input.label, fooled: this.answers[0]?.fooled,
    });
    this.steps = event.steps;
  }
  on_bound(event) {
    this.bound = event;
    this.scale();
    if (event.line) this.map.prove(event.line);
  }
  on_map(event) {
    this.map.update(event);
    this.mapped = { n: event.n, classes: event.classes };
    if (event.u) this.map.point(0.5, 0.5);
  }
  on_nomap(event) {
    this.map.refuse(event.why);
    this.find(".peek").hidden = true;
  }
  on_kept(event) {
    this.kept = event;
    drawKeep(this.find(".keep-card"), event, {
      link: this.link, everything: () => this.everything(), name: (label) => this.name(label),
      stem: `${this.about.models[this.side.model].name}-${event.attack}`.replace(/[^\w.-]+/g, "_"),
    });
  }

  scale() {
    const box = this.find(".scale-box");
    box.hidden = !this.answers.some((answer) => answer.fooled);
    this.find(".scale-note").textContent = drawScale(this.find(".scale"), {
      answers: this.answers, bound: this.bound, p: this.question.p, size: this.input.size,
    });
  }
  choices() {
    const box = this.find(".answers");
    box.hidden = this.answers.length < 2;
    box.replaceChildren(...this.answers.map((answer) => {
      const radio = make("input", { type: "radio", name: `answer-${this.number}`, value: answer.attack });
      radio.addEventListener("change", () => this.choose(answer));
      return make("label", {}, radio, make("span", {}, answer.attack, make("i", {}, answer.fooled ? ratio(answer.rho) : "failed")));
    }));
    this.tick();
  }
  tick() {
    for (const radio of this.find(".answers").querySelectorAll("input")) radio.checked = radio.value === this.shown?.attack;
  }
  choose(answer) {
    this.shown = answer;
    this.tick();
    const reason = this.find(".reason");
    reason.hidden = !answer.reason;
    reason.textContent = answer.fooled ? answer.reason : `${answer.attack} did not change the decision: ${answer.reason}`;
    this.tones.became(answer.adv_label);
    if (this.picture) this.bars(this.find(".original .bars"), this.input.scores);
    if (this.map.grid) { this.map.paint(); this.map.overlay(); }
    this.root.dataset.attack = answer.attack;
    this.root.dataset.fooled = answer.fooled;
    if (this.picture) this.fill(answer);
    this.result(1, answer.scores);
    if (this.walks[answer.attack]) this.walk.show(this.walks[answer.attack], this.tones, (label) => this.name(label));
    else this.walk.clear();
    this.onShown?.(this);
  }
  fill(answer) {
    const image = this.find(".change .pic");
    image.src = answer.perturbation;
    image.alt = `The change, magnified ${number(answer.factor, 2)} times`;
    image.classList.toggle("sharp", Math.max(...this.about.shape.slice(1)) <= 96);
    this.find(".change .is").textContent = answer.fooled ? ratio(answer.rho) : "none found";
    const facts = [
      ["", `${norm(this.question.p)} norm `, make("b", {}, number(answer.norm))],
      ["", "shown ", make("b", {}, `${number(answer.factor, 2)} ×`), " as strong"],
      ["", `${answer.attack}, ${plural(answer.iterations, "step")}, `, answer.seconds < 1 ? `${Math.round(1000 * answer.seconds)} ms` : `${number(answer.seconds, 2)} s`],
    ];
    this.find(".facts").replaceChildren(...facts.map((parts) => make("div", {}, ...parts)));
  }
  moved(t, scores) {
    this.result(t, scores);
  }
  // What is t times the change away.
  result(t, scores) {
    const [label] = scores[0];
    if (!this.picture) return this.table(t, scores);
    const figure = this.find(".result"), canvas = figure.querySelector(".pic");
    paint(canvas, along(this.x, this.shown.r, t, this.box ?? [0, 1]), this.about.shape);
    canvas.setAttribute("aria-label", `The result: the model sees ${this.name(label)}`);
    figure.className = `result tone${this.tones.get(label)}`;
    figure.querySelector(".is").textContent = this.name(label);
    figure.querySelector(".what").textContent = t === 1 ? "the result" : `x + ${number(t, 3)} r`;
    this.bars(figure.querySelector(".bars"), scores);
    return undefined;
  }
  bars(list, scores) {
    const names = scores.map(([label]) => this.name(label));
    list.classList.toggle("short", names.every((text) => text.length <= 2));
    list.replaceChildren(...scores.slice(0, 5).map(([label, share], i) => {
      const fill = make("span", { class: `fill tone${this.tones.get(label)}` });
      fill.style.width = `${100 * share}%`;
      return make("li", {}, make("span", { class: "who", title: names[i] }, names[i]), make("span", { class: "rail" }, fill), make("span", { class: "share" }, percent(share)));
    }));
  }
  // Rows and signals: the features that change most.
  table(t, scores) {
    const box = this.find(".table"), r = this.shown.r;
    box.hidden = false;
    const order = [...r.keys()].sort((i, j) => Math.abs(r[j]) - Math.abs(r[i])).slice(0, 12);
    const spread = (i) => { const { low, high } = this.about.range ?? { low: [], high: [] }; return low.length && high[i] > low[i] ? high[i] - low[i] : 1; };
    const most = Math.max(...order.map((i) => Math.abs(r[i]) / spread(i))) || 1;
    const rows = order.map((i) => {
      const part = make("i", { class: r[i] > 0 ? "up" : "down" });
      part.style.width = `${Math.min(50, (50 * Math.abs(t * r[i])) / spread(i) / most)}%`;
      return make("tr", {}, make("th", { scope: "row" }, `feature ${i + 1}`), make("td", {}, number(this.x[i], 4)),
        make("td", { class: "bar-cell" }, make("span", { class: "delta" }, part)), make("td", {}, `${r[i] > 0 ? "+" : ""}${number(t * r[i], 3)}`), make("td", {}, number(this.x[i] + t * r[i], 4)));
    });
    const head = make("tr", {}, ...["", "original", "change", "", "result"].map((text) => make("th", { scope: "col" }, text)));
    const lists = [[this.input.scores, "The original"], [scores, "The result"]].map(([some, what]) => {
      const list = make("ol", { class: "bars", "aria-label": `Scores of ${what.toLowerCase()}` });
      this.bars(list, some);
      return make("div", {}, make("h3", {}, `${what}: ${this.name(some[0][0])}`), list);
    });
    box.replaceChildren(make("div", { class: "scroll" }, make("table", { class: "features" }, make("thead", {}, head), make("tbody", {}, ...rows))), make("div", { class: "two-scores" }, ...lists));
  }
  peek(spot) {
    this.find(".peek-says").replaceChildren(make("b", {}, this.name(spot.label)), tellPeek(spot));
    if (!this.picture) return;
    const y = new Float32Array(this.x.length);
    for (let i = 0; i < y.length; i++) y[i] = this.x[i] + spot.a * spot.u[i] + spot.b * spot.v[i];
    const canvas = this.find(".peek .pic");
    paint(canvas, y, this.about.shape);
    canvas.setAttribute("aria-label", `The image at that point: ${this.name(spot.label)}`);
  }
  // All that was found, for the JSON.
  everything() {
    const scores = (some) => some.map(([label, share]) => ({ label, name: this.name(label), probability: share }));
    return {
      deepfool: this.about.version, model: this.about.models[this.side.model].spec, question: { ...this.question, sides: undefined },
      shape: this.about.shape, x: [...this.x], label: this.input.label, mask: this.maskValues(), scores: scores(this.input.scores),
      answers: this.answers.map((answer) => ({
        attack: answer.attack, fooled: answer.fooled, adv_label: answer.adv_label, norm: answer.norm, rho: answer.rho,
        iterations: answer.iterations, reason: answer.reason, scores: scores(answer.scores), r: [...answer.r],
      })),
      steps: this.steps ?? [], walks: this.walks, bound: this.bound ?? null,
      command: this.kept?.command ?? null, python: this.kept?.python ?? null,
    };
  }
  maskValues() {
    if (!this.question.mask) return null;
    const bytes = [...atob(this.question.mask)].map((letter) => letter.charCodeAt(0) !== 0);
    return this.picture && this.about.shape[0] === 3 ? [...bytes, ...bytes, ...bytes] : bytes;
  }
}
