// Labelled lists to choose from, in rows. The browser's own: each has a name, the arrow keys choose, the focus stays.
function render({ model, el }) {
  const rows = document.createElement("div");
  rows.style.cssText = "display: flex; flex-wrap: wrap; gap: 6px 24px; padding: 4px 0; color: var(--jp-ui-font-color1)";
  for (const [name, options] of Object.entries(model.get("options"))) {
    const label = document.createElement("label");
    const list = document.createElement("select");
    list.dataset.lmSuppressShortcuts = "true"; // JupyterLab would take the arrow keys for itself
    list.style.cssText =
      "margin-left: 8px; color: var(--jp-ui-font-color1); background: var(--jp-layout-color1); border: 1px solid var(--jp-border-color1)";
    options.forEach((option, place) => list.add(new Option(option, place)));
    list.value = model.get("chosen")[name];
    list.addEventListener("change", () => {
      model.set("chosen", { ...model.get("chosen"), [name]: Number(list.value) });
      model.save_changes();
    });
    label.style.whiteSpace = "nowrap";
    label.append(name, list);
    rows.append(label);
  }
  el.append(rows);
}
export default { render };
