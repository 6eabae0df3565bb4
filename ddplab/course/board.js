// The board of claims: search and filter them; what was found unfolds. All of it runs in the browser.
const CELL =
  "text-align: left; vertical-align: top; padding: 4px 10px 4px 0; border-bottom: 1px solid var(--jp-border-color2); white-space: normal";
const SIGNS = { true: "✓", "true if": "◐", misleading: "≈", false: "✗", "not settled": "?" };

function render({ model, el }) {
  const claims = model.get("claims"); // [row, text, verdict, because, measured, where, link], texts as HTML
  const { bar, status, stage } = page(el);
  const search = control(bar, "Search", "input", { type: "search" });
  const verdict = control(bar, "Verdict", "select");
  for (const name of ["all", ...Object.keys(SIGNS)]) verdict.add(new Option(name));
  const table = node("table", { "aria-label": "claims", style: "border-collapse: collapse; width: 100%; max-width: 62em" });
  stage.style.maxHeight = "30em";
  stage.append(table);

  function draw() {
    const words = search.value.toLowerCase().split(/\s+/);
    const kept = claims
      .filter(([, , found]) => verdict.value === "all" || found === verdict.value)
      .filter(([, text, , because]) => words.every((word) => plain(text + because).toLowerCase().includes(word)));
    table.replaceChildren(line("th", ["no.", "claim", "verdict", "settled in"]), ...kept.map(row));
    status.textContent = `${kept.length} of ${claims.length} claims. A verdict unfolds: why, and what was measured.`;
  }

  search.addEventListener("input", draw);
  verdict.addEventListener("change", draw);
  draw();
}

function row([number, text, found, because, measured, where, link]) {
  const why = `<details><summary><strong>${SIGNS[found]} ${found}</strong></summary>${because}<br><small>Measured:</small> ${measured}</details>`;
  const place = link === "#" ? where : `<a href="${link}" target="_blank" style="color: var(--jp-content-link-color)">${where}</a>`;
  return line("td", [number ?? "", text, why, place]);
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
