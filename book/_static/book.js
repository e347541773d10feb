// Formulas are drawn when the page already answers: a few at a time, those in sight first.
const AT_ONCE = 8;

async function drawFormulas() {
  const sight = { true: [], false: [] };
  for (const formula of document.querySelectorAll(".math")) {
    const { top, bottom } = formula.getBoundingClientRect();
    sight[bottom > 0 && top < innerHeight].push(formula);
  }
  const all = [...sight.true, ...sight.false];
  for (let start = 0; start < all.length; start += AT_ONCE) {
    await MathJax.typesetPromise(all.slice(start, start + AT_ONCE));
    await new Promise((goOn) => setTimeout(goOn)); // what the reader did meanwhile comes first
  }
}

addEventListener("DOMContentLoaded", () => {
  const library = document.querySelector("#mathjax");
  if (!library) return; // a page without formulas
  MathJax.startup = { pageReady: drawFormulas };
  const script = document.createElement("script");
  script.src = library.href;
  document.head.append(script);
});

// What scrolls sideways can be reached, and then scrolled, with the keyboard. Before, when all
// formulas are drawn, the cells out of sight are laid out too.
function reachWideParts() {
  const parts = ".math, .bd-article p, .bd-article pre, .pst-scrollable-table-container, .output";
  for (const part of document.querySelectorAll(parts)) {
    const wide = part.scrollWidth > part.clientWidth + 1 && part.clientWidth > 0;
    if (wide && getComputedStyle(part).overflowX === "auto") part.tabIndex = 0;
  }
}
addEventListener("load", () => {
  const formulas = window.MathJax?.startup?.promise ?? Promise.resolve();
  formulas.then(() => {
    document.documentElement.classList.add("drawn");
    reachWideParts();
  });
});
addEventListener("resize", reachWideParts);
