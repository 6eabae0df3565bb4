// Films of blocks: what every rank holds, round after round; a block flies from whoever sends to whoever receives.
const ROW = 34, NAME = 112, FLIGHT = 600; // pixels, and milliseconds

function render({ model, el }) {
  const films = model.get("films"); // name → frames, each { held: [[number, …], …], sent: [[from, to, bytes], …] }
  const looks = model.get("looks"); // of each rank: [sign, colour]
  const { bar, status, stage } = page(el);
  const which = control(bar, "film", "select");
  for (const name of Object.keys(films)) which.add(new Option(name));
  const frames = () => films[which.value];
  const player = playBar(bar, "round", () => frames().length - 1, FLIGHT * 2, draw);
  const tallest = Math.max(...Object.values(films).map((film) => film[0].held.length));
  stage.style.minHeight = `${tallest * ROW + 8}px`; // the page does not jump when another film is chosen
  const apart = () => (tallest * ROW) / frames()[0].held.length; // fewer ranks lie further apart: no part stays empty
  const top = (rank) => rank * apart() + (apart() - ROW) / 2 + 4;
  which.addEventListener("change", () => (player.stop(), player.go(0)));
  let landing = 0;

  // While the blocks of a round fly, the ranks hold what they held before it.
  function draw(moment, before) {
    clearTimeout(landing);
    const flies = moment === before + 1 && !STILL && frames()[moment].sent.length > 0;
    paint(moment, flies ? before : moment);
    if (flies) landing = setTimeout(paint, FLIGHT, moment, moment);
  }

  function paint(moment, seen) {
    const { held } = frames()[seen], { sent } = frames()[moment];
    const arrows = sent.map(([from, to]) => `${from}→${to}`).join(", ");
    status.textContent = moment ? `Round ${moment} of ${frames().length - 1}: ${arrows || "together"}` : "The start";
    const block = wide();
    const width = NAME + block * Math.max(...held.map((row) => row.length));
    const svg = shape("svg", { width, height: tallest * ROW + 4, role: "img" });
    svg.setAttribute("aria-label", held.map((row, rank) => `rank ${rank}: ${row.join(" ")}`).join("; "));
    held.forEach((row, rank) => {
      const y = top(rank);
      const [sign, colour] = looks[rank % looks.length];
      svg.append(text(4, y + 13, sign, { fill: colour }), text(22, y + 13, `rank ${rank}`));
      if (counted()) svg.append(text(22, y + 27, `sent ${sentBy(seen, rank)} bytes`, { "font-size": "11px" }));
      row.forEach((number, place) => svg.append(...box(NAME + place * block, y, block, number, changed(seen, rank, place))));
    });
    stage.replaceChildren(svg);
    if (seen < moment) fly(svg, moment, block);
  }

  function wide() {
    return Math.max(48, 18 + 8 * Math.max(...frames().flatMap((frame) => frame.held.flat().map((n) => `${n}`.length))));
  }

  function changed(moment, rank, place) {
    return moment > 0 && frames()[moment - 1].held[rank][place] !== frames()[moment].held[rank][place];
  }

  function counted() { // a collective does not tell what it sends
    return frames().some(({ sent }) => sent.length);
  }

  function sentBy(moment, rank) {
    const until = frames().slice(0, moment + 1).flatMap((frame) => frame.sent);
    return until.filter(([from]) => from === rank).reduce((sum, [, , bytes]) => sum + bytes, 0);
  }

  function fly(svg, moment, block) {
    for (const [from, to] of frames()[moment].sent) {
      frames()[moment].held[to].forEach((_, place) => {
        if (!changed(moment, to, place)) return;
        const [frame, number] = box(NAME + place * block, top(from), block, carried(moment, from, to, place), true);
        frame.style.cssText = `stroke: ${looks[from % looks.length][1]}; stroke-width: 4; fill: var(--jp-layout-color1)`;
        const ghost = shape("g", { "aria-hidden": "true" }, frame, number);
        svg.append(ghost);
        const way = [{ transform: "none" }, { transform: `translateY(${(to - from) * apart()}px)` }];
        ghost.animate(way, { duration: FLIGHT, easing: "ease-in-out", fill: "forwards" });
      });
    }
  }

  // The number in a block: the sender's, where the receiver then has it, or has added it; else none.
  function carried(moment, from, to, place) {
    const [earlier, now] = [frames()[moment - 1].held, frames()[moment].held];
    const number = earlier[from][place];
    return [now[to][place], now[to][place] - earlier[to][place]].includes(number) ? number : "";
  }

  player.go(0);
  return () => (player.stop(), clearTimeout(landing)); // when the cell's output goes
}

function box(x, y, wide, number, isNew) {
  const frame = shape("rect", { x, y, width: wide - 4, height: ROW - 6, rx: 4, fill: "none" });
  frame.style.cssText = `stroke: ${INK}; stroke-width: ${isNew ? 3 : 1}`;
  const words = text(x + wide / 2 - 2, y + 19, number, { "text-anchor": "middle" });
  words.style.fontWeight = isNew ? "bold" : "normal";
  return [frame, words];
}

export default { render };
