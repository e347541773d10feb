"""Draw where a norm stands: the residual stream from left to right, the branch above it."""

from matplotlib.axes import Axes
from matplotlib.patches import Circle, FancyBboxPatch

from normbook.lab.figures import COLOURS

HEIGHT = 1.5  # of the branch above the stream
STEP = 1.9  # from one box to the next
INK = "#333333"


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
    axis.set_title(title)
    axis.set_xlim(-0.9, max(7.4, end + 0.9))
    axis.set_ylim(-0.7, HEIGHT + 0.7)
    axis.set_aspect("equal")
    axis.axis("off")


def line(axis: Axes, points: list[tuple[float, float]]) -> None:
    """Draw straight pieces through `points`."""
    axis.plot(*zip(*points, strict=True), color=INK, linewidth=1.8, solid_capstyle="round")


def wire(axis: Axes, points: list[tuple[float, float]]) -> None:
    """Draw straight pieces through `points`, with an arrow head at the end."""
    line(axis, points)
    axis.annotate(
        "",
        points[-1],
        points[-2],
        arrowprops={"arrowstyle": "-|>", "color": INK, "shrinkA": 0, "shrinkB": 0},
    )


def box(axis: Axes, x: float, y: float, name: str, colour: str) -> None:
    """Draw a named box centred at (x, y)."""
    is_norm = name == "norm"
    shape = FancyBboxPatch(
        (x - 0.78, y - 0.36),
        1.56,
        0.72,
        boxstyle="round,pad=0,rounding_size=0.12",
        facecolor=colour if is_norm else "white",
        edgecolor=INK,
        linewidth=1.6,
        zorder=3,
    )
    axis.add_patch(shape)
    ink = "white" if is_norm else COLOURS["black"]
    axis.text(x, y - 0.02, name, color=ink, ha="center", va="center", zorder=4)
