// What scrolls sideways can be reached, and then scrolled, with the keyboard.
function reachWideParts() {
  const parts = ".math, .bd-article p, .bd-article pre, .pst-scrollable-table-container, .output";
  for (const part of document.querySelectorAll(parts)) {
    const wide = part.scrollWidth > part.clientWidth + 1 && part.clientWidth > 0;
    if (wide && getComputedStyle(part).overflowX === "auto") part.tabIndex = 0;
  }
}
addEventListener("load", () => {
  const formulas = window.MathJax?.startup?.promise ?? Promise.resolve();
  formulas.then(reachWideParts);
});
addEventListener("resize", reachWideParts);
