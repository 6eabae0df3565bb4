// Films of blocks: what every rank holds, round after round; a block flies from whoever sends to whoever receives.
const ROW = 34, NAME = 84, FLIGHT = 600; // pixels, and milliseconds

function render({ model, el }) {
  const films = model.get("films"); // name → frames, each { held: [[number, …], …], sent: [[from, to, bytes], …] }
  const looks = model.get("looks"); // of each rank: [sign, colour]
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const view = node("div", { style: "color: var(--jp-ui-font-color1); font-size: 13px" });
  const bar = node("div", { style: "display: flex; flex-wrap: wrap; gap: 8px 16px; align-items: center" });
  const which = control(bar, "film", "select");
  for (const name of Object.keys(films)) which.add(new Option(name));
  const back = button(bar, "Back", () => go(moment - 1));
  const play = button(bar, "Play", () => (timer ? stop() : start()));
  const on = button(bar, "Step", () => go(moment + 1));
  const scrub = control(bar, "round", "input", { type: "range", min: 0, step: 1 });
  const status = node("div", { role: "status", style: "margin: 6px 0; min-height: 1.4em" });
  const stage = node("div", { style: "overflow-x: auto" });
  view.append(bar, status, stage);
  el.replaceChildren(view);
  let moment = 0, timer = 0;

  const frames = () => films[which.value];
  const wide = () => Math.max(48, 20 + 8 * Math.max(...frames().flatMap((frame) => frame.held.flat().map((n) => `${n}`.length))));
  const tallest = Math.max(...Object.values(films).map((film) => film[0].held.length));
  stage.style.minHeight = `${tallest * ROW + 8}px`; // the page does not jump when another film is chosen

  function start() {
    if (moment === frames().length - 1) go(0);
    play.textContent = "Pause";
    timer = setInterval(() => (moment < frames().length - 1 ? go(moment + 1) : stop()), FLIGHT * 2);
  }

  function stop() {
    clearInterval(timer);
    timer = 0;
    play.textContent = "Play";
  }

  function go(to) {
    const before = moment;
    moment = Math.max(0, Math.min(frames().length - 1, to));
    draw();
    if (moment === before + 1 && !still) fly();
  }

  function draw() {
    const { held, sent } = frames()[moment];
    scrub.max = frames().length - 1;
    scrub.value = moment;
    const arrows = sent.map(([from, to]) => `${from}→${to}`).join(", ");
    status.textContent = moment ? `Round ${moment} of ${frames().length - 1}: ${arrows || "together"}` : "The start";
    const block = wide();
    const width = NAME + block * Math.max(...held.map((row) => row.length)) + 120;
    const svg = shape("svg", { width, height: held.length * ROW + 4, role: "img" });
    svg.setAttribute("aria-label", held.map((row, rank) => `rank ${rank}: ${row.join(" ")}`).join("; "));
    held.forEach((row, rank) => {
      const y = rank * ROW + 4;
      const [sign, colour] = looks[rank % looks.length];
      svg.append(text(4, y + 19, sign, { fill: colour }), text(22, y + 19, `rank ${rank}`));
      row.forEach((number, place) => svg.append(...box(NAME + place * block, y, block, number, changed(rank, place))));
      svg.append(text(NAME + block * row.length + 12, y + 19, `sent ${sentBy(rank)} bytes`));
    });
    stage.replaceChildren(svg);
  }

  function changed(rank, place) {
    return moment > 0 && frames()[moment - 1].held[rank][place] !== frames()[moment].held[rank][place];
  }

  function sentBy(rank) {
    const until = frames().slice(0, moment + 1).flatMap((frame) => frame.sent);
    return until.filter(([from]) => from === rank).reduce((sum, [, , bytes]) => sum + bytes, 0);
  }

  function fly() {
    const svg = stage.firstChild, block = wide();
    for (const [from, to] of frames()[moment].sent) {
      const row = frames()[moment].held[to];
      row.forEach((_, place) => {
        if (!changed(to, place)) return;
        const ghost = shape("rect", { x: NAME + place * block, y: from * ROW + 4, width: block - 4, height: ROW - 6, rx: 4 });
        ghost.style.cssText = `fill: ${looks[from % looks.length][1]}; opacity: 0.6`;
        svg.append(ghost);
        const way = [{ transform: "none" }, { transform: `translateY(${(to - from) * ROW}px)` }];
        ghost.animate(way, { duration: FLIGHT, easing: "ease-in-out" }).finished.finally(() => ghost.remove());
      });
    }
  }

  which.addEventListener("change", () => (stop(), (moment = 0), draw()));
  scrub.addEventListener("input", () => (stop(), (moment = Number(scrub.value)), draw()));
  draw();
  return stop; // when the cell's output goes
}

function box(x, y, wide, number, isNew) {
  const frame = shape("rect", { x, y, width: wide - 4, height: ROW - 6, rx: 4, fill: "none" });
  frame.style.cssText = `stroke: var(--jp-ui-font-color1); stroke-width: ${isNew ? 3 : 1}`;
  const words = text(x + wide / 2 - 2, y + 19, String(number), { "text-anchor": "middle" });
  words.style.fontWeight = isNew ? "bold" : "normal";
  return [frame, words];
}

function shape(name, attributes) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function text(x, y, words, attributes = {}) {
  const made = shape("text", { x, y, fill: "var(--jp-ui-font-color1)", ...attributes });
  made.textContent = words;
  return made;
}

function node(name, attributes) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

const LOOK = "color: var(--jp-ui-font-color1); background: var(--jp-layout-color2); border: 1px solid var(--jp-border-color1)";

function control(bar, name, kind, attributes = {}) {
  const label = node("label", {});
  const made = node(kind, { ...attributes, style: `margin-left: 8px; ${LOOK}`, "data-lm-suppress-shortcuts": "true" });
  label.append(name, made);
  bar.append(label);
  return made;
}

function button(bar, name, press) {
  const made = node("button", { style: `padding: 2px 10px; ${LOOK}`, "data-lm-suppress-shortcuts": "true" });
  made.textContent = name;
  made.addEventListener("click", press);
  bar.append(made);
  return made;
}

export default { render };
