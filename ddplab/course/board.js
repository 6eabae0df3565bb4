// The board of claims: search and filter them, or guess each verdict before it is shown. All of it runs in the browser.
const CELL =
  "text-align: left; vertical-align: top; padding: 4px 10px 4px 0; border-bottom: 1px solid var(--jp-border-color2); white-space: normal";
const SIGNS = { true: "✓", "true if": "◐", misleading: "≈", false: "✗", "not settled": "?" };

function render({ model, el }) {
  const claims = model.get("claims"); // [row, text, verdict, because, measured, where, link], texts as HTML
  const { bar, status, stage } = page(el);
  const search = control(bar, "Search", "input", { type: "search" });
  const verdict = control(bar, "Verdict", "select");
  for (const name of ["all", ...Object.keys(SIGNS)]) verdict.add(new Option(name));
  const quiz = control(bar, "Quiz: guess before you see", "input", { type: "checkbox" });
  const table = node("table", { "aria-label": "claims", style: "border-collapse: collapse; width: 100%; max-width: 62em" });
  stage.append(table);
  const guesses = new Map(); // row's place → the verdict that was guessed

  function draw() {
    const words = search.value.toLowerCase().split(/\s+/);
    const kept = claims
      .map((claim, place) => ({ claim, place }))
      .filter(({ claim }) => verdict.value === "all" || quiz.checked || claim[2] === verdict.value)
      .filter(({ claim }) => words.every((word) => plain(claim[1] + claim[3]).toLowerCase().includes(word)));
    table.replaceChildren(head(), ...kept.map(({ claim, place }) => row(claim, place)));
    tell(kept.length);
  }

  function tell(shown) {
    const right = [...guesses].filter(([place, guess]) => claims[place][2] === guess).length;
    const score = quiz.checked ? ` Guessed: ${guesses.size}, right: ${right}.` : "";
    status.textContent = `${shown} of ${claims.length} claims.${score}`;
  }

  function row(claim, place) {
    const [number, text, answer, because, measured, where, link] = claim;
    const line = node("tr");
    const cells = [number ?? "", text];
    const hidden = quiz.checked && !guesses.has(place);
    if (!hidden) {
      const guess = guesses.get(place);
      const mine = quiz.checked ? (guess === answer ? "<br>You: right." : `<br>You: ${guess}.`) : "";
      cells.push(`<strong>${SIGNS[answer]} ${answer}</strong>: ${because}${mine}`, measured, `<a href="${link}" target="_blank" style="color: var(--jp-content-link-color)">${where}</a>`);
    }
    for (const cell of cells) line.append(box("td", cell));
    if (hidden) {
      const buttons = box("td", "");
      buttons.colSpan = 3;
      for (const [name, sign] of Object.entries(SIGNS)) {
        const guess = button(buttons, `${sign} ${name}`, () => guessed(line, claim, place, name));
        guess.setAttribute("aria-label", `${sign} ${name}: ${plain(text)}`);
      }
      line.append(buttons);
    }
    return line;
  }

  function guessed(line, claim, place, name) {
    guesses.set(place, name);
    const shown = row(claim, place);
    const next = line.nextElementSibling?.querySelector("button");
    line.replaceWith(shown);
    (next ?? shown.querySelector("a")).focus(); // the button that was pressed is gone
    tell(table.rows.length - 1);
  }

  for (const [what, when] of [[search, "input"], [verdict, "change"], [quiz, "change"]]) what.addEventListener(when, draw);
  draw();
}

function head() {
  const line = node("tr");
  for (const name of ["no.", "claim", "verdict", "measured", "settled in"]) {
    const cell = box("th", name);
    cell.scope = "col";
    line.append(cell);
  }
  return line;
}

function box(kind, html) {
  const cell = node(kind, { style: CELL });
  cell.innerHTML = html; // escaped in Python
  return cell;
}

function plain(html) {
  return new DOMParser().parseFromString(html, "text/html").body.textContent;
}

export default { render };
