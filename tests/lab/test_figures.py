"""Figures: the digest sees every change of the data, and the bytes do not change by themselves."""

import base64
import io
import subprocess
import sys

import matplotlib.pyplot as plt
import numpy as np
import pytest
from engine_helpers import refused

from normbook.lab import figures


@pytest.fixture(autouse=True)
def close_figures():
    yield
    plt.close("all")


def draw(y=(1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0)):
    figure, axis = figures.subplots()
    axis.plot(range(len(y)), y, label="doubling")
    return figure


@pytest.fixture
def shown(monkeypatch):
    """The outputs that are displayed: data and metadata of each."""
    outputs = []
    monkeypatch.setattr(
        figures, "display", lambda data, raw, metadata=None: outputs.append((data, metadata))
    )
    return outputs


def test_digest_names_counts_and_quotes_a_series():
    text = figures.digest(draw())
    assert "doubling: 7 points (0, 1.00) (2.00, 4.00) (3.00, 8.00)" in text
    assert "(6.00, 64.0)" in text


def test_digest_sees_one_changed_point_wherever_it_is():
    values = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0]
    changed = [[y * 1.02 if i == index else y for i, y in enumerate(values)] for index in range(7)]
    assert len({figures.digest(draw(y)) for y in (values, *changed)}) == 8


def test_digest_does_not_see_rounding():
    values = np.array([1.0, 2.0, 4.0, 8.0])
    assert figures.digest(draw(values)) == figures.digest(draw(values * (1 + 1e-13)))
    residue = np.array([1.0, 3e-17, -2e-17])
    assert figures.digest(draw(residue)) == figures.digest(draw([1.0, 0.0, 1e-18]))


KINDS = {
    "bars": lambda axis, value: axis.bar([0, 1], [value, 2]),
    "heat": lambda axis, value: axis.imshow([[value, 2.0], [3.0, 4.0]]),
    "mesh": lambda axis, value: axis.pcolormesh([[value, 2.0], [3.0, 4.0]]),
    "points": lambda axis, value: axis.scatter([0, 1], [value, 2.0]),
    "filled": lambda axis, value: axis.fill_between([0, 1], [0, 0], [value, 2.0]),
    "errors": lambda axis, value: axis.errorbar([0, 1], [1.0, 2.0], yerr=[value, 0.5]),
    "words": lambda axis, value: axis.text(0, 0, f"{value:.2f}"),
    "vertical": lambda axis, value: axis.axvline(value),
}


@pytest.mark.parametrize("kind", KINDS)
def test_digest_sees_every_kind_of_series(kind):
    digests = []
    for value in (1.0, 1.0, 1.1):
        figure, axis = figures.subplots()
        KINDS[kind](axis, value)
        digests.append(figures.digest(figure))
    assert digests[0] == digests[1] != digests[2]


def test_show_closes_the_figure_and_keeps_every_pixel_in_the_same_fewer_bytes(shown, monkeypatch):
    drawn = io.BytesIO()
    draw().savefig(drawn, format="png", dpi=150)
    plt.close("all")
    figures.show(draw())
    figures.show(draw())
    monkeypatch.setenv("NORMBOOK_PICTURES", "none")
    figures.show(draw())
    assert not plt.get_fignums()
    (first, _), second, (blind, _) = shown
    assert (first, None) == second
    assert first.keys() == {"image/png", "text/plain"}
    assert blind == {"text/plain": first["text/plain"]}
    picture = base64.b64decode(first["image/png"])
    before, after = plt.imread(io.BytesIO(drawn.getvalue())), plt.imread(io.BytesIO(picture))
    assert (before[..., 3] == 1).all()
    assert (before[..., :3] == after).all()
    assert len(picture) < len(drawn.getvalue())


def test_labels_of_lines_that_end_together_do_not_overlap():
    figure, axis = figures.subplots()
    for shift in (0.0, 0.01, 0.02):
        axis.plot([0, 1], [0, 1 + shift], label=f"line {shift}")
    axis.plot([0, 1], [0, 3], label="far")
    figures.label_lines(axis)
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in axis.texts]
    assert len(boxes) == 4
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[i + 1 :])
    assert all(figure.bbox.contains(box.x1 - 1, box.y1 - 1) for box in boxes)


def test_band_draws_mean_and_range():
    _, axis = figures.subplots()
    figures.band(axis, [0, 1], [[1.0, 2.0], [3.0, 6.0]], "pre", "Pre-LN")
    assert axis.get_lines()[0].get_ydata().tolist() == [2.0, 4.0]
    assert axis.collections[0].get_paths()[0].vertices[:, 1].max() == 6.0


def test_a_name_is_a_method_or_a_colour_and_never_both():
    assert figures.colour("pre") == figures.colour("blue") == "#0072B2"
    assert figures.colour("pre") != figures.colour("post")
    assert not figures.METHODS.keys() & figures.COLOURS.keys()
    assert set(figures.METHODS.values()) <= figures.COLOURS.keys()


PROGRAM = """
import sys
from normbook.lab import begin, data, session
assert "matplotlib.pyplot" not in sys.modules
begin()
import matplotlib.pyplot as plt
assert plt.rcParams["lines.linewidth"] == 2.2
from normbook.lab import figures, show
assert show is figures.show
"""


