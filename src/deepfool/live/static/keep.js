// What can be taken home.
import { make, number, ratio } from "./format.js";

export function drawKeep(card, kept, { link, everything, name, stem }) {
  card.hidden = false;
  const buttons = card.querySelector(".keep-buttons"), note = card.querySelector(".keep-note"), again = card.querySelector(".again");
  const file = (text, href, ending) => make("a", { href, download: `${stem}-${ending}` }, text);
  buttons.replaceChildren();
  note.textContent = "";
  if (kept.fooling) {
    const button = file("Fooling image (8 bits)", kept.fooling.png, "fooled.png");
    button.dataset.keep = "fooling";
    buttons.append(button);
    const further = kept.fooling.scale > 1 ? ` It goes ${number(kept.fooling.scale)} times as far, so that rounding does not undo it.` : "";
    note.textContent = `The image in 8 bits per channel is still ${name(kept.fooling.label)}: a change of ${ratio(kept.fooling.rho)}.${further}`;
  } else if (kept.original) {
    note.textContent = "No 8-bit image in the direction of this change alters the decision as asked: the change is smaller than a grey level.";
  }
  if (kept.original) buttons.append(file("Original", kept.original, "original.png"));
  if (kept.picture) buttons.append(file("Picture", kept.picture, "picture.png"));
  const json = make("button", { type: "button" }, "Everything (JSON)");
  json.addEventListener("click", () => {
    const url = URL.createObjectURL(new Blob([JSON.stringify(everything())], { type: "application/json" }));
    make("a", { href: url, download: "deepfool.json" }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  });
  buttons.append(json);
  const url = link();
  if (url) buttons.append(copying("Copy link", url));
  again.replaceChildren();
  if (kept.command) {
    buttons.append(copying("Copy command", kept.command));
    again.append(make("pre", { class: "command-line" }, kept.command));
  }
  again.append(make("details", {}, make("summary", {}, "The same in Python"), make("pre", {}, kept.python)));
}

function copying(text, content) {
  const button = make("button", { type: "button" }, text);
  button.dataset.content = content;
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(content);
      button.textContent = "Copied";
    } catch {
      prompt("Copy this:", content);
    }
    setTimeout(() => { button.textContent = text; }, 1500);
  });
  return button;
}
