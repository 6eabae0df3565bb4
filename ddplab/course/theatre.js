// The hang theatre: a lane for each rank of a run that was recorded, hatched where it waits, and a clock.
const LANE = 34, NAME = 74, WIDE = 420, SAYS = 330, HIGH = 22, TOP = 14; // pixels
const TICK = 0.05, PACE = 100; // seconds of the run, and the milliseconds in which they are played: at half speed

function render({ model, el }) {
  const looks = model.get("looks"); // of each rank: [sign, colour]
  const { bar, status, stage } = page(el);
  const rank = control(bar, "rank", "select"), deed = control(bar, "what it does", "select"), call = control(bar, "its call", "select");
  [0, 1, 2, 3].forEach((number) => rank.add(new Option(number)));
  model.get("deeds").forEach((name) => deed.add(new Option(name)));
  model.get("calls").forEach((name, n) => call.add(new Option(`${n + 1}: ${name}`, n + 1)));
  let film = model.get("film"), asked = 0; // its rows: [rank, seconds, what it does from then on, number of the call or 0]
  [rank.value, deed.value, call.value] = [film.act.rank, film.act.deed, film.act.call];
  button(bar, "Run", () => ask(false));
  button(bar, "Ask torchrun alone", () => ask(true));
  const second = node("div", { style: `${BAR}; margin-top: 6px` });
  bar.after(second);
  const player = playBar(second, "clock", () => Math.ceil(film.seconds / TICK), PACE, draw);
  const ticks = node("div", { role: "group", "aria-label": "endings so far", style: "margin: 4px 0; min-height: 1.4em; white-space: pre-wrap" }, film.ticks.replaceAll("✓", "☐"));
  const said = node("pre", { tabindex: 0, "aria-label": "what is said at the end", style: SAID, "data-lm-suppress-shortcuts": "true" });
  stage.after(ticks, said);

  function ask(bare) {
    if (asked) return;
    player.stop();
    asked = Date.now(); // a number that is new, so that the kernel hears of the same wish again
    status.textContent = bare ? "torchrun starts four processes of its own: some seconds …" : "Four ranks play …";
    model.set("asked", { bare, rank: Number(rank.value), deed: deed.value, call: Number(call.value), when: asked });
    model.save_changes();
  }

  function answered() {
    asked = 0;
    film = model.get("film");
    player.go(0);
    if (!STILL) player.start();
    else player.go(Infinity);
  }

  function told() {
    asked = 0;
    const [what, words] = model.get("said");
    status.textContent = what;
    said.textContent = words;
  }

  function draw(moment) {
    const now = Math.min(moment * TICK, film.seconds), over = now === film.seconds;
    const svg = shape("svg", { width: NAME + WIDE + SAYS, height: 4 * LANE + 40, role: "img" });
    svg.append(hatching());
    const states = [0, 1, 2, 3].map((rank) => state(rank, now, over));
    svg.setAttribute("aria-label", states.map((it, rank) => `rank ${rank} ${it}`).join("; "));
    states.forEach((it, rank) => lane(svg, rank, now, it));
    const x = NAME + (now / film.seconds) * WIDE;
    svg.append(line(x, 2, x, 4 * LANE + 12), text(Math.min(x, NAME + WIDE - 40), 4 * LANE + 30, `${now.toFixed(2)} s`));
    stage.replaceChildren(svg);
    status.textContent = over ? "The end. What launch has said stands below." : verdict(now);
    if (over) ticks.textContent = film.ticks;
    said.textContent = over ? `launch:\n${film.words}` : "launch:\n…";
  }

  function lane(svg, rank, now, says) {
    const [sign, colour] = looks[rank], y = rank * LANE + TOP;
    svg.append(text(4, y + 16, sign, { fill: colour }), text(22, y + 16, `rank ${rank}`));
    const marks = []; // above the bars
    let free = 0; // no mark begins before it: the number in a short bar is wider than the bar
    for (const it of stretches(rank, now)) {
      const x = NAME + (it.from / film.seconds) * WIDE, width = Math.max(1, ((it.to - it.from) / film.seconds) * WIDE);
      if (it.doing in ENDS) marks.push(text(Math.max(x + 4, free), y + 17, ENDS[it.doing]));
      if (it.doing === "skips") marks.push(text(x, y - 2, "✗ skips", { "font-size": 11 }));
      if (it.doing in ENDS || it.doing === "skips") continue;
      const bar = shape("rect", { x, y, width, height: HIGH, stroke: INK, "stroke-width": 0.6 });
      bar.setAttribute("fill", it.call ? "url(#ddplab-waits)" : colour);
      if (!it.call) bar.setAttribute("fill-opacity", it.doing === "is late" ? 0.3 : 0.75);
      svg.append(bar);
      if (it.doing !== "computes" && width > 110) marks.push(...patched(x + width / 2, y, it.doing));
      if (it.call) marks.push(...patched(x + 8, y, `${it.call}`));
      if (it.call) free = x + 18;
    }
    svg.append(...marks, text(NAME + WIDE + 34, y + 16, says));
  }

  // What a rank does, one stretch after the other, until now.
  function stretches(rank, now) {
    const own = film.rows.filter((row) => row[0] === rank && row[1] <= now);
    return own.map(([, from, doing, call], n) => ({ from, doing, call, to: n + 1 < own.length ? own[n + 1][1] : now }));
  }

  function state(rank, now, over) {
    const last = stretches(rank, now).at(-1);
    if (!last) return "has not begun";
    if (last.doing in ENDS) return `${ENDS[last.doing]} ${last.doing}`;
    if (over && !/for \d.* s: /.test(film.words)) return "✗ was stopped";
    if (last.call) return `${over ? "… " : ""}waits in ${last.doing} (its call ${last.call})`;
    return last.doing;
  }

  // Who waits in which call, and who has not come to it yet.
  function verdict(now) {
    const lasts = [0, 1, 2, 3].map((rank) => stretches(rank, now));
    const waiting = lasts.map((all) => (all.at(-1)?.call ? all.at(-1) : null));
    const number = Math.min(...waiting.filter(Boolean).map((it) => it.call));
    if (number === Infinity) return "Nobody waits.";
    const there = ranksWhere((rank) => waiting[rank]?.call === number);
    const names = [...new Set(there.map((rank) => waiting[rank].doing))].join(" and ");
    const late = ranksWhere((rank) => Math.max(0, ...lasts[rank].map((it) => it.call)) < number);
    const others = ranksWhere((rank) => !there.includes(rank) && !late.includes(rank));
    const whom = late.length ? ` for ${listed(late)}` : others.length ? `; ${listed(others)} elsewhere` : "";
    return `${listed(there)} ${there.length === 1 ? "waits" : "wait"} in ${names} (call ${number})${whom}.`;
  }

  function ranksWhere(is) {
    return [0, 1, 2, 3].filter(is);
  }

  model.on("change:film", answered);
  model.on("change:said", told);
  player.go(0);
  return () => (player.stop(), model.off("change:film", answered), model.off("change:said", told)); // when the output goes
}

