// Who holds the store, the agents and the ranks, moment after moment; live, the newest moment is shown until somebody
// goes back. With buttons for accidents where the night is being played.
const BOX = 330, TALL = 128; // pixels, of a server
const RANK = { runs: "runs", died: "✕ died", stopped: "✗ was stopped", returned: "○ has returned" };

let held = ""; // the button that had the focus when the night ended: then the output is made anew

function render({ model, el }) {
  const { bar, status, stage } = page(el);
  const frames = () => model.get("frames");
  const last = () => Math.max(0, frames().length - 1);
  const player = playBar(bar, "moment", last, 1200, draw);
  const accidents = node("div", { style: `${BAR}; margin: 6px 0` });
  const verdict = node("pre", { style: `color: ${INK}; white-space: pre-wrap; margin: 6px 0`, role: "status" });
  stage.after(accidents, verdict);
  if (model.get("going") || model.get("verdict")) verdict.style.minHeight = "7em"; // the page keeps its height when the morning comes
  status.style.minHeight = "2.8em"; // room for two lines: the page does not jump
  const buttons = model.get("buttons").map((name) => button(accidents, name, () => ask(name)));
  let shown = 0;

  function ask(name) {
    if (!model.get("going")) return;
    const pressed = Number(model.get("ask").split("#")[1] ?? 0); // by whoever looks at it
    model.set("ask", `${name}#${pressed + 1}`);
    model.save_changes();
  }

  function draw(moment) {
    shown = moment;
    if (!frames().length) return;
    const { servers, disk, said, step } = frames()[moment];
    const done = step === null ? "" : `, step ${step}`;
    status.textContent = `Moment ${moment} of ${last()}${done}: ${said}.`;
    const width = servers.length * (BOX + 20);
    const svg = shape("svg", { width, height: TALL + 60, role: "img" });
    svg.setAttribute("aria-label", servers.map(inWords).join("; ") + (disk && `; the disk: ${disk}`));
    servers.forEach((server, n) => svg.append(...drawn(server, 2 + n * (BOX + 20), moment && frames()[moment - 1].servers[n])));
    if (disk || model.get("saves")) svg.append(text(14, TALL + 30, `▤ the disk: ${disk || "no checkpoint"}`));
    stage.replaceChildren(svg);
  }

  function drawn(server, x, before) {
    const frame = shape("rect", { x, y: 2, width: BOX, height: TALL, rx: 6, fill: "none" });
    const isNew = before && JSON.stringify(before) !== JSON.stringify(server);
    frame.style.cssText = `stroke: ${INK}; stroke-width: ${isNew ? 3 : 1}; stroke-dasharray: ${server.agent ? "none" : "4 4"}`;
    const parts = [frame, text(x + 12, 24, server.name, { "font-weight": "bold" })];
    if (server.store) parts.push(text(x + BOX - 12, 24, "⌂ store", { "text-anchor": "end", "font-weight": "bold" }));
    parts.push(text(x + 12, 50, server.agent ? `agent: ${server.agent}` : "no agent"));
    server.ranks.forEach(([rank, state], n) => {
      const [sign, colour] = model.get("looks")[rank % 8];
      parts.push(text(x + 12, 78 + 24 * n, sign, { fill: colour }), text(x + 32, 78 + 24 * n, `rank ${rank} ${RANK[state]}`));
    });
    return parts;
  }

  function inWords({ name, agent, store, ranks }) {
    const held = ranks.map(([rank, state]) => `rank ${rank} ${RANK[state]}`).join(", ");
    return `${name}: ${agent ? `agent ${agent}` : "no agent"}${store ? ", the store" : ""}${held ? `, ${held}` : ""}`;
  }

  function news() {
    const follows = shown >= Number(bar.querySelector("input").max);
    player.go(model.get("going") && follows ? last() : Math.min(shown, last()));
  }

  function over() {
    if (el.contains(document.activeElement)) held = document.activeElement.textContent;
    dim();
    accidents.style.display = buttons.length ? "flex" : "none";
    verdict.textContent = model.get("verdict");
  }

  function dim() { // not `disabled`: that would take the focus from who has just pressed it
    for (const it of buttons) {
      const can = model.get("going") && !model.get("cannot").includes(it.textContent);
      it.setAttribute("aria-disabled", !can);
      it.style.opacity = can ? 1 : 0.5;
    }
  }

  model.on("change:frames", news);
  model.on("change:cannot", dim);
  model.on("change:going", over);
  over();
  player.go(model.get("going") || model.get("verdict") ? last() : 0);
  const mine = buttons.find((it) => it.textContent === held);
  if (mine && !model.get("going")) {
    held = "";
    setTimeout(() => document.activeElement === document.body && mine.focus({ preventScroll: true }), 200);
  }
  return () => {
    player.stop();
    model.off("change:frames", news);
    model.off("change:cannot", dim);
    model.off("change:going", over);
  };
}

export default { render };
