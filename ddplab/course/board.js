// The board of claims: search and filter them; what was found unfolds. All of it runs in the browser.
const CELL =
  "text-align: left; vertical-align: top; padding: 4px 10px 4px 0; border-bottom: 1px solid var(--jp-border-color2); white-space: normal";
const SIGNS = { true: "✓", "true if": "◐", misleading: "≈", false: "✗", "not settled": "?" };
const YOURS = ["✓ as you said", "↻ not as you said"];

function render({ model, el }) {
  const claims = model.get("claims"); // [row, text, verdict, because, measured, where, link], texts as HTML
  const said = model.get("said"); // row → was it as the learner had said? of those that were judged
  const you = ([number]) => (number in said ? (said[number] ? "✓" : "↻") : "");
  const right = Object.values(said).filter(Boolean).length;
  const wrong = Object.keys(SIGNS).map((found) => [found, claims.filter((claim) => claim[2] === found && you(claim) === "↻").length]);
  const others = wrong.filter(([, n]) => n).map(([found, n]) => `${n} ${SIGNS[found]} ${found}`);
  const { bar, status, stage } = page(el);
  const search = control(bar, "Search", "input", { type: "search" });
  const verdict = control(bar, "Verdict", "select");
  for (const name of ["all", ...Object.keys(SIGNS), ...YOURS]) verdict.add(new Option(name));
  const table = node("table", { "aria-label": "claims", style: "border-collapse: collapse; width: 100%; max-width: 62em" });
  stage.style.maxHeight = "30em";
  stage.append(table);

  function draw() {
    const words = search.value.toLowerCase().split(/\s+/);
    const kept = claims
      .filter((claim) => ["all", claim[2]].includes(verdict.value) || you(claim) === verdict.value[0])
      .filter(([, text, , because]) => words.every((word) => plain(text + because).toLowerCase().includes(word)));
    table.replaceChildren(line("th", ["no.", "claim", "verdict", "you", "settled in"]), ...kept.map((claim) => row(claim, you(claim))));
    status.textContent = `${kept.length} of ${claims.length} claims. You have judged ${Object.keys(said).length}, ${right} as it was found.${others.length ? ` The others are: ${others.join(", ")}.` : ""} A verdict unfolds.`;
  }

  search.addEventListener("input", draw);
  verdict.addEventListener("change", draw);
  draw();
}

function row([number, text, found, because, measured, where, link], you) {
  const why = `<details><summary><strong>${SIGNS[found]} ${found}</strong></summary>${because}<br><small>Measured:</small> ${measured}</details>`;
  const place = link === "#" ? where : `<a href="${link}" target="_blank" style="color: var(--jp-content-link-color)">${where}</a>`;
  return line("td", [number ?? "", text, why, you, place]);
}

function line(kind, cells) {
  const made = node("tr");
  for (const html of cells) {
    const cell = node(kind, { style: CELL });
    cell.innerHTML = html; // escaped in Python
    if (kind === "th") cell.scope = "col";
    made.append(cell);
  }
  return made;
}

function plain(html) {
  return new DOMParser().parseFromString(html, "text/html").body.textContent;
}

export default { render };