const SAID = `height: 16em; overflow: auto; margin: 4px 0; padding: 4px 8px; font-size: 12px; white-space: pre-wrap; word-break: normal; overflow-wrap: anywhere; ${LOOK}`;
const ENDS = { died: "✕", returned: "○" };

// Words in a bar, on a patch on which they can be read.
function patched(x, y, words) {
  const wide = 7 * words.length + 8, look = "fill: var(--jp-layout-color1)";
  return [shape("rect", { x: x - wide / 2, y: y + 3, width: wide, height: HIGH - 6, style: look }), text(x, y + 16, words, { "text-anchor": "middle" })];
}

function listed(ranks) {
  const words = ranks.length > 1 ? `${ranks.slice(0, -1).join(", ")} and ${ranks.at(-1)}` : ranks[0];
  return `rank${ranks.length > 1 ? "s" : ""} ${words}`;
}

function line(x1, y1, x2, y2) {
  return shape("line", { x1, y1, x2, y2, stroke: INK, "stroke-dasharray": "3 3" });
}

function hatching() {
  const stripe = shape("path", { d: "M0 6L6 0", stroke: INK, "stroke-width": 1.2 });
  return shape("defs", {}, shape("pattern", { id: "ddplab-waits", width: 6, height: 6, patternUnits: "userSpaceOnUse" }, stripe));
}

export default { render };
