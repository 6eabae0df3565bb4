// The waiting room: the kernel draws its board, whose buttons ask and name; the focus goes on to what is left of the job.
function render({ model, el }) {
  const { bar, status, stage } = page(el);
  const act = (...what) => {
    model.set("asked", [model.get("asked")[0] + 1, ...what]);
    model.save_changes();
  };
  let pressed = null; // the job; none before the first, and when a room has just been opened
  const next = button(bar, "Next room", () => {
    pressed = null;
    act(null);
  });
  bar.append(status);
  status.style.cssText = "flex: 1; min-height: 2.8em; display: flex; align-items: center"; // two lines: the page stays, whatever is said
  const list = (job) => stage.querySelector(`select[data-job="${job}"]`);
  stage.addEventListener("click", ({ target }) => {
    if (target.tagName !== "BUTTON") return;
    const { job, rank } = target.dataset;
    pressed = job;
    act(Number(job), rank ?? list(job).value);
  });

  function draw() {
    const { board, score } = model.get("shown");
    const chosen = [...stage.querySelectorAll("select")].map((it) => [it.dataset.job, it.value]);
    const inside = stage.contains(document.activeElement);
    stage.innerHTML = board; // made in Python of its own words
    for (const it of stage.querySelectorAll("button, select")) {
      it.style.cssText = `font-size: 12px; padding: 0 6px; max-width: 130px; ${LOOK}`;
      it.setAttribute("data-lm-suppress-shortcuts", "true");
    }
    for (const [job, value] of pressed === null ? [] : chosen) if (list(job)) list(job).value = value;
    if (inside) (list(pressed) ?? stage.querySelector("select") ?? next).focus();
    status.textContent = score;
  }

  model.on("change:shown", draw);
  draw();
}

export default { render };
