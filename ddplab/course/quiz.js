// Five claims at a time, drawn by chance: does it hold? Then what a cell has found, and mistakes counted by their kind.
const SAYS = ["✓ it holds", "◐ it holds if …", "✗ it does not hold"];
const HOLDS = { true: 0, "true if": 1, misleading: 2, false: 2 };
const SIGNS = { true: "✓", "true if": "◐ true if …", misleading: "≈", false: "✗" };
const KINDS = ["right", "believed, and it does not hold", "a condition not seen", "mistrusted, and it holds"];
const ROUND = 5;

function render({ model, el }) {
  const claims = model.get("claims"); // [row, text, verdict, because, measured, where, link], texts as HTML
  const { bar, status, stage } = page(el);
  const card = node("div", { style: "max-width: 46em; font-size: 15px; min-height: 9em" });
  const tally = node("table", { "aria-label": "your answers, by kind", style: "border-collapse: collapse; margin-top: 8px" });
  stage.append(card, tally);
  bar.remove(); // the buttons stand below the claim
  const counts = KINDS.map(() => 0);
  let left = [], asked = 0;

  function ask(focus) {
    if (!left.length) left = claims.map((claim) => [Math.random(), claim]).sort(([a], [b]) => a - b).map(([, claim]) => claim);
    const claim = left.pop();
    status.textContent = `Claim ${(asked % ROUND) + 1} of ${ROUND}`;
    const buttons = node("div", { style: BAR });
    card.replaceChildren(html("p", `“${claim[1]}”`), buttons);
    const made = SAYS.map((words, said) => button(buttons, words, () => answer(claim, said)));
    if (focus) made[0].focus(); // the button that was pressed is gone
  }

  function answer([row, text, verdict, because, measured, where, link], said) {
    const is = HOLDS[verdict];
    const kind = said === is ? 0 : is === 2 ? 1 : is === 1 && said === 0 ? 2 : 3;
    counts[kind] += 1;
    asked += 1;
    model.set("said", { ...model.get("said"), [row]: kind === 0 });
    model.save_changes();
    const sign = verdict === "true if" ? SIGNS[verdict] : `${SIGNS[verdict]} ${verdict}`;
    const over = asked % ROUND === 0;
    status.textContent = `You said: ${SAYS[said]}. ${kind === 0 ? "So it is." : `${KINDS[kind]}.`}${over ? ` ${counts[0]} of ${asked} right so far.` : ""}`;
    const found = html("p", `<strong>${sign}</strong>: ${because}<br><small>Measured: ${measured} (<a href="${link}" target="_blank" style="color: var(--jp-content-link-color)">${where}</a>)</small>`);
    const on = node("div", { style: BAR });
    card.replaceChildren(html("p", `“${text}”`), found, on);
    button(on, over ? "Five others" : "Next", () => ask(true)).focus();
    tell();
  }

  function tell() {
    const cell = (words) => node("td", { style: "text-align: left; padding: 0 12px 0 0" }, String(words));
    tally.replaceChildren(...KINDS.map((kind, n) => node("tr", {}, cell(kind), cell(counts[n]), cell("■".repeat(counts[n])))));
  }

  ask(false);
  tell();
}

function html(kind, words) {
  const made = node(kind, { style: "margin: 6px 0" });
  made.innerHTML = words; // escaped in Python
  return made;
}

export default { render };
