// A step of DDP, drawn by a model, whose rules are in step_explorer.py, which has the same functions for tests and pictures.
const WIDE = 820, NAMES = 78, TOP = 4, AXIS = 22, TALLEST = 8 * 42 + AXIS + TOP; // pixels
const REGULAR = 700; // milliseconds a moment while it plays

function render({ model, el }) {
  const M = model.get("model"), options = model.get("options"), looks = model.get("looks"), signs = model.get("signs");
  const chosen = { ...model.get("chosen") };
  const hatch = `ddplab-waits-${Math.random()}`; // a page may show several of these
  const { bar, status, stage } = page(el);
  const second = node("div", { style: BAR });
  bar.after(second);
  const sum = node("div", { style: "min-height: 2.8em; margin-top: 4px" });
  stage.after(sum, node("div", { style: "margin-top: 4px" }, LEGEND));
  stage.style.minHeight = `${TALLEST}px`; // the page does not jump when there are fewer ranks

  const lists = {
    ranks: list("ranks", options.ranks),
    slow: list("slow rank", ["none"]),
    slower: list("so slow", options.slower, (times) => `${times} times`),
    bucket: list("bucket", Object.keys(options.buckets)),
    overlap: list("overlap", ["on", "off"]),
  };
  const player = playBar(second, "time", () => moments.length - 1, REGULAR, draw);
  second.querySelector("input").style.width = "300px";
  let it, moments;

  function list(name, values, words = String) {
    const made = control(bar, name, "select");
    for (const value of values) made.add(new Option(words(value), value));
    made.addEventListener("change", () => (player.stop(), read(), fresh()));
    return made;
  }

  function read() {
    const slow = lists.slow.value;
    Object.assign(chosen, {
      ranks: Number(lists.ranks.value),
      slow: slow === "none" ? null : Number(slow),
      slower: Number(lists.slower.value),
      bucket: lists.bucket.value,
      overlap: lists.overlap.value === "on",
    });
    if (chosen.slow >= chosen.ranks) chosen.slow = null; // there is no such rank any more
  }

  function offerRanks() {
    const names = ["none", ...Array(chosen.ranks).keys()];
    lists.slow.replaceChildren(...names.map((name) => new Option(name === "none" ? "none" : `rank ${name}`, name)));
    lists.slow.value = chosen.slow ?? "none";
  }

  function fresh() {
    offerRanks();
    it = simulate(M, options.buckets, chosen);
    const changes = [0, ...it.changes].sort((a, b) => a - b);
    moments = changes.filter((at, number) => !(changes[number + 1] - at < 1e-6)); // the same but for rounding: the last
    const others = [...Array(chosen.ranks).keys()].filter((rank) => rank !== chosen.slow);
    const waits = (rank) => `${ms(it.travels.at(-1)[1] - it.ready(rank, 0))} ms`;
    const turned = simulate(M, options.buckets, { ...chosen, overlap: !chosen.overlap }).end;
    sum.textContent =
      `The step takes ${ms(it.end)} ms; with overlap ${chosen.overlap ? "off" : "on"} it would take ${ms(turned)}. ` +
      `${it.packed.length} bucket${it.packed.length > 1 ? "s" : ""}. ` +
      (chosen.slow === null
        ? `With all computed, every rank still waits ${waits(0)}.`
        : `With all computed, rank ${chosen.slow} still waits ${waits(chosen.slow)}, and each of the others ${waits(others[0])}.`);
    player.go(0);
  }

  function draw(moment) {
    const now = moments[moment];
    const lane = Math.min(90, (TALLEST - AXIS - TOP) / chosen.ranks);
    const height = lane * chosen.ranks + AXIS + TOP, scale = (WIDE - NAMES - 10) / it.end;
    const svg = shape("svg", { width: WIDE, height, role: "img", style: "touch-action: none; user-select: none; display: block" });
    svg.append(waitingPattern(hatch));
    const words = [...Array(chosen.ranks).keys()].map((rank) => said(it, chosen, rank, now));
    svg.setAttribute("aria-label", words.map((line, rank) => `rank ${rank}: ${line}`).join("; "));
    words.forEach((_, rank) => drawLane(rank, TOP + rank * lane));
    drawAxis();
    words.forEach((line, rank) => svg.append(stated(TOP + rank * lane + 12, line)));
    stage.replaceChildren(svg);
    const trip = it.travels.findIndex(([start, end]) => start <= now && now < end);
    status.textContent =
      `${ms(now)} of ${ms(it.end)} ms: ` + (trip < 0 ? "no bucket travels" : `bucket ${trip} travels, of layer${it.packed[trip].length > 1 ? "s" : ""} ${it.packed[trip].join(", ")}`);

    svg.addEventListener("pointerdown", (event) => drag(event));

    function drawLane(rank, y) {
      const [sign, colour] = signs[rank], half = (lane - 18) / 2;
      svg.append(text(2, y + 12, sign, { fill: colour }), text(18, y + 12, `rank ${rank}`));
      for (const [name, start, end, what] of it.computes(rank)) put(name, start, end, y + 16, half, what);
      it.travels.forEach(([start, end], number) => {
        const begins = Math.max(it.leaves(rank, number), number ? it.travels[number - 1][1] : 0);
        put("waits", begins, start, y + 16 + half, half - 2, "");
        put("travels", start, end, y + 16 + half, half - 2, number);
      });
    }

    // What a rank does, legible also where the broken line crosses it.
    function stated(y, line) {
      const words = text(NAMES + 4, y, line, { "font-size": 12 });
      words.style.cssText = "paint-order: stroke; stroke: var(--jp-layout-color0); stroke-width: 2";
      return words;
    }

    function put(name, start, end, y, high, words) {
      if (end <= start) return;
      const wide = (end - start) * scale, x = NAMES + start * scale;
      const box = shape("rect", { x, y, width: wide, height: high });
      box.style.cssText = `fill: ${name === "waits" ? `url(#${hatch})` : looks[name]}; stroke: ${INK}; stroke-width: 0.7`;
      svg.append(box);
      if (words === "" || wide < 8 * String(words).length || high < 9) return;
      const size = Math.min(11, high - 1); // inside of its bar
      svg.append(text(x + wide / 2, y + high / 2 + 0.36 * size, words, { "text-anchor": "middle", "font-size": size, fill: "black" }));
    }

    function drawAxis() {
      const bottom = TOP + lane * chosen.ranks;
      const every = it.end > 100 ? 20 : 10;
      for (let at = 0; at <= it.end; at += every)
        svg.append(text(NAMES + at * scale, bottom + 16, at ? at : "0 ms", { "text-anchor": "middle", "font-size": 11 }));
      const line = shape("line", { x1: NAMES + now * scale, x2: NAMES + now * scale, y1: 0, y2: bottom + 4 });
      line.style.cssText = `stroke: ${INK}; stroke-width: 2.5; stroke-dasharray: 5 2`;
      svg.append(line);
    }
  }

  // Dragging in the picture: to the moment that begins before the pointer. `draw` makes a new picture; so listen above it.
  function drag(event) {
    player.stop();
    const left = stage.getBoundingClientRect().left - stage.scrollLeft;
    const to = ({ clientX }) => {
      const at = ((clientX - left - NAMES) / (WIDE - NAMES - 10)) * it.end;
      player.go(moments.filter((moment) => moment <= at).length - 1);
    };
    to(event);
    stage.addEventListener("pointermove", to);
    addEventListener("pointerup", () => stage.removeEventListener("pointermove", to), { once: true });
  }

  offerRanks();
  for (const name of ["ranks", "slower", "bucket"]) lists[name].value = chosen[name];
  lists.overlap.value = chosen.overlap ? "on" : "off";
  fresh();
  return player.stop;
}

const LEGEND =
  "Drawn by a model, not measured. A lane for each rank: above, what it computes, each number a layer, the optimizer last; below, its buckets by number while they travel. Hatched: it waits. " +
  "The broken line is the time: drag it, or use the buttons.";

const ms = (number) => number.toFixed(1);

function simulate(M, limits, { ranks, slow, slower, bucket, overlap }) {
  const pace = (rank) => (rank === slow ? slower : 1), all = [...Array(ranks).keys()];
  const packed = [[]];
  for (let layer = M.layers - 1; layer >= 0; layer--) {
    const limit = limits[bucket][packed.length > 1 ? 1 : 0];
    if (packed.at(-1).length * M.bytes >= limit) packed.push([]);
    packed.at(-1).push(layer);
  }
  const ready = (rank, layer) => pace(rank) * (M.layers * M.forward + (M.layers - layer) * M.backward);
  const leaves = (rank, number) => ready(rank, overlap ? packed[number].at(-1) : 0);
  const travels = [];
  packed.forEach((layers, number) => {
    const start = Math.max(...all.map((rank) => leaves(rank, number)), number ? travels[number - 1][1] : 0);
    const size = (layers.length * M.bytes) / 2 ** 20;
    travels.push([start, start + 2 * (ranks - 1) * (M.message + (size / ranks) * M.mebibyte)]);
  });
  const back = travels.at(-1)[1];
  const waitsFor = (number) => {
    const left = all.map((rank) => leaves(rank, number)), last = Math.max(...left);
    return number && travels[number - 1][1] > last ? `bucket ${number - 1}` : `rank ${left.indexOf(last)}`;
  };
  // What a rank computes: [kind, from, to, words], one after the other.
  const computes = (rank) => {
    const bars = [["forward", 0, pace(rank) * M.layers * M.forward, "forward"]];
    for (let layer = M.layers - 1; layer >= 0; layer--) bars.push(["backward", bars.at(-1)[2], ready(rank, layer), layer]);
    bars.push(["waits", ready(rank, 0), back, ""]);
    bars.push(["optimizer", back, back + pace(rank) * M.optimizer, "opt."]);
    return bars;
  };
  const end = back + M.optimizer * Math.max(...all.map(pace));
  const changes = [...all.flatMap((rank) => computes(rank).map((bar) => bar[2])), ...travels.flat()];
  return { packed, ready, leaves, travels, waitsFor, computes, end, changes };
}

// What a rank does at a time, in words.
function said(it, chosen, rank, now) {
  const bar = it.computes(rank).find(([, from, to]) => from <= now && now < to);
  const trip = it.travels.findIndex(([start, end]) => start <= now && now < end);
  const held = it.travels.findIndex(([start], number) => it.leaves(rank, number) <= now && now < start);
  const kind = bar ? bar[0] : "done";
  if (kind === "forward") return "computes the forward pass";
  if (kind === "done") return "is ready for the next step";
  if (kind === "optimizer") return "all gradients are means: the optimizer's step";
  const below = trip >= 0 ? `bucket ${trip} travels` : held >= 0 ? `bucket ${held} has left, and waits for ${it.waitsFor(held)}` : "no bucket has left";
  if (kind === "waits") return `has computed all, and waits: ${below}`;
  return `computes layer ${bar[3]}'s gradients; ${held < 0 && trip < 0 && now > it.travels[0][0] ? "no bucket travels" : below}`;
}

export default { render };
