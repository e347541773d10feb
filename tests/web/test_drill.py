"""The drill and the page of the questions, in a browser.

What is kept from one page to the next is served: from a file Chromium now and then gives a page a
storage that is cut off from all others (2 in 100 loads of a bare page that reads it at once).
"""

import json

import pytest

NOW = 1_800_000_000_000  # of the page's clock, in milliseconds
DAY = 24 * 60 * 60 * 1000
CARD = ".drill-card:not([hidden])"
REVEAL, NEXT, ANYWAY = ".drill-reveal", ".drill-skip", ".drill-anyway"
# The contrast of an element's text with what it stands on, by WCAG's formula.
CONTRAST = """(element) => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => [r, g, b]
    .map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  let ground = element;
  while (ground && parts(getComputedStyle(ground).backgroundColor)[3] === 0) {
    ground = ground.parentElement;
  }
  const [a, b] = [getComputedStyle(element).color, getComputedStyle(ground).backgroundColor]
    .map((colour) => luminance(parts(colour)) + 0.05);
  return Math.max(a, b) / Math.min(a, b);
}"""


@pytest.fixture
def drill(page, served):
    """The drill as it opens for the first time, at a fixed time."""
    page.clock.set_fixed_time(NOW / 1000)
    page.goto(f"{served}/drill.html")
    return page


@pytest.fixture
def other(page):
    """Pages with other settings, for example without JavaScript."""
    contexts = []

    def make(**settings):
        contexts.append(page.context.browser.new_context(**settings))
        return contexts[-1].new_page()

    yield make
    for context in contexts:
        context.close()


@pytest.fixture
def questions(page, site):
    return open_page(page, site, "12-interview-questions")


def open_page(page, site, name):
    page.goto((site / f"{name}.html").as_uri())
    return page


def asked(page) -> int:
    """The number of the only card that is shown."""
    cards = page.query_selector_all(CARD)
    assert len(cards) == 1
    return int(cards[0].get_attribute("id").removeprefix("drill-"))


def stored(page) -> dict:
    return json.loads(page.evaluate("localStorage.getItem('normbook-drill') ?? '{}'"))


def give(page, key):
    page.keyboard.press("Space")
    page.keyboard.press(key)


def choose(page, label, option):
    page.get_by_label(label, exact=True).select_option(label=option)


# --- the drill ---


def test_one_card_is_asked_and_its_answer_is_hidden(drill):
    assert asked(drill) == 1
    assert not drill.is_visible(f"{CARD} .drill-answer")
    assert not drill.is_visible(".drill-grades")
    drill.click(REVEAL)
    assert drill.is_visible(f"{CARD} .drill-answer")
    assert not drill.is_visible(REVEAL)
    drill.get_by_role("button", name="Knew it").click()
    assert asked(drill) == 2
    assert not drill.is_visible(f"{CARD} .drill-answer")


def test_filters_leave_what_fits(drill):
    choose(drill, "Level", "Research")
    assert asked(drill) == 21
    assert drill.text_content(".drill-count").startswith("5 of 5 due")
    choose(drill, "Topic", "Without norms")
    assert asked(drill) == 23
    choose(drill, "Level", "Must know")
    assert drill.query_selector_all(CARD) == []
    assert "No question has" in drill.text_content(".drill-status")


def test_keys_reveal_skip_and_grade_into_boxes(drill):
    drill.keyboard.press("3")  # nothing is revealed, so there is nothing to grade
    assert stored(drill) == {}
    for key in "123":
        give(drill, key)
    boxes = stored(drill)
    assert boxes["1"] == {"box": 0, "due": NOW}
    assert boxes["2"] == {"box": 0, "due": NOW + DAY}
    assert boxes["3"] == {"box": 1, "due": NOW + DAY}
    drill.keyboard.press("n")
    drill.keyboard.press("n")
    assert asked(drill) == 6  # a skipped card comes back later, not next
    assert stored(drill) == boxes


def test_a_reload_keeps_the_grades_and_time_brings_cards_back(drill):
    for _ in range(3):
        give(drill, "3")
    drill.reload()
    assert asked(drill) == 4
    assert drill.text_content(".drill-count") == "22 of 25 due, 3 known so far"
    drill.clock.set_fixed_time((NOW + DAY) / 1000)
    drill.reload()
    assert asked(drill) == 1
    give(drill, "3")
    assert stored(drill)["1"] == {"box": 2, "due": NOW + 4 * DAY}


def test_two_tabs_keep_each_others_grades(drill):
    second = drill.context.new_page()
    second.clock.set_fixed_time(NOW / 1000)
    second.goto(drill.url)
    second.keyboard.press("Space")
    give(drill, "3")
    second.wait_for_function("localStorage.getItem('normbook-drill') !== null")
    assert asked(second) == 1  # its answer is being read
    second.keyboard.press("n")
    give(second, "3")
    assert sorted(stored(second)) == ["1", "2"]
    counted = "document.querySelector('.drill-count').textContent.includes('2 known so far')"
    drill.wait_for_function(counted)
    assert asked(drill) == 3


def test_a_missed_card_comes_back_and_what_is_not_due_can_be_asked_all_the_same(drill):
    choose(drill, "Topic", "Width and depth")
    drill.evaluate("document.activeElement.blur()")
    for number, key in ((22, "1"), (25, "3"), (22, "3")):
        assert asked(drill) == number
        give(drill, key)
    assert drill.query_selector_all(CARD) == []
    assert "The next card comes back tomorrow." in drill.text_content(".drill-status")
    before = stored(drill)
    drill.click(ANYWAY)
    assert asked(drill) == 22
    give(drill, "3")  # too early to count
    assert stored(drill) == before
    assert asked(drill) == 25
    give(drill, "1")  # a miss counts
    assert stored(drill)["25"]["box"] == 0


