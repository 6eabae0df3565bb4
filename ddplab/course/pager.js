// The pager: what torchrun shows, the script, a button for each probe, and what has been said so far.
const MONO = "font: 12px/1.35 var(--jp-code-font-family, monospace); white-space: pre";
const HIGH = "clamp(280px, 34vh, 360px)"; // of the script and of the log: on a screen of 900 pixels both are seen, with all buttons
const WIDE = 720; // pixels that each wants for its longest lines; where the page has not twice as many, one stands below the other

function render({ model, el }) {
  const { bar, status, stage } = page(el);
  const prices = model.get("prices");
  let busy = false;

  const left = control(bar, "GPU-minutes left", "input", { readonly: "", size: 9 });
  const rank = control(bar, "rank", "select");
  for (const name of ["0", "1", "2", "3", "all"]) rank.add(new Option(name));
  for (const name of ["stack", "flight", "memory", "rows", "weights"]) button(bar, `${name} −${prices[name]}`, () => one(name));
  for (const name of ["detail", "hint"]) button(bar, `${name} −${prices[name]}`, () => ask(name));

  const script = node("select", { size: 30, "aria-label": "train.py, a line", "data-lm-suppress-shortcuts": "true" });
  script.style.cssText = `${LOOK}; ${MONO}; height: ${HIGH}; width: 100%; overflow: auto`;
  const text = node("textarea", { rows: 2, "aria-label": "what shall stand in the selected line", placeholder: "what shall stand in the selected line", "data-lm-suppress-shortcuts": "true" });
  text.style.cssText = `${LOOK}; ${MONO}; width: 100%; box-sizing: border-box`;
  script.addEventListener("change", () => { text.value = script.value; });
  const below = node("div", { style: BAR });
  const accuse = button(below, "", () => (line() ? ask("accuse", who(), line()) : say(which())));
  const name = () => { accuse.textContent = `accuse ${who() === null ? "all ranks" : `rank ${who()}`} and this line, −${prices.wrong} if wrong`; };
  rank.addEventListener("change", name); // the list of ranks is out of sight here
  button(below, "patch the line", () => (line() ? ask("patch", line(), text.value) : say(which())));
  button(below, `run again −${prices.run}`, () => ask("run"));
  button(below, "a text to share", () => ask("share"));
  const told = node("div", { "aria-hidden": "true", style: "margin: 6px 0; min-height: 2.8em" }); // the status once more, where one presses
  const log = node("div", { tabindex: 0, role: "log", "aria-label": "what has been said, the latest first" });
  log.style.cssText = `${LOOK}; ${MONO}-wrap; overflow-wrap: anywhere; height: ${HIGH}; overflow: auto; padding: 4px; box-sizing: border-box`;
  log.setAttribute("data-lm-suppress-shortcuts", "true");
  const half = `flex: 1 1 ${WIDE}px; min-width: 0`;
  stage.append(node("div", { style: "display: flex; flex-wrap: wrap; gap: 8px" },
    node("div", { style: half }, log), node("div", { style: half }, script, text, below, told)));

  const line = () => script.selectedIndex + 1;
  const who = () => (rank.value === "all" ? null : Number(rank.value));
  const which = () => (model.get("state").script.length ? "Select the line first." : model.get("shut"));
  const say = (words) => { told.textContent = status.textContent = words; };
  const verdict = (lines) => lines.find((it) => /^(not mended|Mended|Closed)/.test(it)) ?? lines[0];
  const one = (name) => (who() === null ? say("Choose one rank for this.") : ask(name, who()));

  function ask(...call) {
    if (busy) return;
    busy = true;
    say(`${call[0]}: the kernel is at work …`);
    model.set("asked", { n: model.get("asked").n + 1, call }); // a number that is new: the kernel hears of the same wish again
    model.save_changes();
  }

  function draw() {
    const state = model.get("state"), chosen = script.selectedIndex, top = script.scrollTop;
    busy = false;
    left.value = `${state.left} of ${model.get("budget")}`;
    script.replaceChildren(...state.script.map(([shown, its]) => new Option(shown.replaceAll(" ", "\u00a0"), its)));
    if (!state.script.length) script.append(node("option", { disabled: "", style: `color: ${INK}` }, model.get("shut")));
    script.selectedIndex = chosen;
    script.scrollTop = top;
    const entries = state.log.map(([call, said]) => `>>> page.${call}\n${said}\n\n`).reverse();
    if (state.call === "share()") entries.unshift(`>>> page.share()\n${state.said}\n\n`);
    log.textContent = entries.join("") + state.page;
    log.scrollTop = 0;
    say(state.closed ? "Closed. The text to share is yours." : state.call ? `page.${state.call}: ${verdict(state.said.split("\n"))}` : state.script.length ? "The page, and the script. Ask the ranks." : "The page. Ask a rank: then the script opens.");
    if (state.call) told.append(` (${left.value} GPU-minutes left)`);
  }

  model.on("change:state", draw);
  name();
  draw();
}

export default { render };
