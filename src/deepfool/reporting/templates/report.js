"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const root = document.documentElement;
  const Plotly = window.Plotly || window.moduleName;
  const PALETTE = 6;
  const DASHES = ["solid", "dash", "dot", "dashdot", "longdash", "longdashdot"];

  // Plotly interprets some HTML and mathematics in its labels, so names are escaped.
  const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;").replace(/\$/g, "&#36;");
  const shorten = (text, most) => (text.length > most ? text.slice(0, most - 1) + "…" : text);
  // As people write it: no exponent unless the number is tiny.
  const number = (value) => {
    if (value === null) return "–";
    const [digits, power] = value.toExponential(2).split("e");
    return value !== 0 && Math.abs(value) < 1e-4 ? `${digits} × 10<sup>${Number(power)}</sup>` : String(Number(value.toPrecision(3)));
  };
  const percent = (value) => `${Number((100 * value).toPrecision(3))} %`;
  const colour = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const narrow = () => window.innerWidth < 700;

  let paper = false; // on paper the size is given: nothing waits there until a chart has found its own
  function layout(more) {
    const axis = {
      gridcolor: colour("--line"), zerolinecolor: colour("--line"), linecolor: colour("--line"), automargin: true,
      fixedrange: narrow(),
    };
    return {
      font: { family: getComputedStyle(document.body).fontFamily, size: 13, color: colour("--text") },
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      margin: { l: 56, r: 12, t: 12, b: 48 },
      hoverlabel: { bgcolor: colour("--panel"), bordercolor: colour("--line"), font: { color: colour("--text") } },
      legend: { orientation: "h", y: 1.02, x: 0, yanchor: "bottom" },
      ...(paper ? { width: 680, height: 270 } : {}),
      ...more,
      xaxis: { ...axis, ...more.xaxis }, yaxis: { ...axis, ...more.yaxis },
    };
  }

  function drawCurve(group, element) {
    const chosen = document.querySelector(`[data-axis="${element.dataset.group}"]`);
    const relative = chosen !== null && chosen.value === "relative";
    const traces = [];
    const area = (eps, low, high, fillcolor) => {
      const edge = { x: eps, mode: "lines", line: { width: 0 }, hoverinfo: "skip", showlegend: false };
      traces.push({ ...edge, y: low }, { ...edge, y: high, fill: "tonexty", fillcolor });
    };
    const curves = relative ? group.relative : group.curves;
    curves.forEach((curve, i) => {
      const place = group.places[i] % PALETTE, line = colour(`--s${place}`);
      area(curve.eps, curve.band[0], curve.band[1], line + "22");
      if (curve.low) area(curve.eps, curve.low, curve.accuracy, line + "55");
      if (curve.certified) {
        const proved = colour(curves.length > 1 ? `--s${place}` : "--s2");
        area(curve.eps, curve.certified[0], curve.certified[1], proved + "44");
        traces.push({ x: curve.eps, y: curve.certified[0], mode: "lines", showlegend: false, name: "certified",
          line: { color: proved, width: 2, dash: "dot" },
          hovertemplate: "≥ %{y:.1%} certified<extra></extra>" });
      }
      const name = plain(shorten(group.names[i], narrow() ? 40 : 90));
      traces.push({
        x: curve.eps, y: curve.accuracy, mode: "lines", name, line: { color: line, width: 2.5, dash: DASHES[place] },
        customdata: curve.eps.map((_, k) => [curve.band[0][k], curve.band[1][k], (curve.low || curve.accuracy)[k]]),
        hovertemplate: (curves.length > 1 ? name.replace(/%/g, "&#37;") + ": " : "") +
          "≤ %{y:.1%} (%{customdata[0]:.1%} – %{customdata[1]:.1%})" +
          (curve.low ? ", %{customdata[2]:.1%} if what has no answer counts as fooled" : "") + "<extra></extra>",
      });
    });
    const title = group.counted ? (relative ? group.ratio : group.size) : relative ? `ε / ‖x‖ in ${group.norm}`
      : narrow() ? `ε (${group.norm} norm)` : `ε, the largest ${group.norm} norm of the perturbation`;
    return [traces, layout({
      hovermode: "x unified", showlegend: data.several,
      xaxis: { title: { text: title }, rangemode: "tozero", range: [0, curves[0].eps[curves[0].eps.length - 1]],
        hoverformat: relative ? ".3~%" : ".4~g", tickformat: relative ? ".3~%" : "" },
      yaxis: { title: { text: group.certified ? group.share : `${group.share}, at most` }, tickformat: ".0%", range: [0, 1.02] },
    })];
  }

  function drawHistogram(group) {
    const { edges, shares } = group.histogram;
    const middles = edges.slice(1).map((edge, i) => (edge + edges[i]) / 2);
    const ranges = edges.slice(1).map((edge, i) => `${number(edges[i])} – ${number(edge)}`);
    const traces = shares.map((values, i) => {
      const place = group.places[i] % PALETTE;
      const name = plain(shorten(group.names[i], 60));
      const common = { x: middles, y: values, name, text: ranges, textposition: "none",
        hovertemplate: "%{text}: %{y:.2%} of the samples<extra></extra>" };
      return shares.length === 1
        ? { ...common, type: "bar", marker: { color: colour(`--s${place}`) } }
        : { ...common, x: edges, y: [...values, values[values.length - 1]], text: [...ranges, ranges[ranges.length - 1]],
            type: "scatter", mode: "lines", fill: "tozeroy", fillcolor: colour(`--s${place}`) + "22",
            line: { shape: "hv", color: colour(`--s${place}`), width: 2, dash: DASHES[place] } };
    });
    const mean = group.means.length === 1 ? group.means[0] : null;
    const whose = group.unanswered[0] ? `mean of the ${group.answered[0]} with an answer` : "ρ<sub>adv</sub> ≤";
    return [traces, layout({
      shapes: mean === null ? [] : [{ type: "line", x0: mean, x1: mean, y0: 0, y1: 1, yref: "paper",
        line: { color: colour("--text"), width: 1.5, dash: "dash" } }],
      annotations: mean === null ? [] : [{ x: mean, y: 1, yref: "paper", xanchor: "left", yanchor: "top", xshift: 4,
        showarrow: false, text: `${whose} ${number(mean)}`, bgcolor: colour("--bg") }],
      bargap: 0.06, showlegend: data.several,
      xaxis: { title: { text: group.counted ? group.ratio : `‖r‖ / ‖x‖ in ${group.norm}` }, rangemode: "tozero" },
      yaxis: { title: { text: "share of the samples" }, tickformat: ".0~%" },
    })];
  }

  function drawClasses(rows, k) {
    const names = rows.map((row) => plain(shorten(row.name, narrow() ? 14 : 28)));
    const spot = rows.map((_, i) => i);
    const trace = {
      type: "bar", orientation: "h", y: spot, x: rows.map((row) => row.rho),
      marker: { color: colour(`--s${k % PALETTE}`) },
      error_x: { type: "data", symmetric: false, color: colour("--text"), thickness: 1.2, width: 3,
        array: rows.map((row) => (row.high === null || row.rho === null ? 0 : row.high - row.rho)),
        arrayminus: rows.map((row) => (row.low === null || row.rho === null ? 0 : row.rho - row.low)) },
      hovertext: rows.map((row) => `${plain(row.name)}: ≤ ${number(row.rho)}` +
        (row.low === null ? "" : `<br>interval ${number(row.low)} – ${number(row.high)}`) + `<br>${row.samples} samples`),
      hoverinfo: "text", textposition: "none",
    };
    return [[trace], layout({
      margin: { l: 20, r: 16, t: 8, b: 48 }, height: Math.max(220, 90 + 26 * rows.length), bargap: 0.25,
      xaxis: { title: { text: "ρ<sub>adv</sub>" }, rangemode: "tozero" },
      yaxis: { tickvals: spot, ticktext: names, autorange: "reversed", showgrid: false, zeroline: false },
    })];
  }

  const CONFIG = () => ({
    responsive: true, displaylogo: false, displayModeBar: narrow() ? false : "hover",
    modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d"],
  });

  function draw(element) {
    const kind = element.dataset.chart;
    const [traces, shape] =
      kind === "curve" ? drawCurve(data.groups[element.dataset.group], element)
      : kind === "histogram" ? drawHistogram(data.groups[element.dataset.group])
      : drawClasses(data.classes[element.dataset.part], Number(element.dataset.part));
    if (shape.height) element.style.height = `${shape.height}px`; // its own, or that of the paper
    return Plotly.react(element, traces, shape, CONFIG());
  }
  const drawAll = () => Promise.all([...document.querySelectorAll("[data-chart]")].map(draw));

  document.querySelectorAll("[data-axis]").forEach((select) => {
    select.addEventListener("change", () => draw(document.getElementById(`curve-${select.dataset.axis}`)));
  });

  // The navigation shows at which ends it goes on.
  const nav = document.querySelector("nav");
  const showEnds = () => {
    const hidden = nav.scrollWidth - nav.clientWidth;
    nav.classList.toggle("before", nav.scrollLeft > 4);
    nav.classList.toggle("after", nav.scrollLeft < hidden - 4);
  };
  nav.addEventListener("scroll", showEnds, { passive: true });
  window.addEventListener("resize", showEnds);
  showEnds();

  // Light or dark: follow the system until the button is used.
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const remember = { get() { try { return localStorage.getItem("deepfool-theme"); } catch { return null; } },
    set(value) { try { localStorage.setItem("deepfool-theme", value); } catch { /* a page from a file may not store */ } } };
  const setTheme = (value) => { root.dataset.theme = value; };
  setTheme(remember.get() || (system.matches ? "dark" : "light"));
  system.addEventListener("change", () => { if (!remember.get()) { setTheme(system.matches ? "dark" : "light"); drawAll(); } });
  document.getElementById("theme").addEventListener("click", () => {
    setTheme(root.dataset.theme === "dark" ? "light" : "dark");
    remember.set(root.dataset.theme);
    drawAll();
  });

  // Printing: light colours, a narrower page.
  let before = null;
  window.addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    paper = true;
    setTheme("light");
    document.querySelectorAll("details").forEach((each) => { each.dataset.was = each.open ? "1" : ""; each.open = true; });
    document.querySelectorAll("[data-chart]").forEach((each) => { each.style.width = "680px"; draw(each); Plotly.Plots.resize(each); });
  });
  window.addEventListener("afterprint", () => {
    paper = false;
    if (before) setTheme(before);
    document.querySelectorAll("details").forEach((each) => { each.open = each.dataset.was === "1"; });
    document.querySelectorAll("[data-chart]").forEach((each) => { each.style.width = each.style.height = ""; draw(each); Plotly.Plots.resize(each); });
  });

  // The gallery.
  function arrange(section) {
    const list = section.querySelector(".cards");
    const wanted = Object.fromEntries([...section.querySelectorAll("[data-filter]")].map((each) => [each.dataset.filter, each.value]));
    const sort = section.querySelector("[data-sort]").value;
    const key = sort.replace("-", ""), sign = sort.startsWith("-") ? -1 : 1;
    const items = [...list.children];
    items.sort((a, b) => sign * (a.dataset[key] - b.dataset[key]) || a.dataset.ratio - b.dataset.ratio);
    let shown = 0;
    for (const item of items) {
      item.hidden = Object.entries(wanted).some(([name, value]) => value !== "" && item.dataset[name] !== value);
      shown += !item.hidden;
    }
    list.append(...items);
    section.querySelector("output").textContent = `${shown} sample${shown === 1 ? "" : "s"}`;
    section.querySelector(".nothing").hidden = shown > 0;
  }

  const dialog = document.getElementById("large");
  let open = null;
  const CAPTIONS = ["original", "perturbed", "perturbation"];
  function enlarge(item) {
    open = item;
    dialog.querySelector("h3").textContent = item.querySelector(".change").textContent;
    const panels = dialog.querySelector(".panels");
    panels.className = item.querySelector(".sharp") ? "panels sharp" : "panels";
    panels.replaceChildren(...[...item.querySelectorAll("img")].map((image, i) => {
      const figure = document.createElement("figure"), caption = document.createElement("figcaption");
      const large = image.cloneNode();
      caption.textContent = image.alt || CAPTIONS[i];
      figure.append(large, caption);
      return figure;
    }));
    dialog.querySelector(".facts").textContent = [...item.querySelectorAll(".facts")].map((each) => each.textContent).join(" · ");
    if (!dialog.open) dialog.showModal();
  }
  function step(by) {
    if (!open) return;
    const items = [...open.parentElement.children].filter((item) => !item.hidden);
    enlarge(items[(items.indexOf(open) + by + items.length) % items.length]);
  }
  document.querySelectorAll(".gallery").forEach((section) => {
    if (!section.querySelector(".cards")) return;
    section.addEventListener("change", () => arrange(section));
    section.addEventListener("click", (event) => {
      const card = event.target.closest(".card");
      if (card) enlarge(card.parentElement);
    });
  });
  dialog.addEventListener("keydown", (event) => {
    if (event.key === "ArrowRight") step(1);
    if (event.key === "ArrowLeft") step(-1);
  });
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
    if (event.target.dataset.step) step(Number(event.target.dataset.step));
  });
  dialog.addEventListener("close", () => { if (open) open.querySelector(".card").focus(); open = null; });

  document.querySelectorAll("[data-copy]").forEach((button) => button.addEventListener("click", async () => {
    const code = button.parentElement.querySelector("code");
    try { await navigator.clipboard.writeText(code.textContent); button.textContent = "Copied"; }
    catch { getSelection().selectAllChildren(code); }
  }));

  drawAll().then(() => { root.dataset.readyAt = performance.now(); root.dataset.ready = "true"; });
})();
