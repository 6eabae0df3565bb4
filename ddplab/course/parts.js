// What the widgets of the course share; it stands before each of them. The controls are the browser's own: each has a
// name, the keys work, and the focus stays.
const INK = "var(--jp-ui-font-color1)";
const LOOK = `color: ${INK}; background: var(--jp-layout-color2); border: 1px solid var(--jp-border-color1)`;
const BAR = `display: flex; flex-wrap: wrap; gap: 8px 16px; align-items: center; color: ${INK}; font-size: 13px`;
// Where the system has colours of its own, for contrast, the browser gives them to HTML; what is drawn takes them so.
const FORCED = `@media (forced-colors: active) { .ddplab-page { --jp-ui-font-color1: CanvasText;
  --jp-border-color1: CanvasText; --jp-layout-color0: Canvas; --jp-layout-color1: Canvas; --jp-layout-color2: Canvas } }`;
const STILL = matchMedia("(prefers-reduced-motion: reduce)").matches;

function node(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function shape(name, attributes = {}, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function text(x, y, words, attributes = {}) {
  return shape("text", { x, y, fill: INK, ...attributes }, String(words));
}

// The pattern of what waits (LEGEND.md), to be filled with: `fill: url(#id)`.
function waitingPattern(id) {
  const pattern = shape("pattern", { id, width: 6, height: 6, patternUnits: "userSpaceOnUse" });
  const line = shape("path", { d: "M-1,1 l2,-2 M0,6 l6,-6 M5,7 l2,-2" });
  line.style.cssText = `stroke: ${INK}; stroke-width: 1`;
  pattern.append(line);
  return shape("defs", {}, pattern);
}

// The frame of a widget: a bar for its controls, a line that says what is seen, and the stage.
function page(el) {
  const bar = node("div", { style: BAR });
  const status = node("div", { role: "status", style: "margin: 6px 0; min-height: 1.4em" });
  const stage = node("div", { style: "overflow-x: auto" });
  const all = node("div", { class: "ddplab-page", style: `color: ${INK}; font-size: 13px` }, bar, status, stage);
  el.replaceChildren(node("style", {}, FORCED), all);
  return { bar, status, stage };
}

// A labelled control: kind is "select" or "input". JupyterLab would take the keys for itself, were it not told.
function control(bar, name, kind, attributes = {}) {
  const made = node(kind, { ...attributes, style: `margin-left: 8px; ${LOOK}`, "data-lm-suppress-shortcuts": "true" });
  bar.append(node("label", { style: "white-space: nowrap; display: inline-flex; align-items: center" }, name, made));
  return made;
}

function button(bar, name, press) {
  const made = node("button", { style: `padding: 2px 10px; ${LOOK}`, "data-lm-suppress-shortcuts": "true" }, name);
  made.addEventListener("click", press);
  bar.append(made);
  return made;
}

// Buttons and a slider over the moments 0 … last() of what has happened. `draw(moment, before)` draws one of them;
// `pace` is the milliseconds from one to the next while it
// plays. Returns functions: to go to a moment, to stop, and to start playing.
function playBar(bar, name, last, pace, draw) {
  let moment = 0, timer = 0;
  button(bar, "Back", () => (stop(), go(moment - 1)));
  const play = button(bar, "Play", () => (timer ? stop() : start()));
  play.style.minWidth = "5em"; // for Pause too
  button(bar, "Step", () => (stop(), go(moment + 1)));
  const scrub = control(bar, name, "input", { type: "range", min: 0, step: 1 });
  scrub.addEventListener("input", () => (stop(), go(Number(scrub.value))));

  function start() {
    if (moment === last()) go(0);
    play.textContent = "Pause";
    timer = setInterval(() => (moment < last() ? go(moment + 1) : stop()), pace);
  }

  function stop() {
    clearInterval(timer);
    timer = 0;
    play.textContent = "Play";
  }

  function go(to) {
    const before = moment;
    moment = Math.max(0, Math.min(last(), to));
    scrub.max = last();
    scrub.value = moment;
    draw(moment, before);
  }

  return { go, stop, start };
}
