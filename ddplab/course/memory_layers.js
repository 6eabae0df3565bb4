// The memory of a training step, a row for each layer. All the arithmetic is here; memory_layers.py has the same.
const WIDE = 215, HIGH = 16, ROWS = 10; // a bar at its longest, its height, and the rows that the longest model needs
const HATCHES = ["", "M0 6L6 0", "M2 3H4", "M0 0L6 6M0 6L6 0", "M0 3H6"]; // of the parts, as in LEGEND.md

function render({ model, el }) {
  const options = model.get("options"), parts = model.get("parts"), colours = model.get("colours");
  const { bar, status, stage } = page(el);
  const switches = Object.fromEntries(
    Object.entries(options).map(([name, offered]) => {
      const list = control(bar, name, "select");
      for (const option of offered) list.add(new Option(option));
      list.value = model.get("chosen")[name] ?? offered[0];
      list.addEventListener("change", draw);
      return [name, list];
    })
  );
  const value = (name) => switches[name].value;
  const hatch = `part${Math.random()}`; // a name of this page's own
  let before = 0;

  function rows() {
    const measured = model.get("measured")[`${value("model")}, ${value("numbers")}, ${value("checkpointing") === "on" ? "True" : "False"}`];
    const stage = options["they share out"].indexOf(value("they share out"));
    const among = (first) => (stage >= first ? Number(value("ranks")) : 1);
    return measured.map(([name, weights, buffers, fixed, each]) => [
      name,
      [weights / among(3), weights / among(2), (weights * model.get("state")[value("optimiser")]) / among(1), fixed + Number(value("batch on each rank")) * each, buffers],
    ]);
  }

  function draw() {
    const found = rows();
    const all = parts.map((_, part) => sum(found.map(([, held]) => held[part])));
    const together = sum(all);
    const than = before && before !== together ? `, ${(together / before).toFixed(2)} times what it was` : "";
    before = together;
    status.textContent = `${bytes(together)} bytes on a rank${than}. ${parts.map((part, n) => `${Math.round((100 * all[n]) / together)}% ${part}`).join(", ")}.`;
    const longest = Math.max(...found.map(([, held]) => sum(held)));
    const table = node("table", { "aria-label": "memory by layer, in bytes", style: "border-collapse: collapse; font-variant-numeric: tabular-nums" });
    table.append(head());
    for (const [name, held] of found) table.append(line(name, held, longest));
    table.append(line(`all ${found.length}`, all, together));
    for (let n = found.length; n < ROWS; n++) table.append(line("\u00a0", [], 1)); // the page does not jump
    stage.replaceChildren(definitions(), table, node("div", {}, NOTE));
  }

  function head() {
    const cells = parts.map((part, n) => cell("th", swatch(n), ` ${part}`));
    return node("tr", {}, cell("th", "layer"), ...cells, cell("th", "together"));
  }

  function line(name, held, longest) {
    const svg = shape("svg", { width: WIDE, height: HIGH, "aria-hidden": "true" });
    let x = 0;
    held.forEach((size, n) => {
      const width = (size / longest) * WIDE;
      svg.append(...filled(x, width, n));
      x += width;
    });
    const first = cell("td", name);
    first.style.textAlign = "left";
    return node("tr", {}, first, ...parts.map((_, n) => cell("td", held.length ? bytes(held[n]) : "")), cell("td", svg));
  }

  function filled(x, width, n) {
    const at = { x, y: 1, width, height: HIGH - 2 };
    return [shape("rect", { ...at, fill: colours[n] }), shape("rect", { ...at, fill: HATCHES[n] ? `url(#${hatch}${n})` : "none", stroke: "black", "stroke-width": 0.5 })];
  }

  function swatch(n) {
    return shape("svg", { width: 14, height: HIGH, "aria-hidden": "true" }, ...filled(0, 14, n));
  }

  function definitions() {
    const made = HATCHES.map((d, n) =>
      shape("pattern", { id: `${hatch}${n}`, width: 6, height: 6, patternUnits: "userSpaceOnUse" }, shape("path", { d, stroke: "black", "stroke-width": 1 }))
    );
    return shape("svg", { width: 0, height: 0, "aria-hidden": "true", style: "position: absolute" }, shape("defs", {}, ...made));
  }

  draw();
}

const NOTE =
  "Bytes when the forward pass has ended: a row for each layer, and all of them at the foot, where the bar has a measure of its own. Activations were measured here, the rest is counted. What ranks share out is calculated, as evenly shared, without DDP's buckets; checkpointing computes a block's activations again, so in the backward pass one block's are there as well, for a moment.";

function cell(kind, ...children) {
  return node(kind, { style: "text-align: right; padding: 0 10px 0 0; height: 20px; white-space: nowrap" }, ...children);
}

function bytes(size) {
  return Math.round(size).toLocaleString("en");
}

function sum(numbers) {
  return numbers.reduce((a, b) => a + b, 0);
}

export default { render };
