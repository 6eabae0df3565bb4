// Four switches, two buttons, a list of what is to be found, and a chart for each setting that the kernel has trained.
const WIDE = 230, HIGH = 150, LEFT = 26; // a chart in its own units: its width, its height, where its axis stands

function render({ model, el }) {
  const { bar, status, stage } = page(el);
  status.style.minHeight = "2.8em"; // two lines: the page stays, whatever is said
  const lists = Object.entries(model.get("options")).map(([name, options], n) => {
    const list = control(bar, name, "select");
    for (const option of options) list.add(new Option(option, JSON.stringify(option)));
    list.value = JSON.stringify(model.get("chosen")[n]);
    return list;
  });
  const ask = (what) => {
    model.set("asked", [(model.get("asked")[0] ?? 0) + 1, what, ...lists.map((list) => JSON.parse(list.value))]);
    model.save_changes();
  };
  button(bar, "Train", () => ask("train")).title = "Train with these, beside what is there";
  button(bar, "Clear", () => ask("clear")).title = "Take every chart away; what is ticked stays";

  function draw() {
    const { status: words, trials, found, end, tried } = model.get("drawn");
    if (status.textContent !== words) status.textContent = words; // said once to who cannot see it
    const places = Array.from({ length: model.get("compared") }, (_, n) => trials[n]); // a place for each, from the start
    const charts = node("div", { style: "display: grid; max-width: 1000px; grid-template-columns: repeat(auto-fill, minmax(max(190px, 22%), 1fr))" });
    charts.append(...places.map((trial) => chart(trial, model.get("axes"), model.get("looks"))));
    const ended = node("div", { role: "status", style: "min-height: 2.8em; max-width: 900px; font-weight: bold" }, end);
    const at = stage.querySelector("[tabindex]") === document.activeElement;
    stage.replaceChildren(quest(found), ended, charts, legend(model), table(model.get("heads"), tried));
    if (at) stage.querySelector("[tabindex]").focus();
  }

  model.on("change:drawn", draw);
  draw();
}

function quest(found) {
  const list = node("ul", { "aria-label": "to find, each with all three seeds", style: "list-style: none; padding: 0; margin: 0 0 6px" });
  for (const [done, words] of found) list.append(node("li", {}, `${done ? "✓" : "☐"} ${words}`));
  return list;
}

function legend(model) {
  const [, top] = model.get("axes");
  const words = `Training loss against the epoch, a chart for each setting, a line for each seed. What is above ${top} is drawn at the top; the dotted line is what guessing has.`;
  const samples = [0, 1, 2].map((seed) => {
    const svg = shape("svg", { width: 40, height: 10, "aria-hidden": "true" }, shape("path", { d: "M10 6H38", ...stroke(model.get("looks"), seed) }));
    return node("span", { style: "white-space: nowrap" }, svg, ` seed ${seed}`);
  });
  return node("div", {}, words, ...samples);
}

function stroke(looks, seed) {
  const [colour, dashes] = looks[seed];
  return { fill: "none", stroke: colour, "stroke-width": 2.6 - 0.4 * seed, "stroke-dasharray": dashes };
}

function chart(trial, [epochs, top, chance], looks) {
  const svg = shape("svg", { viewBox: `0 0 ${WIDE} ${HIGH}`, style: "width: 100%; font: 11px sans-serif" });
  const frame = shape("path", { d: `M${LEFT} 20V${HIGH - 20}H${WIDE - 6}`, fill: "none" });
  frame.style.stroke = "var(--jp-border-color1)";
  svg.append(frame);
  if (!trial) {
    svg.setAttribute("aria-hidden", "true");
    return svg;
  }
  const x = (epoch) => LEFT + ((WIDE - LEFT - 6) * epoch) / epochs;
  const y = (loss) => HIGH - 20 - ((HIGH - 40) * loss) / top;
  const last = trial.curves.map(([seed, points]) => `seed ${seed} ${points.length ? points.at(-1)[1].toFixed(2) : "…"}`);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", `${trial.name}: loss of ${last.join(", ")}; ${trial.learn}`);
  const bold = text(LEFT, 13, trial.name);
  bold.style.fontWeight = "bold";
  const end = { "text-anchor": "end" };
  const level = shape("path", { d: `M${LEFT} ${y(chance)}H${WIDE - 6}`, stroke: INK, "stroke-dasharray": "1 3" });
  const how = text(WIDE - 6, 13, trial.learn, end);
  const ground = shape("rect", { x: LEFT, y: 20, width: WIDE - LEFT - 6, height: HIGH - 40 });
  ground.style.fill = trial.learn.startsWith("✗") ? "color-mix(in srgb, var(--jp-error-color1, red) 15%, transparent)" : "none";
  svg.append(ground, level, bold, how, text(LEFT - 4, 27, top, end), text(LEFT - 4, HIGH - 18, 0, end), text(WIDE - 6, HIGH - 5, `epoch ${epochs}`, end));
  for (const [seed, points] of trial.curves) {
    svg.append(shape("polyline", { ...stroke(looks, seed), points: points.map(([epoch, loss]) => `${x(epoch)},${y(loss)}`).join(" ") }));
  }
  return svg;
}

// What was tried, in a place of its own height; who has tried much scrolls in it.
function table(heads, tried) {
  const cell = (kind, words) => node(kind, { style: "text-align: right; padding: 1px 10px 1px 0; white-space: nowrap" }, words);
  const made = node("table", { "aria-label": "what was tried", style: "border-collapse: collapse" });
  made.append(node("tr", {}, ...heads.map((name) => cell("th", name))));
  for (const row of tried) made.append(node("tr", {}, ...row.map((fact) => cell("td", fact))));
  return node("div", { tabindex: 0, "data-lm-suppress-shortcuts": "true", role: "group", "aria-label": "what was tried", style: "height: 11em; overflow-y: auto; margin-top: 6px" }, made);
}

export default { render };
