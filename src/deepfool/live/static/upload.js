// A photo: chosen, dropped anywhere on the page, or pasted.
import * as api from "./api.js";
import { fromBytes, toBytes } from "./format.js";

export class Upload {
  constructor(about, onPicture, onError) {
    this.about = about;
    this.onPicture = onPicture;
    this.onError = onError;
    this.drop = document.getElementById("drop");
    this.invert = document.getElementById("invert");
    document.getElementById("invert-box").hidden = about.shape[0] !== 1;
    const file = document.getElementById("file");
    file.addEventListener("change", () => { if (file.files[0]) this.take(file.files[0]); file.value = ""; });
    this.invert.addEventListener("change", () => this.tell());
    addEventListener("dragover", (event) => { event.preventDefault(); this.drop.classList.add("over"); });
    for (const name of ["dragleave", "drop"]) addEventListener(name, () => this.drop.classList.remove("over"));
    addEventListener("drop", (event) => { event.preventDefault(); this.fetchFrom(event.dataTransfer); });
    addEventListener("paste", (event) => this.fetchFrom(event.clipboardData));
  }
  fetchFrom(transfer) {
    const file = [...(transfer?.files ?? [])].find((each) => each.type.startsWith("image/")) ?? transfer?.files?.[0];
    if (file) this.take(file);
  }
  async take(file) {
    if (file.size > 20e6) return this.onError(new api.Refused("That is too large: at most 20 MB are taken."));
    try {
      this.levels = toBytes((await api.picture(file)).levels);
      return this.tell();
    } catch (error) {
      return this.onError(error);
    }
  }
  tell() {
    if (!this.levels) return;
    this.onPicture(fromBytes(this.invert.checked ? this.levels.map((level) => 255 - level) : this.levels));
  }
}
