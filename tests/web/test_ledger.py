"""The ledger's filters in a browser, from a file: as a reader has them."""

SHOWN = ".ledger .claim:visible"
STATUSES = ("exact", "measured", "cited", "corrected", "contested", "illustration")


def open_ledger(page, site, anchor=""):
    page.goto((site / "ledger.html").as_uri() + anchor)
    page.wait_for_selector(".ledger-filter")


def test_a_status_can_be_left_out(page, site):
    open_ledger(page, site)
    every = page.locator(SHOWN).count()
    exact = page.locator(".ledger .status-exact").count()
    page.uncheck(".ledger-filter input[value=exact]")
    assert page.locator(SHOWN).count() == every - exact
    assert page.locator(".ledger .status-exact:visible").count() == 0
    assert page.locator(".ledger-shown").text_content() == f"{every - exact} of {every} claims"


def test_one_chapter_can_be_chosen(page, site):
    open_ledger(page, site)
    page.select_option(".ledger-filter select", label="§2 BatchNorm")
    headings = page.locator("section > h2:visible")
    assert headings.count() == 1
    assert headings.first.text_content().startswith("§2 BatchNorm")
    assert page.locator(SHOWN).count() == page.locator("#batchnorm .claim").count() > 0


def test_words_find_a_claim(page, site):
    open_ledger(page, site)
    page.fill(".ledger-filter input[type=search]", "Gemma QK-Norm")
    texts = [text.lower() for text in page.locator(SHOWN).all_text_contents()]
    assert texts
    assert all("gemma" in text and "qk-norm" in text for text in texts)


def test_a_link_to_a_claim_finds_it_whatever_the_filters_say(page, site):
    open_ledger(page, site)
    for status in STATUSES:
        page.uncheck(f".ledger-filter input[value={status}]")
    assert page.locator(SHOWN).count() == 0
    page.evaluate("location.hash = 'claim-rms-hypothesis'")
    page.wait_for_selector("#claim-rms-hypothesis", state="visible")


def test_without_a_script_every_claim_is_there(page, site):
    context = page.context.browser.new_context(java_script_enabled=False)
    plain = context.new_page()
    open_plain = plain.goto((site / "ledger.html").as_uri())
    assert open_plain is None or open_plain.ok
    assert plain.locator(SHOWN).count() == plain.locator(".ledger .claim").count() > 0
    assert plain.locator(".ledger-filter").count() == 0
    context.close()
