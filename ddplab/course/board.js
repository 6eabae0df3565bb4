// The board of claims: search and filter them, or guess each verdict before it is shown. All of it runs in the browser.
const SIGNS = { true: "✓", "true if": "◐", misleading: "≈", false: "✗", "not settled": "?" };

function render({ model, el }) {
  const claims = model.get("claims"); // [row, text, verdict, because, measured, where, link], texts as HTML
  const view = document.createElement("div");
  view.style.cssText = "color: var(--jp-ui-font-color1); line-height: 1.5; max-width: 62em";
  const bar = document.createElement("div");
  bar.style.cssText = "display: flex; flex-wrap: wrap; gap: 8px 20px; align-items: center; margin-bottom: 8px";
  const search = control(bar, "Search", Object.assign(document.createElement("input"), { type: "search" }));
  const verdict = control(bar, "Verdict", list(["all", ...Object.keys(SIGNS)]));
  const quiz = control(bar, "Quiz: guess before you see", Object.assign(document.createElement("input"), { type: "checkbox" }));
  const status = document.createElement("div");
  status.setAttribute("role", "status");
  const table = document.createElement("table");
  table.setAttribute("aria-label", "claims");
  table.style.cssText = "border-collapse: collapse; width: 100%";
  view.append(bar, status, table);
  el.replaceChildren(view);
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
    const line = document.createElement("tr");
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
      for (const [name, sign] of Object.entries(SIGNS)) buttons.append(button(`${sign} ${name}`, text, () => guessed(line, claim, place, name)));
      line.append(buttons);
    }
    return line;
  }

  function guessed(line, claim, place, name) {
    guesses.set(place, name);
    const shown = row(claim, place);
    const next = line.nextElementSibling?.querySelector("button");
    line.replaceWith(shown);
    (next ?? quiz).focus(); // the button that was pressed is gone
    tell(table.rows.length - 1);
  }

  for (const [what, when] of [[search, "input"], [verdict, "change"], [quiz, "change"]]) what.addEventListener(when, draw);
  draw();
}

function control(bar, name, element) {
  const label = document.createElement("label");
  element.dataset.lmSuppressShortcuts = "true"; // JupyterLab would take keys for itself
  element.style.cssText = "margin-left: 8px; color: var(--jp-ui-font-color1); background: var(--jp-layout-color1)";
  label.append(name, element);
  bar.append(label);
  return element;
}

function list(options) {
  const element = document.createElement("select");
  for (const option of options) element.add(new Option(option));
  return element;
}

function button(name, about, press) {
  const element = Object.assign(document.createElement("button"), { textContent: name });
  element.setAttribute("aria-label", `${name}: ${plain(about)}`);
  element.dataset.lmSuppressShortcuts = "true";
  element.style.cssText = "margin: 2px 4px 2px 0; color: var(--jp-ui-font-color1); background: var(--jp-layout-color2); border: 1px solid var(--jp-border-color1)";
  element.addEventListener("click", press);
  return element;
}

function head() {
  const line = document.createElement("tr");
  for (const name of ["no.", "claim", "verdict", "measured", "settled in"]) {
    const cell = box("th", name);
    cell.scope = "col";
    line.append(cell);
  }
  return line;
}

function box(kind, html) {
  const cell = document.createElement(kind);
  cell.innerHTML = html; // escaped in Python
  cell.style.cssText = "text-align: left; vertical-align: top; padding: 4px 10px 4px 0; border-bottom: 1px solid var(--jp-border-color2); white-space: normal";
  return cell;
}

function plain(html) {
  return new DOMParser().parseFromString(html, "text/html").body.textContent;
}

export default { render };
