/* The drill: one card at a time, graded by the reader, repeated after a while.
 *
 * The cards are the page's own list, which is all there is without JavaScript. A grade moves a card
 * between six boxes; a box says after how many days its cards come back. Nothing leaves the browser.
 */
(function () {
  "use strict";

  const KEY = "normbook-drill";
  const DAYS = [0, 1, 3, 7, 16, 35];
  const DAY = 24 * 60 * 60 * 1000;
  const GRADES = [
    { key: "1", name: "Missed" },
    { key: "2", name: "Partly" },
    { key: "3", name: "Knew it" },
  ];

  /* Grades by card, {box, due}. They are read anew before each change: another tab may have graded.
   * Without storage they last as long as the page. */
  const store = {
    kept: true,
    grades: {},
    tried(use) {
      try {
        if (this.kept) use();
      } catch {
        this.kept = false; // refused in some private windows
      }
    },
    read() {
      this.tried(() => (this.grades = sound(localStorage.getItem(KEY))));
      return this.grades;
    },
    write(grades) {
      this.grades = grades;
      this.tried(() => localStorage.setItem(KEY, JSON.stringify(grades)));
    },
    probe() {
      this.tried(() => {
        localStorage.setItem(`${KEY}-probe`, "");
        localStorage.removeItem(`${KEY}-probe`);
      });
    },
  };

  /* What is stored, without what cannot be a grade: others may have written there. */
  function sound(text) {
    let found = {};
    try {
      found = JSON.parse(text) || {};
    } catch {
      return {};
    }
    const fits = ([, kept]) => kept && kept.box in DAYS && Number.isFinite(kept.due);
    return Object.fromEntries(Object.entries(found).filter(fits));
  }

  /* Where a card goes: `grade` is 0, 1 or 2 for missed, partly, knew it. */
  function regrade(old, grade, now) {
    const before = old ? old.box : 0;
    const box = [0, before, Math.min(before + 1, DAYS.length - 1)][grade];
    const days = grade === 1 ? Math.max(1, DAYS[box]) : DAYS[box];
    return { box, due: now + days * DAY };
  }

  /* The cards to ask, in order: due longest, then new ones, then missed and skipped ones. */
  function queue(cards, grades, now, skipped) {
    const graded = (card) => grades[card.number];
    const due = cards.filter((card) => graded(card) && graded(card).due <= now);
    due.sort((a, b) => graded(a).due - graded(b).due);
    const again = due.filter((card) => graded(card).box > 0);
    const missed = due.filter((card) => graded(card).box === 0);
    const fresh = cards.filter((card) => !graded(card));
    const order = [...again, ...fresh, ...missed];
    const later = skipped.filter((card) => order.includes(card));
    return [...order.filter((card) => !later.includes(card)), ...later];
  }

  function element(tag, options = {}, ...children) {
    const { text, on, ...attributes } = options;
    const made = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    if (on) made.addEventListener("click", on);
    made.append(...children);
    return made;
  }

  function readCards(list) {
    return [...list.querySelectorAll(".drill-card")].map((node) => {
      const kind = (name) => [...node.classList].find((c) => c.startsWith(name)) || "";
      const [level, topic] = node.querySelector(".drill-about").textContent.split(" · ");
      return {
        node,
        number: Number(node.id.replace("drill-", "")),
        question: node.querySelector(".drill-question"),
        answer: node.querySelector(".drill-answer"),
        level: { value: kind("level-"), name: level },
        topic: { value: kind("topic-"), name: topic },
      };
    });
  }

  function filter(label, cards, key, changed) {
    const select = element("select", { id: `drill-${key}` });
    select.append(element("option", { value: "", text: "all" }));
    const seen = new Map(cards.map((card) => [card[key].value, card[key].name]));
    seen.forEach((name, value) => select.append(element("option", { value, text: name })));
    select.addEventListener("change", changed);
    const name = element("label", { for: select.id, text: label });
    return { select, both: element("span", {}, name, select) };
  }

  function setUp() {
    const list = document.querySelector(".drill");
    if (!list) return;
    const cards = readCards(list);
    store.probe();
    store.read();
    let current = null;
    let shown = false;
    let skipped = []; // in this sitting, without a grade
    let early = []; // cards that are not due and are asked all the same

    const levels = filter("Level", cards, "level", () => next(false));
    const topics = filter("Topic", cards, "topic", () => next(false));
    const count = element("p", { class: "drill-count" });
    const status = element("p", { class: "drill-status", role: "status", "aria-live": "polite" });
    const reveal = element("button", {
      type: "button",
      class: "drill-reveal",
      "aria-keyshortcuts": "Space",
      text: "Show the answer",
      on: () => show(),
    });
    const skip = element("button", {
      type: "button",
      class: "drill-skip",
      "aria-keyshortcuts": "n",
      text: "Next",
      on: () => pass(),
    });
    const anyway = element("button", {
      type: "button",
      class: "drill-anyway",
      text: "Go through them all the same",
      on: () => {
        early = chosen();
        next(true);
      },
    });
    const marks = GRADES.map(({ key, name }, grade) =>
      element("button", {
        type: "button",
        "aria-keyshortcuts": key,
        text: name,
        on: () => give(grade),
      })
    );
    const group = element("div", { class: "drill-grades", role: "group", "aria-label": "Grade" });
    group.append(...marks);
    const reset = element("button", {
      type: "button",
      class: "drill-reset",
      text: "Start over",
      on: () => {
        if (!window.confirm("Delete your grades and start over?")) return;
        skipped = [];
        early = [];
        store.write({});
        next(true);
      },
    });
    list.before(
      element("div", { class: "drill-filters" }, levels.both, topics.both, reset),
      count
    );
    list.after(element("div", { class: "drill-buttons" }, reveal, group, skip, anyway), status);
    list.classList.add("drill-on");
    cards.forEach((card) => {
      card.question.tabIndex = -1;
      card.answer.tabIndex = -1;
    });

    function chosen() {
      const fits = (pick, one) => !pick.select.value || pick.select.value === one.value;
      return cards.filter((card) => fits(levels, card.level) && fits(topics, card.topic));
    }

    /* Ask the next card. `focus` is false where the reader is at a control and stays there. */
    function next(focus) {
      const now = Date.now();
      const among = chosen();
      early = early.filter((card) => among.includes(card));
      current = [...queue(among, store.grades, now, skipped), ...early][0] || null;
      shown = false;
      draw();
      say(among, now);
      if (focus) (current ? current.question : anyway).focus();
    }

    function pass() {
      skipped = [...skipped.filter((card) => card !== current), current];
      early = early.filter((card) => card !== current);
      next(true);
    }

    function draw() {
      cards.forEach((card) => (card.node.hidden = card !== current));
      cards.forEach((card) => (card.answer.hidden = !(card === current && shown)));
      reveal.hidden = !current || shown;
      group.hidden = !current || !shown;
      skip.hidden = !current || shown;
      anyway.hidden = Boolean(current) || !chosen().length;
    }

    function say(among, now) {
      const grades = store.grades;
      const due = among.filter((card) => !grades[card.number] || grades[card.number].due <= now);
      const known = among.filter((card) => grades[card.number] && grades[card.number].box > 0);
      count.textContent = `${due.length} of ${among.length} due, ${known.length} known so far`;
      if (current) status.textContent = "";
      else if (!among.length) status.textContent = "No question has this level and this topic.";
      else {
        const soon = Math.min(...among.map((card) => grades[card.number].due));
        const days = Math.ceil((soon - now) / DAY);
        status.textContent =
          `Nothing is due. The next card comes back ${days > 1 ? `in ${days} days` : "tomorrow"}.`;
      }
      if (!store.kept) status.textContent += " This browser keeps no grades: they end with this page.";
    }

    function show() {
      if (!current || shown) return;
      shown = true;
      draw();
      current.answer.focus({ preventScroll: true });
    }

    function give(grade) {
      if (!current || !shown) return;
      const grades = store.read();
      const old = grades[current.number];
      const due = !old || old.due <= Date.now();
      if (due || grade === 0) grades[current.number] = regrade(old, grade, Date.now());
      store.write(grades);
      early = early.filter((card) => card !== current);
      skipped = skipped.filter((card) => card !== current);
      next(true);
    }

    document.addEventListener("keydown", (event) => {
      const busy = event.target.closest && event.target.closest("input, select, textarea, button, a");
      if (event.ctrlKey || event.metaKey || event.altKey) return;
      const grade = GRADES.findIndex(({ key }) => key === event.key);
      const typing = busy && busy.matches("input, select, textarea");
      if (grade >= 0 && shown && !typing) give(grade);
      else if (event.key === "n" && current && !typing) pass();
      else if (event.key === " " && current && !shown && !busy) show();
      else return;
      event.preventDefault();
    });

    /* Another tab graded, or deleted all there is (then there is no key). */
    addEventListener("storage", ({ key }) => {
      if (key !== KEY && key !== null) return;
      store.read();
      if (shown) say(chosen(), Date.now());
      else next(false);
    });

    next(false);
  }

  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", setUp);
  else setUp();
})();
