"""Draw which values share one mean and one variance: the cube [N, C, L] of a batch."""

import itertools

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection

SIZES = {"N": 4, "C": 6, "L": 3}  # examples, channels, positions
DEPTH = 0.5, 0.36  # where one step along N, into the page, moves a point
INK = "#444444"
PAPER = "#f4f4f4"

Cell = tuple[int, int, int]  # n, c, l
Face = list[tuple[float, float]]


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
    parts = (
        ("apart", PAPER, [face for cell, face in faces if cell not in together]),
        ("averaged together", colour, [face for cell, face in faces if cell in together]),
    )
    for label, fill, polygons in parts:
        axis.add_collection(
            PolyCollection(polygons, facecolor=fill, edgecolor=INK, linewidth=0.9, label=label)
        )
    name_edges(axis, averaged)
    axis.set_title(title)
    axis.set_xlim(-1.2, SIZES["C"] + SIZES["N"] * DEPTH[0] + 0.9)
    axis.set_ylim(-1.1, SIZES["L"] + SIZES["N"] * DEPTH[1] + 0.3)
    axis.set_aspect("equal")
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
        if n == 0:
            corners = [(n, c, l), (n, c + 1, l), (n, c + 1, l + 1), (n, c, l + 1)]
            faces.append(((n, c, l), [project(*corner) for corner in corners]))
        if l == positions - 1:
            corners = [(n, c, l + 1), (n, c + 1, l + 1), (n + 1, c + 1, l + 1), (n + 1, c, l + 1)]
            faces.append(((n, c, l), [project(*corner) for corner in corners]))
        if c == channels - 1:
            corners = [(n, c + 1, l), (n + 1, c + 1, l), (n + 1, c + 1, l + 1), (n, c + 1, l + 1)]
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