def test_the_style_is_set_when_a_page_begins_and_pyplot_comes_no_sooner():
    answer = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr


def test_logarithmic_axes_show_plain_numbers():
    figure, axis = figures.subplots()
    axis.plot([1, 100], [0.3, 3])
    figures.logarithmic(axis, "x", "y")
    figure.canvas.draw()
    assert axis.get_xscale() == axis.get_yscale() == "log"
    assert {"1", "10", "100"} <= {label.get_text() for label in axis.get_xticklabels()}
    assert {"0.5", "1", "2"} <= {label.get_text() for label in axis.get_yticklabels()}


def test_labelled_axes_keep_their_ticks_inside_the_data():
    _, axis = figures.subplots()
    axis.plot([0, 1], [0, 1], label="line")
    figures.label_lines(axis, room=0.5)
    assert axis.get_xlim()[1] > 1.4
    assert max(axis.get_xticks()) <= 1.06


@pytest.mark.parametrize("across", [False, True])
def test_dots_draw_every_seed_and_the_median(across):
    _, axis = figures.subplots()
    figures.dots(axis, 2, [1.0, 5.0, 3.0], "pre", across)
    points = axis.collections[0].get_offsets()
    x, y = axis.get_lines()[0].get_data()
    if across:
        points, x, y = points[:, ::-1], y, x
    assert np.asarray(points).tolist() == [[2.0, 1.0], [2.0, 5.0], [2.0, 3.0]]
    assert list(y) == [3.0, 3.0]
    assert np.mean(x) == 2


# --- frames ---


def framed(last):
    """A line that ends at `last`; only 3 is drawn lower."""
    figure, axis = figures.subplots(height=3.0 if last == 3 else 4.0)
    axis.plot([0, 1, 2], [1.0, 2.0, last], label="stream")
    axis.plot([0, 2], [0.0, 0.0], label="_unnamed")
    return figure


def test_frames_are_one_output_with_the_chosen_picture_and_the_others_in_its_metadata(shown):
    figures.frames(framed, [4, 0.5], "depth L", chosen=0.5)
    ((data, metadata),) = shown
    assert data["image/png"] == figures.png(framed(0.5))
    found = metadata[figures.FRAMES]
    assert (found["name"], found["first"]) == ("depth L", 1)
    words = [{k: v for k, v in frame.items() if k != "png"} for frame in found["frames"]]
    assert words == [
        {"label": "4", "words": "stream from 1.00 to 4.00"},
        {"label": "0.5", "words": "stream from 1.00 to 0.500"},
    ]
    assert found["frames"][0]["png"] == figures.png(framed(4))
    assert "png" not in found["frames"][1]
    plt.close("all")
    figures.frames(framed, [4, 5, 6], "depth L")
    assert shown[1][1][figures.FRAMES]["first"] == 1
    assert not plt.get_fignums()


def test_the_text_of_frames_has_every_frame_and_sees_a_point_of_a_hidden_one(shown, monkeypatch):
    for last in (6.0, 6.0, 6.1):
        figures.frames(lambda name, last=last: framed({"a": 4.0, "b": last}[name]), "ab", "x", "a")
    monkeypatch.setenv("NORMBOOK_PICTURES", "none")
    figures.frames(lambda name: framed({"a": 4.0, "b": 6.0}[name]), "ab", "x", "a")
    first, same, moved, blind = (data["text/plain"] for data, _ in shown)
    assert first == same == blind != moved
    lines = first.split("\n")
    heads = [line for line in lines if not line.startswith(" ")]
    assert heads == ["x = a", "panel 1", "x = b", "panel 1"]
    assert "(2.00, 6.00)" in first
    assert shown[0][0]["image/png"] == shown[2][0]["image/png"]
    assert (list(shown[3][0]), shown[3][1]) == (["text/plain"], {})


# --- what is refused ---


def frame(values, draw=framed, **options):
    return lambda: figures.frames(draw, values, "depth L", **options)


BAD = [
    (lambda: figures.show([]), TypeError, "figure must be a matplotlib Figure, got list"),
    (
        lambda: figures.band(None, [0, 1], [1.0, 2.0], "pre", "Pre-LN"),
        *(ValueError, r"values must have shape \[seeds, 2\], got \[2\]"),
    ),
    (
        lambda: figures.colour("nothing"),
        *(ValueError, r"name must be a method, .* or a colour, .*'nothing'"),
    ),
    (lambda: figures.logarithmic(None, "z"), ValueError, "names must be 'x' or 'y', got 'z'"),
    (frame([1]), ValueError, r"values must be 2 to 8 different ones, got \['1'\]"),
    (frame(range(4, 13)), ValueError, "values must be 2 to 8 different ones"),
    (frame([1, 2, 1.0]), ValueError, r"different ones, got \['1', '2', '1'\]"),
    (frame([1, 2], chosen=3), ValueError, r"chosen must be one of \['1', '2'\], got 3"),
    (frame([2, 3]), ValueError, "one size, got 6.4 × 3, 6.4 × 4 inches"),
    (
        frame([1, 2], draw=lambda _: []),
        TypeError,
        "draw's result must be a matplotlib Figure, got list",
    ),
]
test_what_no_page_could_show_is_refused = refused(BAD)
