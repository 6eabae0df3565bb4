// The card dealer: DistributedSampler's own deals, card by card, and who has one twice or not at all.
const CARD = 30, LINE = 40, NAME = 74, GAP = 26, TOP = 74, FLIGHT = 260; // pixels, and milliseconds

function render({ model, el }) {
  const deals = model.get("deals"); // the chosen values in one text → of each epoch and rank, its samples
  const choices = model.get("choices"); // name → the values that it can have
  const chosen = model.get("chosen"), offer = model.get("offer"); // name → value at first; the names to choose
  const wrong = model.get("wrong"); // samples that a model reads wrong
  const looks = model.get("looks"); // of each rank: [sign, colour]
  const { bar, status, stage } = page(el);
  const controls = Object.entries(choices).map(([name, values]) => chooser(name, values));
  const epochs = control(bar, "epochs", "select");
  [1, 2, 3].forEach((number) => epochs.add(new Option(number)));
  epochs.value = chosen.epochs;
  if (!offer.includes("epochs")) epochs.parentNode.style.display = "none";
  const second = node("div", { style: `${BAR}; margin-top: 6px` });
  bar.after(second);
  const player = playBar(second, "cards", () => hands().length, FLIGHT + 60, draw);
  const counters = node("div", { style: "margin: 4px 0" });
  stage.after(counters);
  [...controls.map((it) => it.made), epochs].forEach((made) => made.addEventListener("change", () => (player.stop(), anew())));
  let at = 0;

  function chooser(name, values) {
    const isSwitch = typeof values[0] === "boolean";
    const made = isSwitch ? control(bar, name, "input", { type: "checkbox" }) : control(bar, name, "select");
    if (!isSwitch) values.forEach((value) => made.add(new Option(value)));
    if (isSwitch) made.checked = chosen[name];
    else made.value = chosen[name];
    if (!offer.includes(name)) made.parentNode.style.display = "none";
    return { made, value: () => Number(isSwitch ? made.checked : made.value) };
  }

  const deal = () => deals[controls.map((it) => it.value()).join(" ")].slice(0, Number(epochs.value));
  const samples = () => controls[0].value();

  // All cards in the order in which they are dealt: epoch by epoch, and round and round the ranks.
  function hands() {
    return deal().flatMap((shares, epoch) =>
      shares[0].flatMap((_, place) => shares.map((share, rank) => ({ epoch, rank, place, sample: share[place] }))),
    );
  }

  function anew() {
    player.go(at ? Infinity : 0); // who has seen a deal to its end sees the next one whole
  }

  function draw(moment, before) {
    at = moment;
    const shares = deal(), cards = hands(), done = cards.slice(0, moment);
    const epoch = (cards[moment] ?? cards.at(-1)).epoch; // that is being dealt
    const wide = shares[0][0].length * CARD + GAP;
    const ranks = shares[0].length;
    const most = Math.max(...choices.ranks), width = NAME + 3 * (7 * CARD + GAP);
    const svg = shape("svg", { width, height: TOP + most * LINE, role: "img" });
    svg.setAttribute("aria-label", told(shares, done));
    const pack = cards.filter((card, n) => card.epoch === epoch && n >= moment);
    svg.append(text(4, 20, pack.length ? "the pack" : "all dealt"));
    pack.forEach((card, n) => svg.append(...face(NAME + n * (CARD + 2), 2, card.sample, isAgain(cards, cards.indexOf(card)), wrong)));
    shares.forEach((_, n) => n <= epoch && svg.append(text(NAME + n * wide, TOP - 8, `epoch ${n}`)));
    for (let rank = 0; rank < ranks; rank++) {
      const [sign, colour] = looks[rank % looks.length];
      svg.append(text(4, TOP + rank * LINE + 20, sign, { fill: colour }), text(22, TOP + rank * LINE + 20, `rank ${rank}`));
    }
    done.forEach((card, n) => {
      const [x, y] = [NAME + card.epoch * wide + card.place * CARD, TOP + card.rank * LINE];
      const both = shape("g", {}, ...face(x, y, card.sample, isAgain(cards, n), wrong));
      svg.append(both);
      if (n === moment - 1 && moment === before + 1 && !STILL) fly(both, NAME - x, 2 - y);
    });
    stage.replaceChildren(svg);
    tell(shares, done, cards.length);
  }

  // Was this sample dealt before, in the same epoch?
  function isAgain(cards, n) {
    return cards.slice(0, n).some((card) => card.epoch === cards[n].epoch && card.sample === cards[n].sample);
  }

  function tell(shares, done, all) {
    const last = done.at(-1);
    status.textContent = last ? `Epoch ${last.epoch}: sample ${last.sample} to rank ${last.rank}` : "The pack of epoch 0";
    if (done.length === all) status.textContent = `All cards of ${shares.length === 1 ? "one epoch" : `${shares.length} epochs`} are dealt`;
    const lines = shares.map((_, n) => {
      const served = done.filter((card) => card.epoch === n).map((card) => card.sample);
      const twice = served.filter((sample, place) => served.indexOf(sample) !== place);
      return `epoch ${n}: dealt twice: ${named(twice)}; ${over(n, done, shares) ? `to nobody: ${named(missing(served))}` : `still to come ${missing(served).length}`}${right(served)}`;
    });
    const never = missing(done.map((card) => card.sample));
    if (shares.length > 1) lines.push(done.length === all ? `in no epoch: ${named(never)}` : "in no epoch: not yet known");
    while (offer.includes("epochs") && lines.length < 4) lines.push("\u00a0"); // as many lines for one epoch as for three
    counters.replaceChildren(...lines.map((line) => node("div", {}, line)));
  }

  function right(served) {
    const hits = served.filter((sample) => !wrong.includes(sample)).length;
    return wrong.length && served.length ? `; ${hits} of ${served.length} right: ${(hits / served.length).toFixed(3)}` : "";
  }

  function over(epoch, done, shares) {
    return done.filter((card) => card.epoch === epoch).length === shares[epoch].flat().length;
  }

  function missing(served) {
    return [...Array(samples()).keys()].filter((sample) => !served.includes(sample));
  }

  function named(some) {
    return some.length ? `${some.length} (${some.sort((a, b) => a - b).join(", ")})` : "none";
  }

  function told(shares, done) {
    return shares[0].map((_, rank) => `rank ${rank}: ${done.filter((card) => card.rank === rank).map((card) => card.sample).join(" ")}`).join("; ");
  }

  player.go(0);
  return player.stop; // when the cell's output goes
}

