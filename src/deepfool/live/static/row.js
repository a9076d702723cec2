// A row of a table: a number for each feature, and whether it may change.
import { fromBytes, make } from "./format.js";

export class Row {
  constructor(about, onChanged) {
    this.box = document.getElementById("rows");
    this.about = about;
    const { low, high, median } = about.range;
    this.numbers = median.map((value, i) => make("input", {
      type: "number", step: "any", value: Number(value.toPrecision(6)), "aria-label": `feature ${i + 1}`,
      title: low.length ? `from ${Number(low[i].toPrecision(4))} to ${Number(high[i].toPrecision(4))} in the data` : "",
    }));
    this.free = median.map((_, i) => make("input", { type: "checkbox", checked: true, "aria-label": `feature ${i + 1} may change` }));
    this.box.append(...this.numbers.map((input, i) => make("label", {}, this.free[i], `feature ${i + 1}`, input)));
    for (const input of [...this.numbers, ...this.free]) input.addEventListener("change", () => onChanged());
  }
  fill(values) {
    values.forEach((value, i) => { this.numbers[i].value = value; });
  }
  values() {
    return this.numbers.map((input) => (input.value === "" ? null : Number(input.value)));
  }
  mask() {
    return this.free.every((box) => box.checked) ? null : fromBytes(Uint8Array.from(this.free, (box) => Number(box.checked)));
  }
}
