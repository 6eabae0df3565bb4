// What a learner thinks of each claim before a cell settles it: a line for each claim, a radio button for each verdict.
function render({ model, el }) {
  const { bar, status, stage } = page(el);
  bar.remove(); // nothing to set: all controls are in the table
  const claims = model.get("claims"); // [number, text as HTML]
  const verdicts = model.get("verdicts"); // [word, symbol]
  const table = node("table", { "aria-label": "your guesses", style: "border-collapse: collapse; max-width: 62em" });
  stage.append(table);
  table.append(line("th", ["", "claim", ...verdicts.map(([word, symbol]) => `${symbol} ${word}`)]));

  for (const [number, html] of claims) {
    const row = line("td", [number, "", ...verdicts.map(() => "")]);
    row.cells[1].innerHTML = html; // escaped in Python
    row.cells[1].style.textAlign = "left";
    const group = `guess-${Math.random()}`; // of this line, in the page
    verdicts.forEach(([word], place) => {
      const name = `${word}: ${row.cells[1].textContent}`;
      const radio = node("input", { type: "radio", name: group, "aria-label": name, "data-lm-suppress-shortcuts": "true" });
      radio.checked = model.get("guessed")[number] === word;
      radio.addEventListener("change", () => {
        model.set("guessed", { ...model.get("guessed"), [number]: word });
        model.save_changes();
        tell();
      });
      row.cells[place + 2].append(radio);
    });
    table.append(row);
  }

  function tell() {
    const many = Object.keys(model.get("guessed")).length;
    status.textContent = `Guessed: ${many} of ${claims.length}. What you guessed comes back in the box that settles it.`;
  }
  tell();
}

function line(kind, words) {
  const cells = words.map((word) => node(kind, { style: "padding: 3px 8px; text-align: center; white-space: normal" }, String(word)));
  if (kind === "th") for (const cell of cells) cell.scope = "col";
  return node("tr", { style: "border-bottom: 1px solid var(--jp-border-color2)" }, ...cells);
}

export default { render };
