// An explorable figure: its slider exchanges recorded pictures. They are fetched at its first touch.
addEventListener("DOMContentLoaded", () => {
  for (const box of document.querySelectorAll(".frames")) {
    const [label, slider, value] = box.querySelectorAll("label, input, span");
    const frames = [...box.querySelector("template").content.children];
    const sources = frames.map((frame) => frame.getAttribute("src"));
    const shown = box.closest("figure").querySelector("img");
    const offered = box.closest("figure").querySelector("a[download]");
    const fetchAll = () => sources.forEach((source) => (new Image().src = source));
    slider.addEventListener("pointerdown", fetchAll, { once: true });
    slider.addEventListener("focus", fetchAll, { once: true });
    slider.addEventListener("input", () => {
      shown.src = sources[slider.value];
      shown.alt = frames[slider.value].alt;
      offered.href = shown.src.replace(/webp$/, "png");
      value.textContent = slider.list.options[slider.value].label;
      slider.setAttribute("aria-valuetext", value.textContent);
    });
    label.hidden = false;
  }
});
