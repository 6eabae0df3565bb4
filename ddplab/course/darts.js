// Darts that fall: a square for each rank, and one in which all_reduce puts them together.
const SIDE = 180, FALL = 170; // pixels of a square; milliseconds that a dart takes to fall

function render({ model, el }) {
  const darts = model.get("darts"); // of each rank: x, y, x, y, … in thousandths
  const hits = model.get("hits"); // of each rank, dart by dart: 1 where it is within the quarter circle
  const returned = model.get("returned"); // what each rank has returned, in words: the hits of all ranks
  const looks = model.get("looks"); // of each rank: [sign, colour]
  const { bar, status, stage } = page(el);
  const most = Math.max(...hits.map((rank) => rank.length));
  const counts = countsUpTo(most); // how many darts of each rank have fallen at each moment; at the last they are pooled
  const player = playBar(bar, "darts", () => counts.length, FALL + 50, draw);
  const row = node("div", { style: "display: flex; flex-wrap: wrap; gap: 4px 20px" });
  const squares = darts.map((_, rank) => square(row, rank));
  const pooled = square(row, darts.length);
  stage.append(row);
  let falling = 0;

  function draw(moment, before) {
    cancelAnimationFrame(falling);
    const together = moment === counts.length;
    const from = before < moment && moment - before === 1 ? counts[before] : 0;
    const to = together ? most : counts[moment];
    squares.forEach((it, rank) => {
      if (!from) empty(it);
      mark(it, rank, it.fallen, to);
      it.caption.textContent = count(rank, Math.min(to, hits[rank].length));
    });
    empty(pooled);
    pooled.caption.textContent = together ? countOfAll() : "not yet";
    status.textContent = together ? verdict() : fallen(to);
    const moved = moment === before + 1 && !STILL;
    const begun = performance.now();
    (function step(now) {
      const done = moved ? Math.min(1, (now - begun) / FALL) : 1;
      squares.forEach((it, rank) => (together ? show(it) : show(it, rank, from, to, done)));
      pooled.pen.clearRect(0, 0, SIDE, SIDE);
      // what the ranks have comes from the left, where they are
      if (together) squares.forEach((it) => pooled.pen.drawImage(it.kept, -SIDE * (1 - done), 0, SIDE, SIDE));
      if (done < 1) falling = requestAnimationFrame(step);
    })(begun);
  }

  // The darts that have fallen are kept in a picture; those that fall are drawn larger, and faint, above it.
  function mark(it, rank, from, to) {
    const pen = pencil(it.kept);
    for (let n = from; n < Math.min(to, hits[rank].length); n++) dart(pen, rank, n, 1, hits[rank][n] ? 0.9 : 0.55);
    it.fallen = to;
  }

  function show(it, rank, from, to, done = 1) {
    it.pen.clearRect(0, 0, SIDE, SIDE);
    it.pen.globalAlpha = 1;
    it.pen.drawImage(it.kept, 0, 0, SIDE, SIDE);
    for (let n = from; done < 1 && n < Math.min(to, hits[rank].length); n++) dart(it.pen, rank, n, 1 + 3 * (1 - done), 0.5 * done);
  }

  function dart(pen, rank, n, large, alpha) {
    const [sign, colour] = looks[rank % looks.length];
    const [x, y] = darts[rank].slice(2 * n, 2 * n + 2);
    pen.globalAlpha = alpha;
    pen.fillStyle = colour;
    const size = (n < 100 ? 10 : 6) * (sign === "●" ? 1.5 : 1); // the first are seen one by one; a dot is small in its letter
    pen.font = `${size * large}px sans-serif`;
    pen.fillText(sign, (x / 1000) * SIDE, (1 - y / 1000) * SIDE);
  }

  function empty(it) {
    pencil(it.kept).clearRect(0, 0, SIDE, SIDE);
    it.fallen = 0;
  }

  function square(row, rank) {
    const [sign, colour] = rank < darts.length ? looks[rank % looks.length] : ["", ""];
    const mark = node("span", { style: `color: ${colour}`, "aria-hidden": "true" }, sign);
    const name = node("b", {}, mark, rank < darts.length ? ` rank ${rank}` : "together, by all_reduce");
    const canvas = sheet(), caption = node("div", { style: "min-height: 2.8em; white-space: pre-line" });
    const arc = shape("path", { d: `M0 0A${SIDE} ${SIDE} 0 0 1 ${SIDE} ${SIDE}`, fill: "none", stroke: INK });
    const over = shape("svg", { width: SIDE, height: SIDE, style: `position: absolute; left: 0; border: 1px solid ${INK}` }, arc);
    // what the picture shows is told by the caption
    const both = node("div", { style: `position: relative; height: ${SIDE + 4}px`, "aria-hidden": "true" }, canvas, over);
    row.append(node("div", { style: `width: ${SIDE + 30}px` }, name, both, caption));
    return { pen: pencil(canvas), kept: sheet(), caption, fallen: 0 };
  }

  function count(rank, thrown) {
    const within = hits[rank].slice(0, thrown).reduce((sum, hit) => sum + hit, 0);
    return estimate(within, thrown);
  }

  function countOfAll() {
    const all = hits.flat();
    return estimate(all.reduce((sum, hit) => sum + hit, 0), all.length);
  }

  function verdict() {
    const alike = returned.every((sum) => sum === returned[0]);
    const said = alike ? `every rank holds ${Number(returned[0]).toLocaleString("en")}` : `the ranks hold ${returned.join(", ")}`;
    return `all_reduce has added up the hits: ${said}`;
  }

  player.go(0);
  return () => (player.stop(), cancelAnimationFrame(falling)); // when the cell's output goes
}

// One by one at first, then ten at a time, then a hundred.
function countsUpTo(most) {
  const counts = [0];
  while (counts.at(-1) < most) {
    const last = counts.at(-1);
    counts.push(Math.min(most, last + (last < 10 ? 1 : last < 100 ? 10 : 100)));
  }
  return counts;
}

function fallen(count) {
  if (count < 2) return count ? "Each rank has thrown its first dart" : "No dart has fallen yet";
  return `${count.toLocaleString("en")} darts of each rank have fallen`;
}

function estimate(within, thrown) {
  const said = `${within.toLocaleString("en")} of ${thrown.toLocaleString("en")} within`;
  return thrown ? `${said}\nπ ≈ ${((4 * within) / thrown).toFixed(3)}` : said;
}

function sheet() {
  const canvas = node("canvas", { width: SIDE * 2, height: SIDE * 2 }); // sharp on a fine screen too
  canvas.style.cssText = `position: absolute; margin: 1px; width: ${SIDE}px; height: ${SIDE}px`;
  const pen = canvas.getContext("2d");
  pen.scale(2, 2);
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  return canvas;
}

function pencil(canvas) {
  return canvas.getContext("2d");
}

export default { render };
