"""Drawings that no measurement stands behind: cubes, wirings and paths.

`draw_cube` shows which values of a batch share one mean and one variance, `draw_wiring` where a
norm stands in a residual block, `draw_paths` the ways through a chain of blocks.
"""

import itertools

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.patches import Circle, FancyBboxPatch, Rectangle

from normbook.lab.figures import COLOURS

INK, EDGE, PAPER = "#333333", "#444444", "#f4f4f4"
SIZES = {"N": 4, "C": 6, "L": 3}  # of a cube: examples, channels, positions
DEPTH = 0.5, 0.36  # where one step along N, into the page, moves a point
HEIGHT = 1.5  # of a branch above the stream
STEP = 1.9  # from one box of a branch to the next

Cell = tuple[int, int, int]  # n, c, l
Face = list[tuple[float, float]]

# --- cubes ---


def draw_cube(axis: Axes, title: str, averaged: set[str], colour: str, groups: int = 1) -> None:
    """Draw a batch [N, C, L] as a cube of cells, seen from the front, above and the right.

    C runs to the right, L upwards, N into the page. Filled with `colour` is one set of cells whose
    mean and variance are taken together, the one that holds the nearest corner; every other set
    is one like it, shifted. The letters of the axes that are averaged over are bold.

    `averaged` names them: {"N", "L"} is BatchNorm, {"C"} LayerNorm over the features of a token,
    {"C", "L"} LayerNorm over an example, {"L"} InstanceNorm. With `groups` an average over "C" is
    over one of that many groups of channels only: {"C", "L"} and 2 is GroupNorm.

    Raises: ValueError on other letters, or groups that do not divide the 6 channels.
    """
    if not averaged <= set(SIZES):
        raise ValueError(f"averaged must be a set of 'N', 'C' and 'L', got {sorted(averaged)}")
    if groups < 1 or SIZES["C"] % groups:
        raise ValueError(f"groups must divide the {SIZES['C']} channels, got {groups}")
    together = shared_cells(averaged, groups)
    faces = visible_faces()
    for filled, fill, label in ((False, PAPER, "apart"), (True, colour, "averaged together")):
        polygons = [face for cell, face in faces if (cell in together) == filled]
        look = {"facecolor": fill, "edgecolor": EDGE, "linewidth": 0.9, "label": label}
        axis.add_collection(PolyCollection(polygons, **look))
    name_edges(axis, averaged)
    right, top = project(SIZES["N"], SIZES["C"], SIZES["L"])
    axis.set(title=title, xlim=(-1.2, right + 0.9), ylim=(-1.1, top + 0.3), aspect="equal")
    axis.axis("off")


