// A slider for each number, a list for each word to choose, and what the kernel says and draws of them: at once, or
// where a button is wanted, when it is pressed.
function render({ model, el }) {
  const { bar, status, stage } = page(el);
  status.style.cssText += "; white-space: pre-wrap; overflow-wrap: anywhere; font-family: var(--jp-code-font-family, monospace)";
  const [, ...places] = model.get("asked");
  const controls = model.get("offered").map(([name, words, options], n) => {
    const kind = words ? "select" : "input";
    const made = control(bar, name, kind, words ? {} : { type: "range", min: 0, max: options.length - 1, step: 1 });
    if (words) options.forEach((option, place) => made.add(new Option(option, place)));
    made.value = places[n];
    const told = node("span", { "aria-hidden": "true", style: `min-width: ${Math.max(...options.map((it) => it.length))}ch; margin-left: 6px` });
    const tell = () => {
      told.textContent = options[made.value];
      made.setAttribute("aria-valuetext", options[made.value]);
    };
    if (!words) {
      made.parentNode.append(told);
      tell();
    }
    let keyed = false, soon;
    made.addEventListener("keydown", () => (keyed = true));
    made.addEventListener("pointerdown", () => (keyed = false));
    made.addEventListener("input", () => { // on the way through a list by key one has not chosen yet
      words || tell();
      if (model.get("press") || (!words && !model.get("drag"))) return;
      clearTimeout(soon);
      if (words && keyed) soon = setTimeout(ask, 600);
      else ask();
    });
    if (!words && !model.get("drag") && !model.get("press")) made.addEventListener("change", () => ask()); // it was let go
    return made;
  });

  const runs = node("span", { role: "status", style: "min-width: 9ch" }); // beside the button: how long already
  let clock = 0;
  if (model.get("press")) {
    button(bar, model.get("press"), ask);
    bar.append(runs);
  }
  let waiting = false, moved = false;
  function ask() { // one question at a time: while a slider is drawn along, what lies between is left out
    moved = waiting && !model.get("press");
    if (waiting) return;
    waiting = true;
    const begun = Date.now();
    clock = setInterval(() => (runs.textContent = `runs, ${Math.floor((Date.now() - begun) / 1000)} s`), 500);
    Object.assign(status.style, { transition: "opacity 0s 0.3s", opacity: 0.5 }); // the words are still of another place
    model.set("asked", [model.get("asked")[0] + 1, ...controls.map((made) => Number(made.value))]);
    model.save_changes();
  }

  const picture = node("img", { style: "display: block; max-width: 100%" });
  let high = 0, highest = 0; // as high as the highest so far: the page does not jump
  picture.addEventListener("load", () => {
    highest = Math.max(highest, picture.offsetHeight);
    stage.style.minHeight = `${highest}px`;
  });
  function draw() {
    const { words, png } = model.get("shown");
    clearInterval(clock);
    runs.textContent = "";
    Object.assign(status.style, { transition: "none", opacity: 1 });
    status.textContent = words;
    if (png) {
      picture.src = `data:image/png;base64,${png}`;
      picture.alt = words;
    }
    stage.replaceChildren(...(png ? [picture] : []));
    high = Math.max(high, status.offsetHeight);
    if (high) status.style.minHeight = `${high}px`;
    waiting = false;
    if (moved) ask();
  }

  model.on("change:shown", draw);
  draw();
}

export default { render };
