// A line from the original outwards: what is proven to be safe, where the attacks got through.
import { make, norm, number, ratio } from "./format.js";

const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;

export function drawScale(box, { answers, bound, p, size }) {
  const found = answers.filter((answer) => answer.fooled).sort((a, b) => a.norm - b.norm);
  box.replaceChildren();
  if (!found.length) return "";
  const most = 1.18 * found[found.length - 1].norm;
  const place = (value) => `${(100 * value) / most}%`;
  const line = make("div", { class: "line" }), beyond = make("div", { class: "beyond" });
  beyond.style.left = place(found[0].norm);
  box.append(line, beyond);
  const mark = (value, name, kind, under) => {
    const at = make("div", { class: `mark ${kind}` }, make("span", { class: under ? "under" : "over" }, name));
    at.style.left = place(value);
    if (value / most > 0.82) at.classList.add("left");
    else if (value / most < 0.12 && value > 0) at.classList.add("right");
    box.append(at);
  };
  mark(0, "the original", "start", false);
  if (bound && bound.lower > 0) {
    const safe = make("div", { class: "safe" });
    safe.style.width = place(bound.lower);
    box.append(safe);
    mark(bound.lower, `proven safe up to ${number(bound.lower)}`, "bound ends", true);
  }
  const begins = bound?.lower > 0 ? "begins" : "";  // so that it does not lie on what is proven
  found.forEach((answer, i) => mark(answer.norm, `${answer.attack} ${number(answer.norm)}`, i ? "" : begins, i % 2 === 0));
  const best = found[0];
  const told = `${norm(p)} norm of the change. The nearest boundary that was found is ${number(best.norm)} away, ${ratio(best.norm / size)} of the size of the input (ρ).`;
  if (bound?.exact) return `${told} It is proven that no smaller change that is allowed alters the decision (within 0.1 %).`;
  if (bound?.lower > 0) return `${told} It is proven that no change smaller than ${number(bound.lower)} that is allowed alters the decision.`;
  return `${told} A better search could only find a smaller one.${bound?.reason ? ` ${sentence(bound.reason)}` : ""}`;
}
