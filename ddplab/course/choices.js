// Labelled lists to choose from, in rows.
function render({ model, el }) {
  const bar = node("div", { style: `${BAR}; padding: 4px 0` });
  el.replaceChildren(bar);
  for (const [name, options] of Object.entries(model.get("options"))) {
    const list = control(bar, name, "select");
    options.forEach((option, place) => list.add(new Option(option, place)));
    list.value = model.get("chosen")[name];
    list.addEventListener("change", () => {
      model.set("chosen", { ...model.get("chosen"), [name]: Number(list.value) });
      model.save_changes();
    });
  }
}

export default { render };