def test_start_over_asks_first(drill):
    give(drill, "3")
    for answer, left in (("dismiss", ["1"]), ("accept", [])):
        drill.once("dialog", lambda dialog, answer=answer: getattr(dialog, answer)())
        drill.get_by_role("button", name="Start over").click()
        assert list(stored(drill)) == left
    assert asked(drill) == 1


@pytest.mark.parametrize("rubbish", ["{", "[]", "7", '{"1": 3, "2": {"box": 9, "due": 1}}'])
def test_rubbish_in_the_storage_is_left_out(page, site, rubbish):
    page.add_init_script(f"localStorage.setItem('normbook-drill', {json.dumps(rubbish)})")
    open_page(page, site, "drill")
    assert asked(page) == 1
    assert page.text_content(".drill-count").startswith("25 of 25 due")


def test_without_storage_the_drill_works_and_says_so(page, site):
    refuse = "Object.defineProperty(window, 'localStorage', {get() { throw new Error('no'); }})"
    page.add_init_script(refuse)
    open_page(page, site, "drill")
    assert "keeps no grades" in page.text_content(".drill-status")
    give(page, "3")
    assert asked(page) == 2
    assert page.text_content(".drill-count") == "24 of 25 due, 1 known so far"


def test_without_javascript_it_is_a_plain_list(other, site):
    page = open_page(other(java_script_enabled=False), site, "drill")
    for part in (".drill-question", ".drill-answer"):
        assert page.locator(f".drill-card {part}:visible").count() == 25
    assert page.locator(REVEAL).count() == 0


def test_formulas_are_drawn_in_cards_that_were_hidden(drill):
    for _ in range(13):
        drill.keyboard.press("n")
    assert asked(drill) == 14
    drill.keyboard.press("Space")
    drill.wait_for_selector(f"{CARD} .drill-answer mjx-container")
    boxes = [one.bounding_box() for one in drill.query_selector_all(f"{CARD} mjx-container")]
    assert len(boxes) >= 8
    assert all(box["width"] > 3 and box["height"] > 3 for box in boxes)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_fingers_reach_and_eyes_read(other, site, scheme):
    size = {"width": 390, "height": 844}
    page = other(viewport=size, has_touch=True, is_mobile=True, color_scheme=scheme)
    open_page(page, site, "drill")
    page.tap(REVEAL)
    for button in page.query_selector_all(".drill-buttons button, .drill-filters select"):
        box = button.bounding_box()
        assert box is None or (box["height"] >= 44 and button.evaluate(CONTRAST) >= 4.5)
    for name in (".drill-about", ".drill-question strong", ".drill-answer li p", ".drill-answer a"):
        assert page.query_selector(f"{CARD} {name}").evaluate(CONTRAST) >= 4.5, name
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.tap(".drill-grades button >> nth=2")
    assert asked(page) == 2


def test_those_who_listen_are_led(drill):
    focus = "document.activeElement.className"
    assert drill.get_attribute(".drill-status", "aria-live") == "polite"
    drill.keyboard.press("Space")
    assert "drill-answer" in drill.evaluate(focus)
    drill.keyboard.press("3")
    assert "drill-question" in drill.evaluate(focus)
    assert drill.get_by_role("group", name="Grade").count() == 0  # hidden from them as well
    for name in ("Level", "Topic"):
        assert drill.get_by_label(name, exact=True).is_visible()
    for _ in range(12):
        drill.keyboard.press("Tab")
        if drill.evaluate(focus) == "drill-reveal":
            break
    drill.keyboard.press("Enter")
    assert drill.is_visible(f"{CARD} .drill-answer")


# --- the page of the questions ---


def open_ones(page) -> int:
    return page.locator("details.question[open]").count()


def test_answers_open_one_by_one_all_at_once_and_by_a_link(page, site, questions):
    assert open_ones(questions) == 0
    questions.locator("details.question summary").nth(3).click()
    assert open_ones(questions) == 1
    for name, count in (("Open all answers", 25), ("Close all answers", 0)):
        questions.get_by_role("button", name=name).click()
        assert open_ones(questions) == count
    page.goto("about:blank")
    page.goto((site / "12-interview-questions.html").as_uri() + "#question-14")
    assert page.locator("details.question[open]").get_attribute("id") == "question-14"


def test_paper_shows_every_answer(questions, other, site):
    quiet = open_page(other(java_script_enabled=False), site, "12-interview-questions")
    answer = quiet.locator("details.question >> nth=9 >> .sd-summary-content")
    assert not answer.is_visible()
    quiet.emulate_media(media="print")
    assert answer.is_visible()
    assert answer.bounding_box()["height"] > 100
    for event, count in (("beforeprint", 25), ("afterprint", 0)):
        questions.evaluate(f"window.dispatchEvent(new Event('{event}'))")
        assert open_ones(questions) == count


@pytest.mark.parametrize("name", ["drill", "12-interview-questions"])
def test_the_deck_is_offered_and_nothing_is_asked_outside(page, site, name):
    link = open_page(page, site, name).get_by_role("link", name="Anki deck").first
    assert (site / link.get_attribute("href")).stat().st_size > 10_000
    assert not [trouble for trouble in page.troubles if "asks outside" in trouble]
