"""One style for every figure, and `show`, which puts a figure and a digest of its data on the page.

The digest is text: nbval compares it, so a figure cannot change without a test seeing it. `frames`
shows one figure at several values of a parameter.
"""

import base64
import io
import itertools
import os
import zlib
from collections.abc import Callable, Sequence

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
from IPython.display import display
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection, QuadMesh
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from PIL import Image

from normbook.lab.claims import significant

FRAMES = "application/vnd.normbook.frames+json"
MOST = 8  # frames: they weigh as much as pictures
WIDTH = 6.4  # inches: a column of text on a screen, and still legible at 360 pixels

# Okabe and Ito's colours, which stay apart for colour-blind readers.
COLOURS = {
    "black": "#000000",
    "orange": "#E69F00",
    "sky": "#56B4E9",
    "green": "#009E73",
    "yellow": "#F0E442",
    "blue": "#0072B2",
    "red": "#D55E00",
    "pink": "#CC79A7",
    "grey": "#777777",
}
# The same method has the same colour in the whole book. What is no method is drawn in a colour.
METHODS_BY_COLOUR = {
    "black": ["theory"],
    "orange": ["norm", "output", "layerscale", "derf", "group", "sp"],
    "sky": ["residual", "unscaled", "xavier", "stem"],
    "green": ["both", "sandwich", "scaled", "fixup", "rms", "mup"],
    "blue": ["pre", "layer", "hidden"],
    "red": ["post", "rezero", "skipinit", "dyt", "kaiming", "logits"],
    "pink": ["deepnorm", "batch", "ntk"],
    "grey": ["naive", "none"],
}
METHODS = {name: shade for shade, names in METHODS_BY_COLOUR.items() for name in names}

STYLE = {
    "figure.figsize": (WIDTH, 4.2),
    "figure.dpi": 100,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "axes.facecolor": "white",
    "axes.edgecolor": "#444444",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.titlesize": 13,
    "axes.titlelocation": "left",
    "axes.labelsize": 13,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.8,
    "font.family": "DejaVu Sans",
    "font.size": 12.5,
    "lines.linewidth": 2.2,
    "lines.markersize": 6,
    "legend.frameon": False,
    "xtick.labelsize": 12,
    "ytick.labelsize": 12,
    "axes.prop_cycle": matplotlib.cycler(color=[c for n, c in COLOURS.items() if n != "yellow"]),
}


def use_style() -> None:
    """Draw in the book's style from now on; `begin` asks for it."""
    matplotlib.rcParams.update(STYLE)


def colour(name: str) -> str:
    """Return the hex code of a colour ("green"), or of a method's colour ("pre", "theory", …)."""
    shade = METHODS.get(name, name)
    if shade not in COLOURS:
        known = f"a method, one of {sorted(METHODS)}, or a colour, one of {sorted(COLOURS)}"
        raise ValueError(f"name must be {known}, got {name!r}")
    return COLOURS[shade]


def subplots(rows: int = 1, columns: int = 1, height: float = 4.0, **options):
    """Return `(figure, axes)` as pyplot does, of the book's width and `height` inches a row."""
    return plt.subplots(
        rows, columns, figsize=(WIDTH, height * rows), layout="constrained", **options
    )


def theory(axis: Axes, x, y, label: str) -> None:
    """Draw what a formula predicts: a thin dashed line, named at its end by `label_lines`."""
    axis.plot(x, y, color=colour("theory"), linewidth=1.2, linestyle=(0, (5, 3)), label=label)


def band(
    axis: Axes, x, values, tint: str, label: str, marker: str = "o", log: bool = False
) -> None:
    """Draw the mean of `values` [seeds, points] over `x`, and the range of the seeds as a band.

    `tint` is a method or a colour, as in `colour`. With `log` it is the geometric mean: right for
    ratios on a logarithmic axis.
    """
    values = np.asarray(values, dtype=float)
    if values.ndim != 2 or values.shape[1] != len(x):
        raise ValueError(f"values must have shape [seeds, {len(x)}], got {list(values.shape)}")
    axis.fill_between(x, values.min(0), values.max(0), color=colour(tint), alpha=0.18, linewidth=0)
    middle = np.exp(np.log(values).mean(0)) if log else values.mean(0)
    axis.plot(x, middle, color=colour(tint), marker=marker, label=label)


def dots(axis: Axes, place: float, values, tint: str, across: bool = False) -> None:
    """Draw one dot a seed at `place` on the x axis, and their median as a bar.

    `tint` is a method or a colour, as in `colour`. With `across` the values lie along the x axis,
    and `place` is a row.
    """
    values = np.asarray(values, dtype=float)
    middle, beside = np.median(values), [place - 0.13, place + 0.13]
    points, bar = ([place] * len(values), values), (beside, [middle, middle])
    if across:
        points, bar = points[::-1], bar[::-1]
    axis.scatter(*points, s=28, color=colour(tint), alpha=0.6, linewidths=0)
    axis.plot(*bar, color=colour(tint), linewidth=3)


