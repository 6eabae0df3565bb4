// A program whose lines are switches: one that has a name is the label of a checkbox, and is struck out at once. What
// the kernel says of what is left stands below, in a place that has its whole height from the start.
const CODE = "font: 13px/1.4 var(--jp-code-font-family, monospace); white-space: pre; overflow-x: auto";
const LINES = `label.ddplab-line { display: block; cursor: pointer } label.ddplab-line:hover { background: var(--jp-layout-color2) }
  label.ddplab-line:has(:focus-visible) { outline: 2px solid ${INK}; outline-offset: -2px }
  .ddplab-line input { margin: 0; vertical-align: -2px } label.ddplab-line :not(:checked) ~ span { text-decoration: line-through; opacity: 0.7 }`;

function render({ model, el }) {
  const { bar: program, status } = page(el);
  el.append(node("style", {}, LINES));
  program.style.cssText = `color: ${INK}; ${CODE}`;
  status.style.cssText = `${CODE}; margin-top: 10px; height: ${1.4 * model.get("rows")}em`;
  const [, out, place] = model.get("asked");
  const key = { "data-lm-suppress-shortcuts": "true" }; // else JupyterLab takes Space for itself
  const switches = [];
  let list, soon, waiting = false, moved = false;
  for (const [name, line] of model.get("lines")) {
    const [code, rest] = line.split("{source}");
    const box = node("input", { type: "checkbox", name, ...key, style: name ? "" : "visibility: hidden" });
    const words = node("span", {}, code.trimStart());
    const indent = " ".repeat(code.length - code.trimStart().length);
    const row = node(name ? "label" : "div", { class: "ddplab-line" }, box, `${name.padStart(10)}  ${indent}`, words);
    if (name) switches.push(box);
    box.checked = !out.includes(name);
    box.addEventListener("change", ask);
    if (rest) {
      list = node("select", { "aria-label": "SGD has the parameters of", ...key, style: `${LOOK}; font: inherit` });
      model.get("sources").forEach((source, n) => list.add(new Option(source, n, false, n === place)));
      list.addEventListener("input", () => { // on the way through a list by key one has not chosen yet
        clearTimeout(soon);
        soon = setTimeout(ask, 600);
      });
      row.append(list, rest);
    }
    program.append(row);
  }

  function ask() { // one question at a time: of what is switched meanwhile, the last is asked
    moved = waiting;
    if (waiting) return;
    waiting = true;
    Object.assign(status.style, { transition: "opacity 0s 0.3s", opacity: 0.5 }); // the words are still of another program
    model.set("asked", [model.get("asked")[0] + 1, switches.filter((it) => !it.checked).map((it) => it.name), list ? Number(list.value) : 0]);
    model.save_changes();
  }

  function draw() {
    [status.textContent] = model.get("shown");
    Object.assign(status.style, { transition: "none", opacity: 1 });
    waiting = false;
    if (moved) ask();
  }

  model.on("change:shown", draw);
  draw();
}

export default { render };
