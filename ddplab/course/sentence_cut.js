// A padded batch of sentences and where it is cut between GPUs. All the arithmetic is here; sentence_cut.py has the same.
const ROW = 28, LEFT = 66, LETTERS = 12; // pixels: a sentence's height, where the words begin, their size
const BOX = 66, LEAST = 33, SIDE = 184; // a word's width, its least in a narrow page, and the room behind the words
const ORDERS = {
  "longest first": (all) => all,
  mixed: (all) => all.map((_, n) => all[n % 2 ? all.length - 1 - (n >> 1) : n >> 1]), // the longest, the shortest, …
  "shortest first": (all) => [...all].reverse(),
};
const VIEWS = { words: "words and padding", unpacked: "packed and unpacked", loss: "the loss of each sentence" };

function render({ model, el }) {
  const given = model.get("sentences"), signs = model.get("looks");
  const width = Math.max(...given.map((sentence) => sentence.length));
  const { bar, status, stage } = page(el);
  const still = "line-height: 1.4; min-height: 2.8em"; // room for two lines, whatever is said: the page stays
  status.style.cssText += `; ${still}`;
  const look = control(bar, "show", "select");
  for (const [name, words] of Object.entries(VIEWS)) {
    if (name !== "loss" || model.get("gram") || model.get("look") === name) look.add(new Option(words, name)); // a bet may be open
  }
  look.value = model.get("look");
  const order = control(bar, "order", "select");
  for (const name of Object.keys(ORDERS)) order.add(new Option(name));
  const gpus = control(bar, "GPUs", "select");
  for (const n of [2, 3, 4]) gpus.add(new Option(n));
  button(bar, "As DataParallel cuts", reset);
  const cuts = [1, 2, 3].map((n) => control(bar, `cut ${n}`, "input", { type: "range", min: 1, max: given.length }));
  const hatch = `padding${Math.random()}`; // a name of this page's own

  const used = () => cuts.slice(0, Number(gpus.value) - 1);
  const last = (n) => given.length - (used().length - n); // where cut n may fall, so that the GPUs behind it get a sentence

  function reset() {
    const most = Math.ceil(given.length / Number(gpus.value));
    cuts.forEach((cut, n) => {
      cut.parentElement.style.visibility = n < used().length ? "visible" : "hidden"; // the page does not jump
      cut.max = Math.max(last(n), Math.min(given.length, most * (n + 1))); // with few sentences DataParallel leaves a GPU none
      cut.value = most * (n + 1);
    });
    draw();
  }

  function move(n, to) {
    const all = used();
    all[n].value = Math.max(n + 1, Math.min(last(n), to)); // each GPU keeps a sentence
    for (let i = n + 1; i < all.length; i++) all[i].value = Math.max(all[i].value, Number(all[i - 1].value) + 1); // one pushes the next
    for (let i = n - 1; i >= 0; i--) all[i].value = Math.min(all[i].value, all[i + 1].value - 1);
    draw();
  }

  let dragged = -1;
  const over = (event) => Math.round((event.clientY - stage.firstChild.getBoundingClientRect().top) / ROW);
  stage.addEventListener("pointerdown", (event) => {
    dragged = used().findIndex((cut) => Number(cut.value) === over(event));
    if (dragged >= 0) stage.setPointerCapture(event.pointerId);
  });
  stage.addEventListener("pointermove", (event) => dragged >= 0 && over(event) !== Number(cuts[dragged].value) && move(dragged, over(event)));
  stage.addEventListener("pointerup", () => (dragged = -1));
  stage.addEventListener("pointercancel", () => (dragged = -1));
  cuts.forEach((cut, n) => cut.addEventListener("input", () => move(n, Number(cut.value))));
  for (const list of [look, order]) list.addEventListener("change", draw);
  gpus.addEventListener("change", reset);

  // As wide as there is room for: in a narrow page the words are pressed together, and what is said behind them is shorter.
  function room() {
    const all = stage.clientWidth || Infinity;
    if (all >= LEFT + BOX * width + SIDE) return [BOX, SIDE];
    return [Math.max(LEAST, Math.min(BOX, Math.floor((all - LEFT - SIDE + 50) / width))), SIDE - 50];
  }

  function draw() {
    const [wide, side] = room();
    const places = ORDERS[order.value](given.map((_, n) => n)), sentences = places.map((n) => given[n]);
    const gram = model.get("gram") && places.map((n) => places.map((m) => model.get("gram")[n][m]));
    const ends = [0, ...used().map((cut) => Number(cut.value)), sentences.length];
    const parts = ends.slice(1).map((end, gpu) => ({ gpu, from: ends[gpu], end })).filter(({ from, end }) => end > from);
    const found = outcome(sentences, parts, width, gram);
    status.textContent = told(found, parts, look.value);
    const svg = shape("svg", { width: LEFT + wide * width + side, height: ROW * sentences.length + 4, role: "img", style: "user-select: none; -webkit-user-select: none" }); // a drag selects no words
    svg.setAttribute("aria-label", parts.map((p) => `GPU ${p.gpu}: ${sentences.slice(p.from, p.end).map((s) => s.join(" ")).join(". ")}`).join("; "));
    svg.append(hatching(hatch));
    parts.forEach((part, n) => {
      const [sign, colour] = signs[part.gpu];
      const middle = ((part.from + part.end) / 2) * ROW + 5;
      svg.append(text(2, middle, sign, { fill: colour }), text(18, middle, `GPU ${part.gpu}`));
      const shown = look.value === "unpacked" ? found.widths[n] : width;
      const say = look.value === "loss" ? found.says[n] : 1;
      for (let row = part.from; row < part.end; row++) for (let place = 0; place < shown; place++) svg.append(...box(row, place, wide, sentences[row][place], hatch, say));
      if (look.value !== "unpacked") return;
      const end = shape("path", { d: `M${LEFT + wide * shown} ${part.from * ROW + 4}V${part.end * ROW - 4}`, "stroke-dasharray": "8 4", "stroke-width": 4 });
      end.style.stroke = "var(--jp-warn-color1)";
      svg.append(end, text(LEFT + wide * shown + 10, middle, `${shown} wide`));
    });
    if (look.value === "loss") sentences.forEach((_, row) => svg.append(text(LEFT + wide * width + 10, row * ROW + 19, `${side === SIDE ? "counts " : ""}${percent(found.shares[row])}, fair ${percent(found.fair[row])}`)));
    for (const end of ends.slice(1, -1).filter((end) => end < sentences.length)) {
      const d = `M${LEFT - 8} ${end * ROW}H${LEFT + wide * width + 8}`;
      svg.append(shape("path", { d, "stroke-width": 5, style: `stroke: ${INK}` }));
      svg.append(shape("path", { d, "stroke-width": ROW / 2, style: "stroke: transparent; cursor: row-resize; touch-action: none" })); // to take hold of
    }
    stage.replaceChildren(svg, node("div", { style: still }, NOTES[look.value]));
    squeeze(wide);
  }

  function squeeze(wide) { // what is too wide is pressed into its box
    for (const word of stage.querySelectorAll(".word")) {
      if (word.getComputedTextLength() <= wide - 4) continue;
      word.setAttribute("textLength", wide - 4);
      word.setAttribute("lengthAdjust", "spacingAndGlyphs");
    }
  }

  reset();
  const seen = new ResizeObserver(draw); // the page has no width, and a word none, until it is in the page
  seen.observe(stage);
  return () => seen.disconnect();
}

