// A planned step as a timeline, and its formula with the numbers filled in, for a row of the planner's table. All
// numbers come from Python: `shown.rows` has [name, unknown, in_time, formula] for each row, `shown.chosen` is the arrow's.
const WIDE = 820, NAMES = 100, HIGH = 26; // pixels

function render({ model, el }) {
  const { bar, status, stage } = page(el);
  const which = control(bar, "the step on", "select");
  const hatch = `ddplab-late-${Math.random()}`;
  const looks = model.get("looks");
  stage.style.minHeight = "416px"; // as high as the longest formula, through a node and across: the page does not jump
  which.addEventListener("change", draw);
  model.on("change:shown", fresh);

  function fresh() {
    const { rows, chosen } = model.get("shown");
    which.replaceChildren(...rows.map(([name], number) => new Option(name, number)));
    which.value = chosen;
    draw();
  }

  function draw() {
    const [name, unknown, parts, formula] = model.get("shown").rows[Number(which.value)];
    status.textContent = `${name}: ${unknown ? `do not know: ${unknown}. So there is no timeline.` : said(parts)}`;
    if (unknown) return stage.replaceChildren();
    const table = node("table", { style: "font-size: 12px; border-collapse: collapse" });
    for (const [what, sum, result] of formula) {
      const cells = [node("th", { scope: "row", style: "text-align: left; font-weight: normal; padding-right: 8px" }, what)];
      cells.push(node("td", { style: "text-align: left" }, `= ${sum}`), node("td", { style: "text-align: left" }, node("b", {}, `= ${result}`)));
      table.append(node("tr", {}, ...cells));
    }
    stage.replaceChildren(timeline(parts), node("div", { style: "margin: 2px 0 8px" }, LEGEND), table);
  }

  function timeline({ forward, backward, waiting, exposed, hidden }) {
    const whole = forward + backward + waiting + exposed, scale = (WIDE - NAMES - 10) / whole;
    const svg = shape("svg", { width: WIDE, height: 2 * HIGH + 30, role: "img" });
    svg.setAttribute("aria-label", status.textContent);
    svg.append(waitingPattern(hatch), text(2, 19, "computes"), text(2, HIGH + 21, "messages"));
    const ends = [0, forward, forward + backward, forward + backward + waiting, whole];
    put("forward", ends[0], ends[1], 4, looks.forward);
    put("backward", ends[1], ends[2], 4, looks.backward);
    put("", ends[2], ends[3], 4, `url(#${hatch})`);
    put("hidden", ends[3] - hidden, ends[3], HIGH + 6, "none", INK);
    put("exposed", ends[3], ends[4], HIGH + 6, looks.travels);
    const step = 10 ** Math.floor(Math.log10(whole)), every = whole / step > 5 ? step : step / (whole / step > 2 ? 2 : 5);
    for (let at = 0; at <= whole * 1.0001; at += every)
      svg.append(text(NAMES + at * scale, 2 * HIGH + 24, at ? Number(at.toPrecision(6)) : "0 ms", { "text-anchor": "middle", "font-size": 11 }));
    return svg;

    function put(words, start, end, y, fill, ink = "black") {
      const wide = (end - start) * scale, x = NAMES + start * scale;
      if (wide <= 0) return;
      const box = shape("rect", { x, y, width: wide, height: HIGH - 2 });
      box.style.cssText = `fill: ${fill}; stroke: ${INK}; stroke-width: 0.8`;
      svg.append(box);
      if (words && wide > 7 * words.length) svg.append(text(x + wide / 2, y + 16, words, { "text-anchor": "middle", "font-size": 11, fill: ink }));
    }
  }

  fresh();
}

const LEGEND =
  "Above, what a GPU computes, and hatched, how long it waits for the latest. Below, messages: empty while something is computed above, filled where they alone make the step longer.";

// To four digits, and whole from 1,000 on, as the table has them.
const ms = (number) => `${number < 1000 ? Number(number.toPrecision(4)) : Math.round(number).toLocaleString("en")} ms`;

function said({ forward, backward, waiting, exposed, hidden }) {
  return (
    `${ms(forward + backward + waiting + exposed)}: computes ${ms(forward + backward)}, waits for the latest ${ms(waiting)}, ` +
    `messages ${ms(hidden)} hidden and ${ms(exposed)} exposed`
  );
}

export default { render };
