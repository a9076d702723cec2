// The page: what is on show, what is asked, and where the answers go.
import * as api from "./api.js";
import { fromBytes, make, norm, plural, ratio } from "./format.js";
import { Mask } from "./masking.js";
import { Pad } from "./pad.js";
import { Picker } from "./picker.js";
import { Row } from "./row.js";
import { Side } from "./side.js";
import { Upload } from "./upload.js";

const element = (id) => document.getElementById(id);
const LONGEST_LINK = 12000;
let about, input = null, sides = [], aborter = null, mask = null, row = null, picker = null, plane = "class";

// ---- what is asked ----
function sidesAsked() {
  const first = { model: 0, attack: element("attack").value }, other = element("compare").value;
  if (!other) return [first];
  const [kind, value] = other.split(/:(.*)/s);
  return [first, kind === "model" ? { model: Number(value), attack: first.attack } : { model: 0, attack: value }];
}
function question() {
  const p = document.querySelector("[name=p]:checked").value, bounds = element("bounds").value;
  return {
    input, p: p === "inf" ? p : Number(p), bounds: { unit: [0, 1], data: "data", none: null }[bounds],
    target: element("target").value === "" ? null : Number(element("target").value), goal: element("goal").value || null,
    mask: row ? row.mask() : mask?.encoded() ?? null, effort: Number(element("effort").value), plane, sides: sidesAsked(),
  };
}
function titleOf(side) {
  return sidesAsked().length === 1 ? "" : element("compare").value.startsWith("model") ? about.models[side.model].name : side.attack;
}

// A link that asks the same again; none where the input is too large for one.
function link() {
  const asked = question();
  if (asked.input.kind === "drawing" && sides[0]?.x) {
    asked.input = { kind: "pixels", levels: fromBytes(Uint8Array.from(sides[0].x, (value) => Math.round(255 * value))) };
  }
  const hash = encodeURIComponent(btoa(JSON.stringify(asked)));
  return hash.length > LONGEST_LINK ? null : `${location.origin}/#${hash}`;
}
function restore() {
  if (location.hash.length < 3) return false;
  try {
    const asked = JSON.parse(atob(decodeURIComponent(location.hash.slice(1))));
    document.querySelector(`[name=p][value="${asked.p}"]`).checked = true;
    element("attack").value = asked.sides[0].attack;
    element("effort").value = asked.effort;
    element("target").value = asked.target ?? "";
    showGoal(asked.goal ?? null);
    element("bounds").value = asked.bounds === "data" ? "data" : asked.bounds ? "unit" : "none";
    const other = asked.sides[1];
    element("compare").value = !other ? "" : other.model ? `model:${other.model}` : `attack:${other.attack}`;
    mask?.restore(asked.mask);
    plane = asked.plane ?? "class";
    if (asked.input.kind === "row") row?.fill(asked.input.values);
    if (asked.input.kind === "sample" && picker) { picker.picked = asked.input.index; picker.mark(); }
    input = asked.input;
    showEffort();
    return true;
  } catch {
    complain(new api.Refused("The link cannot be read."));
    return false;
  }
}

// ---- asking ----
async function go() {
  if (!input) return;
  aborter?.abort();
  const mine = (aborter = new AbortController()), asked = question();
  clearComplaint();
  const started = performance.now();
  let fresh = null;
  document.body.dataset.state = "asking";
  const ready = () => {  // the old result stays until the new one begins to arrive
    if (fresh) return fresh;
    fresh = asked.sides.map((side, number) => new Side({
      about, side, question: asked, number, title: titleOf(side), mask: row ? null : mask, link,
      onPlane: (value) => { plane = value; go(); }, onShown: headline,
    }));
    sides = fresh;
    element("sides").classList.toggle("two", sides.length === 2);
    element("sides").replaceChildren(...sides.map((side) => side.root));
    return fresh;
  };
  const on = (name, event) => {
    if (mine !== aborter) return;
    if (name === "queued") working(event.ahead ? `${plural(event.ahead, "question")} before yours` : "asking");
    else if (name === "stage") working(event.title);
    else if (name === "progress") element("stage").dataset.passes = event.passes;
    else if (name === "failed") complain(new api.Refused(event.message));
    else if (name !== "done") {
      ready()[event.side].on(name, event);
      if (name === "answer" && event.attack === "deepfool") mark("answered", started);
      if (name === "map") mark("mapped", started);
    } else mark("done", started);
  };
  working("asking");
  try {
    await api.ask(asked, on, mine.signal);
    if (mine === aborter) say();
  } catch (error) {
    if (mine === aborter && !mine.signal.aborted) complain(error);
  } finally {
    if (mine === aborter) {
      element("working").hidden = true;
      if (document.body.dataset.state === "asking") document.body.dataset.state = "idle";
    }
  }
}
// When something was on the screen, in milliseconds since it was asked for: read by the benchmark and the tests.
function mark(name, started) {
  requestAnimationFrame(() => { document.body.dataset[name] = Math.round(performance.now() - started); });
}
function working(text) {
  element("working").hidden = false;
  element("stage").textContent = text;
}