def logarithmic(axis: Axes, *names: str) -> None:
    """Make the axes "x" and "y", or one of them, logarithmic, with plain numbers: 0.2, 0.5, 1."""
    for name in names:
        if name not in ("x", "y"):
            raise ValueError(f"names must be 'x' or 'y', got {name!r}")
        getattr(axis, f"set_{name}scale")("log")
        scale = getattr(axis, f"{name}axis")
        low, high = scale.get_data_interval()
        marks = (1, 2, 5) if high < 30 * low else (1,)
        scale.set_major_locator(LogLocator(subs=marks))
        scale.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        scale.set_minor_formatter(NullFormatter())


def label_lines(axis: Axes, room: float = 0.24) -> None:
    """Name each labelled line at its right end, in its colour, pushed apart where they would meet.

    `room` is the share of the axis' width that the names need on the right.
    """
    figure = axis.figure
    lines = [line for line in axis.get_lines() if not line.get_label().startswith("_")]
    left, right = axis.transData.transform([(v, 1) for v in axis.get_xlim()])[:, 0]
    end = axis.transData.inverted().transform((right + (right - left) * room, 0))[0]
    start, last = axis.get_xlim()
    axis.set_xticks([tick for tick in axis.get_xticks() if start <= tick <= last])
    axis.set_xticks([tick for tick in axis.get_xticks(minor=True) if tick <= last], minor=True)
    axis.set_xlim(start, end)
    figure.canvas.draw()
    points = []
    for line in lines:
        x, y = (np.asarray(values, dtype=float) for values in line.get_data())
        last = np.flatnonzero(np.isfinite(x) & np.isfinite(y))[-1]
        points.append([*axis.transData.transform((x[last], y[last])), line])
    height = 16 * figure.dpi / 72
    points.sort(key=lambda point: point[1])
    for below, above in itertools.pairwise(points):
        above[1] = max(above[1], below[1] + height)
    top = axis.transAxes.transform((0, 1))[1]
    for index, point in reversed(list(enumerate(points))):
        point[1] = min(point[1], top)
        top = point[1] - height if index else top
    for x, y, line in points:
        axis.annotate(
            line.get_label(),
            axis.transData.inverted().transform((x + 6 * figure.dpi / 72, y)),
            color=line.get_color(),
            va="center",
            annotation_clip=False,
        )


def show(figure: Figure) -> None:
    """Put `figure` on the page: the picture for readers, its digest for the tests.

    The same figure gives the same bytes on the same machine. The figure is closed afterwards. The
    tests compare the digest alone, and draw no picture (`NORMBOOK_PICTURES=none`).
    """
    check_figure("figure", figure)
    picture = {"image/png": png(figure)} if are_wanted() else {}
    text = digest(figure)
    plt.close(figure)
    display({**picture, "text/plain": text}, raw=True)


def frames(draw: Callable[..., Figure], values: Sequence, name: str, chosen: object = None) -> None:
    """Put one figure on the page at several values of a parameter, with a slider under it.

    One output shows the frame of `chosen`; a notebook and paper show no other. Its text holds the
    digests of all frames, so the tests see every point of each. Its metadata holds the other
    frames as `FRAMES`, for the page alone: nbval leaves metadata out, as it leaves out pictures.

    Args:
        draw: gives the matplotlib Figure of one value; all of the same size, or the page jumps.
        values: 2 to 8 numbers or strings, in the order of the slider.
        name: what they are values of, as the slider says it: "depth L".
        chosen: the value that is shown first; by default the middle one.

    Raises: ValueError for too few, too many or equal values, a `chosen` that is none of them, or
        figures of several sizes; TypeError where `draw` gives something else than a figure.
    """
    labels = [value if isinstance(value, str) else f"{value:g}" for value in values]
    if not 2 <= len(set(labels)) == len(labels) <= MOST:
        raise ValueError(f"values must be 2 to {MOST} different ones, got {labels}")
    if chosen is not None and chosen not in values:
        raise ValueError(f"chosen must be one of {labels}, got {chosen!r}")
    first = len(labels) // 2 if chosen is None else list(values).index(chosen)
    drawn = [draw(value) for value in values]
    for figure in drawn:
        check_figure("draw's result", figure)
    sizes = sorted({"{:g} × {:g}".format(*figure.get_size_inches()) for figure in drawn})
    if len(sizes) > 1:
        raise ValueError(f"draw must give figures of one size, got {', '.join(sizes)} inches")
    pairs = list(zip(labels, drawn, strict=True))
    text = "\n".join(f"{name} = {label}\n{digest(figure)}" for label, figure in pairs)
    data, metadata = {"text/plain": text}, {}
    if are_wanted():
        found = [{"label": label, "words": in_words(f), "png": png(f)} for label, f in pairs]
        data = {"image/png": found[first].pop("png"), **data}  # it is the output's own
        metadata = {FRAMES: {"name": name, "first": first, "frames": found}}
    for figure in drawn:
        plt.close(figure)
    display(data, metadata=metadata, raw=True)