const NOTES = {
  words: "A row is a sentence, a box a word, hatched boxes are padding. The thick line is the cut: drag it, or move its slider with the arrow keys.",
  unpacked: "Each GPU packs its part and unpacks it again. The dashed line is how wide the part comes back.",
  loss: "Each word is as tall as its say, drawn at most 2.5 times its size. Each GPU averages over its words, and the script over the GPUs.",
};

// parts: of each GPU that has a sentence, where its sentences begin and end. gram: the inner products of the sentences' gradients.
function outcome(sentences, parts, width, gram) {
  const lengths = sentences.map((sentence) => sentence.length);
  const sum = (numbers) => numbers.reduce((a, b) => a + b, 0);
  const own = parts.map(({ from, end }) => lengths.slice(from, end));
  const words = own.map(sum), all = sum(lengths);
  const shares = own.flatMap((part, n) => part.map((length) => length / words[n] / parts.length));
  const fair = lengths.map((length) => length / all);
  const length = (weights) => Math.sqrt(Math.max(0, sum(weights.map((a, n) => a * sum(weights.map((b, m) => b * gram[n][m]))))));
  const off = gram && length(shares.map((share, n) => share - fair[n])) / length(fair);
  return { words, says: words.map((own) => all / parts.length / own), widths: own.map((part) => Math.max(...part)), padding: own.map((part, n) => part.length * width - words[n]), shares, fair, off };
}

function told(found, parts, look) {
  const each = (say) => parts.map(({ gpu, from, end }, n) => say(gpu, n, end - from));
  if (look === "words") return each((gpu, n, count) => `GPU ${gpu}: ${count} sentence${count === 1 ? "" : "s"}, ${found.words[n]} words, ${found.padding[n]} padding`).join("; ");
  if (look === "unpacked") {
    const widths = each((gpu, n) => `GPU ${gpu}: ${found.widths[n]} wide`).join(", ");
    return `${widths}: ${new Set(found.widths).size === 1 ? "✓ gather joins them" : "✗ gather refuses them"}`;
  }
  const counts = each((gpu, n) => `${found.says[n].toFixed(2)} on GPU ${gpu}`).join(", ");
  return `A word counts ${counts}; 1.00 is fair.${found.off === null ? "" : ` The gradient is ${percent(found.off)} off.`}`;
}

function percent(share) {
  return `${(100 * share).toFixed(1)}%`;
}

// say: what the word counts; so many times its usual size, as long as that fits into the row.
function box(row, place, wide, word, hatch, say) {
  const frame = shape("rect", { x: LEFT + place * wide, y: row * ROW, width: wide, height: ROW, fill: word === undefined ? `url(#${hatch})` : "none" });
  frame.style.stroke = "var(--jp-border-color1)";
  if (word === undefined) return [frame];
  const size = Math.min(say, 2.5) * LETTERS, middle = row * ROW + ROW / 2 + size * 0.35;
  return [frame, text(LEFT + (place + 0.5) * wide, middle, word, { class: "word", "text-anchor": "middle", "font-size": `${size}px` })];
}

function hatching(id) {
  const line = shape("path", { d: "M0 6L6 0", "stroke-width": 1 });
  line.style.stroke = "var(--jp-ui-font-color3)";
  return shape("defs", {}, shape("pattern", { id, width: 6, height: 6, patternUnits: "userSpaceOnUse" }, line));
}

export default { render };