// ---- what is said ----
function headline() {
  const shown = sides.filter((side) => side.shown), title = element("headline"), lead = element("subline");
  if (!shown.length) return;
  const [first, second] = shown, answer = first.shown;
  const label = make("span", { class: "was" }, first.name(answer.label)), to = make("span", { class: "now" }, first.name(answer.adv_label));
  if (second) {
    const [a, b] = [first, second].map((side) => side.shown);
    if (a.fooled && b.fooled) {
      const more = a.norm >= b.norm ? first : second, times = Math.max(a.norm, b.norm) / Math.min(a.norm, b.norm);
      const models = element("compare").value.startsWith("model");
      title.textContent = times < 1.005 ? "Both need the same change." : models
        ? `${more.title} needs a change ${Number(times.toPrecision(3))} times as large.`
        : `${(more === first ? second : first).title} finds the smaller change, by a factor of ${Number(times.toPrecision(3))}.`;
    } else title.textContent = "One of the two did not change the decision.";
  } else if (answer.fooled && first.question.goal?.startsWith("top")) {
    title.replaceChildren("The model sees ", label, `. A change of ${ratio(answer.rho)} puts it behind ${first.question.goal.slice(4)} others.`);
  } else if (answer.fooled) title.replaceChildren("The model sees ", label, `. A change of ${ratio(answer.rho)} makes it `, to, told(first.question.goal), ".");
  else title.replaceChildren("The model sees ", label, `, and ${answer.attack} could not change that.`);
  const thing = about.kind === "picture" ? "image" : "input", asked = first.question;
  const where = asked.mask ? ", where it may change" : "", into = asked.target === null ? "" : ` into ${first.name(asked.target)}`;
  const truth = first.input.true, wrong = truth !== null && truth >= 0 && truth !== answer.label ? ` Its label in the data is ${first.name(truth)}.` : "";
  const attacks = [...new Set(shown.map((side) => side.shown.attack))].flatMap((name, i) => [i ? " and " : "", make("code", {}, name)]);
  lead.replaceChildren(`The smallest change${into} of this ${thing} that `, ...attacks, ` found${where}, measured in ${norm(asked.p)}.${wrong}`);
}
// What more than winning was asked of the other class.
function told(goal) {
  const [kind, value] = (goal ?? "").split(":");
  return kind === "confidence" ? `, at ${Number((100 * Number(value)).toPrecision(4))} %` : kind === "margin" ? `, ahead by ${value}` : "";
}
function say() {
  element("said").textContent = `${element("headline").textContent} ${element("subline").textContent}`;
}
function complain(error) {
  const box = element("alert"), gone = error instanceof api.Gone;
  box.hidden = false;
  box.textContent = gone ? `${error.message} Has it been stopped? Start it again in the terminal with deepfool live; this page goes on when it is back.` : error.message;
  document.body.dataset.state = gone ? "gone" : "idle";
  element("working").hidden = true;
  if (gone) wait();
}
function clearComplaint() {
  element("alert").hidden = true;
}
let waiting = null;
function wait() {
  clearInterval(waiting);
  waiting = setInterval(async () => {
    if (!(await api.isBack())) return;
    clearInterval(waiting);
    clearComplaint();
    document.body.dataset.state = "idle";
  }, 2000);
}

