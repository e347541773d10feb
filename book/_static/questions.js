/* The page of the questions: open and close all answers, follow a link into one, print all open. */
(function () {
  "use strict";

  function setUp() {
    const all = [...document.querySelectorAll("details.question")];
    if (!all.length) return;

    const button = document.createElement("button");
    button.type = "button";
    button.className = "questions-all";
    all[0].closest("section").before(button);

    const name = () => {
      button.textContent = all.every((one) => one.open) ? "Close all answers" : "Open all answers";
    };
    button.addEventListener("click", () => {
      const open = !all.every((one) => one.open);
      all.forEach((one) => (one.open = open));
      name();
    });
    all.forEach((one) => one.addEventListener("toggle", name));
    name();

    // A link to a question opens it.
    const follow = () => {
      const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
      if (target && target.matches("details.question")) {
        target.open = true;
        target.scrollIntoView();
      }
    };
    window.addEventListener("hashchange", follow);
    follow();

    // Paper shows every answer; afterwards the page is as it was.
    let closed = [];
    window.addEventListener("beforeprint", () => {
      closed = all.filter((one) => !one.open);
      closed.forEach((one) => (one.open = true));
    });
    window.addEventListener("afterprint", () => closed.forEach((one) => (one.open = false)));
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", setUp);
  else setUp();
})();