// A card with its number; one that somebody has already is hatched, its number on a patch. ✗: it is read wrong.
function face(x, y, sample, again, wrong) {
  const card = shape("rect", { x, y, width: CARD - 3, height: LINE - 8, rx: 4 });
  card.style.cssText = `fill: var(--jp-layout-color2); stroke: ${INK}`;
  const made = [card];
  for (let line = 6; again && line < CARD + LINE - 16; line += 7) {
    const [a, b] = [Math.min(line, LINE - 9), Math.max(0, line - LINE + 9)];
    const [c, d] = [Math.max(0, line - CARD + 4), Math.min(line, CARD - 4)];
    const hatch = shape("path", { d: `M${x + b} ${y + a}L${x + d} ${y + c}`, stroke: INK, "stroke-width": 1 });
    made.push(hatch);
  }
  if (again) made.push(shape("rect", { x: x + 4, y: y + 8, width: CARD - 11, height: 16, style: "fill: var(--jp-layout-color2)" }));
  const label = wrong.includes(sample) ? `${sample}✗` : sample;
  made.push(text(x + CARD / 2 - 1.5, y + 21, label, { "text-anchor": "middle" }));
  return made;
}

function fly(card, x, y) {
  card.animate([{ transform: `translate(${x}px, ${y}px)` }, { transform: "none" }], { duration: FLIGHT, easing: "ease-out" });
}

export default { render };