// ---- the controls ----
function showTab(name) {
  for (const tab of element("tabs").children) {
    const on = tab.id === `tab-${name}`;
    tab.setAttribute("aria-selected", on);
    tab.tabIndex = on ? 0 : -1;
    element(tab.getAttribute("aria-controls")).hidden = !on;
  }
}
function setUpTabs(names) {
  element("tabs").hidden = names.length < 2;
  for (const name of names) element(`tab-${name}`).hidden = false;
  const tabs = names.map((name) => element(`tab-${name}`));
  tabs.forEach((tab, i) => {
    tab.addEventListener("click", () => showTab(names[i]));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const next = (i + step + tabs.length) % tabs.length;
      showTab(names[next]);
      tabs[next].focus();
    });
  });
  showTab(names[0]);
}
// Out of the top k is no matter of one class: it goes without a target. A link may ask for a goal that is not listed.
function showGoal(goal = undefined) {
  const select = element("goal"), target = element("target");
  if (goal !== undefined) {
    if (goal && ![...select.options].some((option) => option.value === goal)) select.append(make("option", { value: goal }, goal));
    select.value = goal ?? "";
  }
  target.disabled = select.value.startsWith("top");
  if (target.disabled) target.value = "";
}
function showEffort() {
  const other = element("compare").value;
  element("effort-box").hidden = element("attack").value !== "smallest" && other !== "attack:smallest";
}
function setUpControls() {
  element("attack").append(...about.attacks.map(({ name }) => make("option", { value: name, selected: name === "smallest" }, name === "deepfool" ? "nothing else" : name)));
  const classes = about.models[0].classes.map((name, label) => [name, label]);
  if (classes.length > 30) classes.sort(([a], [b]) => a.localeCompare(b));
  element("target").append(...classes.map(([name, label]) => make("option", { value: label }, name)));
  const compare = element("compare");
  compare.append(...about.models.slice(1).map((model, i) => make("option", { value: `model:${i + 1}` }, model.name)));
  compare.append(...about.attacks.map(({ name }) => make("option", { value: `attack:${name}` }, name)));
  if (about.models.length > 1) compare.value = "model:1";
  const table = about.kind !== "picture";
  element("mask-box").hidden = table;
  element("bounds").querySelector("[value=data]").hidden = !(about.kind === "row" && about.data);
  element("bounds").querySelector("[value=unit]").hidden = about.kind === "row";
  element("bounds").value = table ? "none" : "unit";
  for (const option of [...element("goal").options]) {
    const [kind, k] = option.value.split(":");
    if (kind === "top" && Number(k) >= Math.min(...about.models.map((model) => model.classes.length))) option.remove();
  }
  for (const each of [element("attack"), element("effort"), element("target"), element("goal"), element("bounds"), compare, ...document.querySelectorAll("[name=p]")])
    each.addEventListener("change", () => { showEffort(); showGoal(); go(); });
  element("cancel").addEventListener("click", () => { aborter?.abort(); element("working").hidden = true; document.body.dataset.state = "idle"; });
  if (matchMedia("(max-width: 44rem)").matches) element("question").open = false;
  showEffort();
}
function setUpTheme() {
  const root = document.documentElement;
  element("theme").addEventListener("click", () => {
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    repaint();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
}
function repaint() {
  for (const side of sides) if (side.map?.grid) side.map.paint();
}

async function begin() {
  setUpTheme();
  try {
    about = await api.about();
  } catch (error) {
    complain(error);
    return;
  }
  const onshow = element("onshow");
  onshow.replaceChildren(...about.models.flatMap((model, i) => [i ? " and " : "", make("b", {}, model.name)]), about.data ? ` on ${about.data.name}` : "");
  element("foot").textContent = `deepfool ${about.version}. Everything is computed on this machine; nothing is sent anywhere. What an attack finds is an upper bound on the distance to the boundary.`;
  setUpControls();
  const tabs = [];
  if (about.drawable) { tabs.push("draw"); new Pad((levels, side) => { input = { kind: "drawing", side, levels: fromBytes(levels) }; go(); }); }
  if (about.kind === "row") { tabs.push("row"); row = new Row(about, () => { input = { kind: "row", values: row.values() }; go(); }); }
  if (about.data) {
    tabs.push("samples");
    picker = new Picker(about, (index, sample) => {
      if (row && sample) row.fill(sample.values);
      input = { kind: "sample", index };
      go();
    }, complain);
    picker.load();
  }
  if (about.uploads) { tabs.push("upload"); new Upload(about, (levels) => { input = { kind: "pixels", levels }; showTab("upload"); go(); }, complain); }
  if (about.kind === "picture") mask = new Mask(about, go);
  setUpTabs(tabs);
  if (restore()) go();
  else if (row) { input = { kind: "row", values: row.values() }; go(); }
  else if (about.data) picker.pick(0);
  else element("subline").textContent = about.drawable ? "Draw something on the left, and see how little it takes." : "Drop a photo on the left, and see how little it takes.";
  document.documentElement.dataset.ready = true;
}
addEventListener("hashchange", () => { if (restore()) go(); });
begin();
