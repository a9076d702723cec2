// DeepFool's iterations: which boundary was nearest, how long the step was, where it led.
import { make, norm, number, percent } from "./format.js";

export function drawSteps(card, steps, { p, name, label, fooled }) {
  const most = Math.max(...steps.map((step) => step.length));
  card.hidden = false;
  card.querySelector(".steps-list").replaceChildren(...steps.map((step, i) => {
    const last = fooled && i === steps.length - 1;
    const meter = make("span", { class: "meter" });
    meter.style.width = `${Math.max(1, (100 * step.length) / most)}%`;
    const now = name(step.scores[0][0]), was = percent(step.before, 2);
    return make("li", { class: last ? "end" : "" },
      make("span", { class: "n" }, String(i + 1)),
      make("span", {}, "towards ", make("b", {}, name(step.nearest)), last ? `: across the boundary, with 2 % to spare` : `: ${name(label)} is left with ${was}`),
      make("span", { class: "long", title: `In all ${number(step.total)}; it now looks most like ${now}` }, `${norm(p)} ${number(step.length)}`),
      meter);
  }));
}
