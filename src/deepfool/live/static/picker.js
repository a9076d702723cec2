// Samples of the data: by class, by search, the most fragile first.
import * as api from "./api.js";
import { make, percent, plural } from "./format.js";

export class Picker {
  constructor(about, onPicked, onError) {
    this.about = about;
    this.onPicked = onPicked;
    this.onError = onError;
    this.list = document.getElementById("thumbs");
    this.class = document.getElementById("sample-class");
    this.order = document.getElementById("sample-order");
    this.search = document.getElementById("sample-search");
    this.more = document.getElementById("more-samples");
    this.count = document.getElementById("sample-count");
    this.picked = null;
    this.turn = 0;
    document.getElementById("order-box").hidden = !about.ranked;
    if (about.ranked) this.order.value = "fragile";
    this.list.classList.toggle("as-rows", about.kind !== "picture");
    this.class.append(...about.data.classes.map((each) => make("option", { value: each.label }, `${each.name} (${each.count})`)));
    for (const each of [this.class, this.order]) each.addEventListener("change", () => this.load());
    this.search.addEventListener("input", () => this.seek());
    this.search.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && /^\d+$/.test(this.search.value.trim())) this.pick(Number(this.search.value));
    });
    this.more.addEventListener("click", () => this.load(this.list.children.length));
    document.getElementById("any-sample").addEventListener("click", () => this.pick(Math.floor(Math.random() * about.data.count)));
  }
  seek() {
    const text = this.search.value.trim().toLowerCase();
    const found = text && this.about.data.classes.find((each) => each.name.toLowerCase() === text)
      || text && this.about.data.classes.find((each) => each.name.toLowerCase().includes(text));
    this.class.value = found ? found.label : "";
    this.load();
  }
  async load(start = 0) {
    const turn = ++this.turn;
    let found;
    try {
      found = await api.samples({ label: this.class.value, order: this.order.value, start, count: 40 });
    } catch (error) {
      this.onError(error);
      return;
    }
    if (turn !== this.turn) return;
    if (start === 0) this.list.replaceChildren();
    this.list.append(...found.samples.map((sample) => make("li", {}, this.button(sample))));
    const shown = this.list.children.length;
    this.more.hidden = shown >= found.total;
    this.count.textContent = `${shown} of ${plural(found.total, "sample")}`;
    this.mark();
  }
  button(sample) {
    const told = sample.name ? `class ${sample.name}` : "no label";
    const rho = sample.rho === null ? "" : percent(sample.rho, 2);
    const button = make("button", { type: "button", title: `Sample ${sample.index}, ${told}${rho && `, ρ ${rho}`}` });
    button.setAttribute("aria-label", `Sample ${sample.index}, ${told}${rho && `, needs ${rho}`}`);
    button.dataset.index = sample.index;
    if (sample.picture) {
      const large = Math.max(...this.about.shape.slice(1)) > 96;
      button.append(make("img", { src: sample.picture, alt: "", class: large ? "smooth" : "" }), rho || sample.name);
    } else {
      button.append(`${sample.index}: ${sample.name} (${sample.values.slice(0, 4).map((value) => Number(value.toPrecision(3))).join(", ")}…)`);
    }
    button.addEventListener("click", () => this.pick(sample.index, sample));
    return button;
  }
  pick(index, sample = null) {
    if (index >= this.about.data.count) return this.onError(new api.Refused(`There are ${this.about.data.count} samples, numbered from 0.`));
    this.picked = index;
    this.mark();
    return this.onPicked(index, sample);
  }
  mark() {
    for (const button of this.list.querySelectorAll("button")) button.setAttribute("aria-pressed", Number(button.dataset.index) === this.picked);
  }
}
