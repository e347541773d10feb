/* Filters for the ledger. Without this script the page shows every claim. */
(() => {
  "use strict";

  const STATUSES = ["exact", "measured", "cited", "corrected", "contested", "illustration"];

  function element(tag, properties, ...children) {
    const node = Object.assign(document.createElement(tag), properties);
    node.append(...children);
    return node;
  }

  function statusOf(claim) {
    return STATUSES.find((status) => claim.classList.contains(`status-${status}`));
  }

  function begin() {
    const claims = [...document.querySelectorAll(".ledger .claim")];
    const sections = [...document.querySelectorAll("section")].filter(
      (section) => section.querySelector(":scope > .ledger")
    );
    if (!claims.length || !sections.length) return;

    const title = (section) => section.querySelector("h2").firstChild.textContent.trim();
    const boxes = STATUSES.map((status) => element("input", { type: "checkbox", value: status, checked: true }));
    const labels = boxes.map((box) => {
      const count = claims.filter((claim) => statusOf(claim) === box.value).length;
      return element("label", {}, box, ` ${box.value} (${count})`);
    });
    const chapter = element(
      "select",
      {},
      element("option", { value: "", textContent: "all chapters" }),
      ...sections.map((section) => element("option", { value: section.id, textContent: title(section) }))
    );
    const words = element("input", { type: "search", placeholder: "words", size: 12 });
    const shown = element("p", { className: "ledger-shown" });
    shown.setAttribute("aria-live", "polite");

    function apply() {
      const wanted = new Set(boxes.filter((box) => box.checked).map((box) => box.value));
      const sought = words.value.toLowerCase().split(/\s+/).filter(Boolean);
      let count = 0;
      for (const section of sections) {
        let here = 0;
        for (const claim of section.querySelectorAll(".claim")) {
          const text = claim.textContent.toLowerCase();
          const show =
            wanted.has(statusOf(claim)) &&
            (!chapter.value || chapter.value === section.id) &&
            sought.every((word) => text.includes(word));
          claim.hidden = !show;
          here += show;
        }
        section.hidden = !here;
        count += here;
      }
      shown.textContent = `${count} of ${claims.length} claims`;
    }

    /* A link to a claim must find it, whatever the filters say. */
    function reveal() {
      const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
      const claim = target && target.closest(".claim");
      if (!claim || !claim.hidden) return;
      boxes.forEach((box) => (box.checked = true));
      chapter.value = words.value = "";
      apply();
      target.scrollIntoView();
    }

    const form = element(
      "form",
      { className: "ledger-filter" },
      element("fieldset", {}, element("legend", { textContent: "Status" }), ...labels),
      element("label", {}, "Chapter ", chapter),
      element("label", {}, "Find ", words),
      shown
    );
    form.addEventListener("input", apply);
    form.addEventListener("submit", (event) => event.preventDefault());
    window.addEventListener("hashchange", reveal);
    sections[0].before(form);
    apply();
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", begin);
  else begin();
})();