def shared_cells(averaged: set[str], groups: int = 1) -> set[Cell]:
    """Return the cells whose statistics are one with those of the nearest corner's cell."""
    corner = {"N": 0, "C": SIZES["C"] - 1, "L": SIZES["L"] - 1}
    ranges = [range(size) if name in averaged else [corner[name]] for name, size in SIZES.items()]
    if "C" in averaged:
        ranges[1] = range(SIZES["C"] - SIZES["C"] // groups, SIZES["C"])
    return set(itertools.product(*ranges))


def visible_faces() -> list[tuple[Cell, Face]]:
    """List the squares that one sees, each with its cell: the front, the top, the right side."""
    examples, channels, positions = SIZES.values()
    cells = itertools.product(range(examples), range(channels), range(positions))
    faces = []
    for n, c, l in cells:  # noqa: E741
        front = [(n, c, l), (n, c + 1, l), (n, c + 1, l + 1), (n, c, l + 1)]
        top = [(n, c, l + 1), (n, c + 1, l + 1), (n + 1, c + 1, l + 1), (n + 1, c, l + 1)]
        right = [(n, c + 1, l), (n + 1, c + 1, l), (n + 1, c + 1, l + 1), (n, c + 1, l + 1)]
        sides = (n == 0, front), (l == positions - 1, top), (c == channels - 1, right)
        for is_seen, corners in sides:
            if is_seen:
                faces.append(((n, c, l), [project(*corner) for corner in corners]))
    return faces


def project(n: float, c: float, l: float) -> tuple[float, float]:  # noqa: E741
    """Return where the point (n, c, l) lies on the page."""
    return c + DEPTH[0] * n, l + DEPTH[1] * n


def name_edges(axis: Axes, averaged: set[str]) -> None:
    """Write the letter of each axis beside its edge, bold where it is averaged over."""
    examples, channels, positions = SIZES.values()
    places = {
        "N": project(examples / 2, channels, 0),
        "C": project(0, channels / 2, 0),
        "L": project(0, 0, positions / 2),
    }
    shifts = {"N": (0.55, -0.4), "C": (0, -0.6), "L": (-0.6, 0)}
    for name, (x, y) in places.items():
        right, up = shifts[name]
        weight = "bold" if name in averaged else "normal"
        axis.text(x + right, y + up, name, ha="center", va="center", weight=weight)


# --- wirings ---


def draw_wiring(axis: Axes, title: str, branch: list[str], stream: list[str], colour: str) -> None:
    """Draw one residual block on `axis`.

    `branch` names the boxes on the branch from left to right, `stream` those on the stream after
    the addition. A box called "norm" is filled with `colour`, so that the eye finds it.
    """
    leave, first = 0.9, 2.2
    join = first + STEP * len(branch) - 0.4
    end = join + 0.9 + STEP * len(stream)
    wire(axis, [(0, 0), (join - 0.25, 0)])
    line(axis, [(leave, 0), (leave, HEIGHT)])
    wire(axis, [(leave, HEIGHT), (join, HEIGHT), (join, 0.27)])
    for index, name in enumerate(branch):
        box(axis, first + STEP * index, HEIGHT, name, colour)
    axis.add_patch(Circle((join, 0), 0.25, facecolor="white", edgecolor=INK, linewidth=1.6))
    axis.text(join, -0.03, "+", ha="center", va="center", fontsize=15)
    wire(axis, [(join + 0.25, 0), (end, 0)])
    for index, name in enumerate(stream):
        box(axis, join + 1.5 + STEP * index, 0, name, colour)
    axis.text(-0.15, 0, "$x_l$", ha="right", va="center", fontsize=14)
    axis.text(end + 0.15, 0, "$x_{l+1}$", ha="left", va="center", fontsize=14)
    limits = {"xlim": (-0.9, max(7.4, end + 0.9)), "ylim": (-0.7, HEIGHT + 0.7)}
    axis.set(title=title, aspect="equal", **limits)
    axis.axis("off")


def line(axis: Axes, points: list[tuple[float, float]]) -> None:
    """Draw straight pieces through `points`."""
    axis.plot(*zip(*points, strict=True), color=INK, linewidth=1.8, solid_capstyle="round")


def wire(axis: Axes, points: list[tuple[float, float]]) -> None:
    """Draw straight pieces through `points`, with an arrow head at the end."""
    line(axis, points)
    arrow = {"arrowstyle": "-|>", "color": INK, "shrinkA": 0, "shrinkB": 0}
    axis.annotate("", points[-1], points[-2], arrowprops=arrow)


def box(axis: Axes, x: float, y: float, name: str, colour: str) -> None:
    """Draw a named box centred at (x, y)."""
    fill, ink = (colour, "white") if name == "norm" else ("white", COLOURS["black"])
    corner, form = (x - 0.78, y - 0.36), "round,pad=0,rounding_size=0.12"
    look = {"facecolor": fill, "edgecolor": INK, "linewidth": 1.6, "zorder": 3}
    axis.add_patch(FancyBboxPatch(corner, 1.56, 0.72, boxstyle=form, **look))
    axis.text(x, y - 0.02, name, color=ink, ha="center", va="center", zorder=4)


# --- paths ---


def draw_paths(axis: Axes, blocks: int, colour: str) -> None:
    """Draw every path through `blocks` blocks, sorted by length: a box where it passes through."""
    chosen = sorted(itertools.product((0, 1), repeat=blocks), key=lambda path: (sum(path), path))
    for row, path in enumerate(chosen):
        axis.plot([0, blocks + 0.5], [-row, -row], color=INK, linewidth=1.6, zorder=1)
        for column in (index for index, through in enumerate(path) if through):
            place = (column + 0.25, -row - 0.32)
            box = Rectangle(place, 0.75, 0.64, facecolor=colour, edgecolor=INK, zorder=2)
            axis.add_patch(box)
            name = f"$F_{column + 1}$"
            axis.text(column + 0.62, -row - 0.03, name, ha="center", va="center", color="white")
        term = "".join(f"J_{index + 1}" for index in reversed(range(blocks)) if path[index])
        axis.text(blocks + 0.65, -row - 0.03, f"${term or 'I'}$", va="center")
    axis.set(xlim=(-0.1, blocks + 1.7), ylim=(0.6 - len(chosen), 0.6))
    axis.axis("off")
