// Radio buttons, such as those of a prediction.
function render({ model, el }) {
  const question = node("legend");
  question.innerHTML = model.get("question"); // escaped in Python
  const group = node("fieldset", { style: `border: 0; margin: 0; padding: 4px 0; color: ${INK}` }, question);
  const name = `prediction-${Math.random()}`; // one group in the page
  for (const option of model.get("options")) {
    const radio = node("input", { type: "radio", name, value: option, "data-lm-suppress-shortcuts": "true" });
    radio.checked = option === model.get("choice");
    radio.addEventListener("change", () => {
      model.set("choice", option);
      model.save_changes();
    });
    // what stands between backticks is code, as in the question; all of it is text, and never HTML
    const words = option.split(/`([^`]+)`/).map((words, n) => (n % 2 ? node("code", {}, words) : words));
    group.append(node("label", { style: "display: block; padding: 2px 0; cursor: pointer" }, radio, " ", ...words));
  }
  el.replaceChildren(group);
}

export default { render };
