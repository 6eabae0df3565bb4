// Radio buttons, such as those of a prediction. A group of the browser's own: the arrow keys choose, and the focus stays.
function render({ model, el }) {
  const group = document.createElement("fieldset");
  group.style.cssText = "border: 0; margin: 0; padding: 4px 0; color: var(--jp-ui-font-color1)";
  const question = document.createElement("legend");
  question.innerHTML = model.get("question"); // escaped in Python
  group.append(question);
  const name = `prediction-${Math.random()}`; // one group in the page
  for (const option of model.get("options")) {
    const label = document.createElement("label");
    label.style.cssText = "display: block; padding: 2px 0; cursor: pointer";
    const radio = Object.assign(document.createElement("input"), { type: "radio", name, value: option });
    radio.dataset.lmSuppressShortcuts = "true"; // JupyterLab would take the arrow keys for itself
    radio.checked = option === model.get("choice");
    radio.addEventListener("change", () => {
      model.set("choice", option);
      model.save_changes();
    });
    label.append(radio, " " + option);
    group.append(label);
  }
  el.replaceChildren(group);
}
export default { render };
