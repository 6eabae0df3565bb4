// Bets on what runs will show: a card for each sentence, its ends, and the stakes that are left. The kernel runs it.
const MARKS = { open: "…", won: "✓", lost: "↻" }; // as LEGEND.md has them

function render({ model, el }) {
  let cards = model.get("cards"); // [number, sentence, what is asked of its run, its ends], texts as HTML
  let orders = cards.map(([, , , ends]) => [...ends.keys()]); // in which a card's ends are seen
  let drafts, strip, here; // of each card what is chosen and not laid yet: the place of an end, a stake; the card that is seen
  const { bar, status, stage } = page(el);
  status.style.cssText += "; font-weight: bold; min-height: 2.9em; max-width: 60em";
  const card = node("div", { style: "max-width: 46em; min-height: 236px; line-height: 1.5" });
  const pressing = node("div", { style: BAR });
  const found = node("div", { role: "status", style: "max-width: 46em; min-height: 205px; margin-top: 8px; line-height: 1.5" });
  stage.append(card, pressing, found);
  const press = button(pressing, "", () => (over() ? again() : settled() ? next() : lay()));
  press.style.minWidth = "11em";
  const hint = node("span", { role: "status" });
  pressing.append(hint);
  let count = model.get("asked")[0], running = false, fresh = false;
  const over = () => cards.every((_, place) => settled(place));
  const settled = (place = here) => model.get("shown").told[cards[place][0]]; // [end, stake, gain, what came, words, verdict]

  function deal() {
    [drafts, here] = [cards.map(() => ({})), 0];
    strip = group("sentence", cards.map(([number], place) => [place, number, true]), here, "inline-block", (place) => ((here = place), draw()));
    for (const label of strip.children) label.style.cssText += "; min-width: 6.2em; margin-right: 4px; white-space: nowrap";
    bar.replaceChildren(strip);
  }

  function again() { // in another order, of the sentences and of their ends
    cards = mixed(cards);
    orders = cards.map(([, , , ends]) => mixed([...ends.keys()]));
    deal();
    fresh = true;
    ask(0, 0, 0);
  }

  function ask(...what) {
    model.set("asked", [++count, ...what]);
    model.save_changes();
  }

  function lay() {
    const { end, stake } = drafts[here];
    if (running) return;
    if (end === undefined || !stake) {
      hint.textContent = end === undefined ? "First say what the run will show." : "What do you stake on it?";
      return;
    }
    running = true;
    ask(cards[here][0], end, stake);
    tell();
  }

  function next() { // the next one that is open, from here on
    here = cards.map((_, n) => (here + n + 1) % cards.length).find((place) => !settled(place));
    strip.querySelectorAll("input")[here].checked = true;
    draw();
    begin();
  }

  function begin() {
    (card.querySelector("input:checked:enabled") ?? card.querySelector("input:enabled") ?? press).focus();
  }

  function draw() {
    const [, sentence, asks, ends] = cards[here], done = settled(), draft = drafts[here];
    const { stakes } = model.get("shown");
    if (stakes.some(([stake, left]) => stake === draft.stake && !left)) delete draft.stake; // laid on another one since
    const [end, stake] = done ?? [draft.end, draft.stake];
    card.replaceChildren(
      html(`“${sentence}”`, "font-size: 15px; min-height: 3em"),
      html(asks, "min-height: 6em"),
      group("what the run will show", orders[here].map((place) => [place, ends[place], !done]), end, "block", (it) => (draft.end = it)),
      group("stake", stakes.map(([it, left]) => [it, `${it} (${left || "none"} left)`, left && !done]), stake, "inline-block", (it) => (draft.stake = it)),
    );
    tell();
  }

  function group(name, options, chosen, display, choose) {
    const same = `bet-${Math.random()}`; // of this group, in the page
    const all = node("div", { role: "radiogroup", "aria-label": name });
    if (name === "stake") all.append("Stake: ");
    for (const [value, words, free] of options) {
      const radio = node("input", { type: "radio", name: same, "data-lm-suppress-shortcuts": "true" });
      radio.checked = value === chosen;
      radio.disabled = !free;
      radio.addEventListener("change", () => (choose(value), (hint.textContent = "")));
      const looks = free ? "" : radio.checked ? "; font-weight: bold" : "; opacity: 0.6";
      const label = node("label", { style: `display: ${display}; margin-right: 16px${looks}` }, radio, html(` ${words}`, "display: inline"));
      all.append(label);
    }
    return all;
  }

  function tell() {
    const { failed } = model.get("shown"), done = settled();
    cards.forEach(([number], place) => (strip.children[place].lastChild.textContent = ` ${number} ${mark(settled(place))}`));
    status.textContent = model.get("shown").status;
    press.textContent = running ? "It runs …" : over() ? "Play again, shuffled" : done ? "Next sentence" : "Bet, and run it";
    hint.textContent = "";
    found.replaceChildren(...(done ? [html(`${mark(done)}. You staked ${done[1]} on: ${cards[here][3][done[0]]}. The run shows: ${done[3]}.`), html(done[4], "margin: 4px 0"), html(done[5], "")] : running ? [] : [failed]));
    for (const part of [card, found]) part.style.minHeight = `${Math.max(parseFloat(part.style.minHeight), part.offsetHeight)}px`; // the page does not jump
  }

  model.on("change:shown", () => {
    running = false;
    draw();
    if (fresh) begin();
    fresh = false;
  });
  deal();
  draw();
}

function mark(told) {
  if (!told) return MARKS.open;
  const [, , gain] = told;
  return `${gain > 0 ? MARKS.won : gain < 0 ? MARKS.lost : MARKS.open} ${gain > 0 ? "+" : ""}${gain}`.replace("-", "−");
}

function mixed(things) {
  return things.map((it) => [Math.random(), it]).sort(([a], [b]) => a - b).map(([, it]) => it);
}

function html(words, style) {
  const made = node("div", { style });
  made.innerHTML = words; // escaped in Python
  return made;
}

export default { render };