def check_figure(name: str, value: object) -> None:
    """Raise unless `value` is a figure."""
    if not isinstance(value, Figure):
        raise TypeError(f"{name} must be a matplotlib Figure, got {type(value).__name__}")


def in_words(figure: Figure) -> str:
    """Return where the named lines of a figure begin and end, for those who do not see it."""
    words = []
    for axis in figure.axes:
        for line in axis.get_lines():
            values = np.asarray(line.get_ydata(), dtype=float)
            values = clean(values[np.isfinite(values)])
            if len(values) and not line.get_label().startswith("_"):
                begin, end = significant(values[0]), significant(values[-1])
                words.append(f"{name_of(line)} from {begin} to {end}")
    return "; ".join(words)


def are_wanted() -> bool:
    """Whether pictures are drawn: the tests that compare digests do without."""
    return os.environ.get("NORMBOOK_PICTURES") != "none"


def png(figure: Figure) -> str:
    """Return a figure's picture as a notebook holds it."""
    drawn, picture = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=150, metadata={"Software": None})
    # the paper is opaque: without its alpha channel the same picture is an eighth smaller
    Image.open(drawn).convert("RGB").save(picture, "png", optimize=True)
    return base64.b64encode(picture.getvalue()).decode("ascii")


def digest(figure: Figure) -> str:
    """Describe every plotted series in a line: name, count, some values, a sum over all of them."""
    lines = []
    for number, axis in enumerate(figure.axes, 1):
        title = axis.get_title(loc="left") or axis.get_title() or axis.get_ylabel()
        lines.append(f"panel {number}: {' '.join(title.split())}".rstrip(": "))
        lines += [f"  {describe(name, data)}" for name, data in series(axis)]
        words = [text.get_text() for text in axis.texts if text.get_text()]
        if words:
            lines.append(f"  text: {len(words)} pieces #{checksum(words)}")
    return "\n".join(lines)


def series(axis: Axes):
    """Yield `(name, values [points, coordinates])` for all that is drawn on an axis."""
    for line in axis.get_lines():
        yield name_of(line), np.column_stack(line.get_data()).astype(float)
    for collection in axis.collections:
        if isinstance(collection, QuadMesh):
            yield name_of(collection), np.ma.filled(collection.get_array(), np.nan).reshape(-1, 1)
        elif isinstance(collection, PathCollection):
            yield name_of(collection), np.ma.filled(collection.get_offsets(), np.nan)
        else:
            paths = [path.vertices for path in collection.get_paths()]
            yield name_of(collection), np.concatenate(paths or [np.empty((0, 2))])
    for image in axis.images:
        yield name_of(image), np.ma.filled(image.get_array(), np.nan).reshape(-1, 1)
    shapes = [patch.get_extents().extents for patch in map(untransformed, axis.patches)]
    if shapes:
        yield "shapes", np.asarray(shapes)


def untransformed(patch):
    """Return the patch's outline in data coordinates, so that its digest knows no pixels."""
    return patch.get_patch_transform().transform_path(patch.get_path())


def name_of(artist) -> str:
    """Return an artist's label, or its kind where it has none."""
    label = str(artist.get_label())
    return type(artist).__name__ if label.startswith("_") or not label else label


def describe(name: str, data: np.ndarray) -> str:
    """Return a series' name, size, five of its points and a checksum of all of them."""
    data = clean(np.asarray(data, dtype=float))
    picks = sorted({round(share * (len(data) - 1)) for share in (0, 0.25, 0.5, 0.75, 1)})
    points = [", ".join(map(significant, data[index])) for index in picks if len(data)]
    shown = " ".join(f"({point})" for point in points)
    total = checksum(significant(value) for value in data.flatten())
    return f"{' '.join(name.split())}: {len(data)} points {shown} #{total}"


def clean(data: np.ndarray) -> np.ndarray:
    """Set to 0 what is rounding residue beside the largest value of its coordinate."""
    finite = np.where(np.isfinite(data), np.abs(data), 0)
    scale = finite.max(axis=0, initial=0)
    return np.where(np.isfinite(data) & (np.abs(data) < 1e-9 * scale), 0.0, data)


def checksum(words) -> str:
    """Return eight hexadecimal digits that change when any of the words does."""
    return f"{zlib.crc32(' '.join(words).encode()):08x}"
