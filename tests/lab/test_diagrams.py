"""What is filled of a cube is exactly what the norms average over; paths are all there."""

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

import normalization as nz
from normbook.lab import diagrams, draw

N, C, L = diagrams.SIZES.values()
NORMS = {
    "batch": ({"N", "L"}, 1, lambda x: nz.batch_norm(x, None, None, training=True)),
    "token": ({"C"}, 1, lambda x: nz.layer_norm(x.mT, C).mT),
    "example": ({"C", "L"}, 1, lambda x: nz.layer_norm(x, (C, L))),
    "instance": ({"L"}, 1, nz.instance_norm),
    "group": ({"C", "L"}, 2, lambda x: nz.group_norm(x, 2)),
}


@pytest.mark.parametrize("name", NORMS)
def test_the_filled_cells_are_those_the_corner_depends_on(name):
    averaged, groups, norm = NORMS[name]
    x = draw(0, N, C, L).requires_grad_()
    norm(x)[0, C - 1, L - 1].backward()
    depends = {tuple(cell) for cell in x.grad.nonzero().tolist()}
    assert diagrams.shared_cells(averaged, groups) == depends


def area(polygon):
    x, y = np.array(polygon).T
    return abs(x @ np.roll(y, 1) - y @ np.roll(x, 1)) / 2


def test_the_visible_faces_cover_the_outline_once():
    faces = diagrams.visible_faces()
    assert len(faces) == C * L + N * C + N * L
    assert sum(n == 0 for (n, _, _), _ in faces) == C * L + C + L
    right, up = diagrams.DEPTH
    expected = C * L + C * N * up + L * N * right
    assert sum(area(face) for _, face in faces) == pytest.approx(expected)


@pytest.mark.parametrize("name", NORMS)
def test_the_picture_fills_the_visible_faces_of_these_cells(name):
    averaged, groups, _ = NORMS[name]
    axis = Figure().add_subplot()
    diagrams.draw_cube(axis, name, averaged, "#123456", groups)
    filled = axis.collections[1]
    cells = diagrams.shared_cells(averaged, groups)
    expected = [face for cell, face in diagrams.visible_faces() if cell in cells]
    drawn = [path.vertices[:-1].tolist() for path in filled.get_paths()]
    assert drawn == [[list(point) for point in face] for face in expected]
    assert to_hex(filled.get_facecolor()[0]) == "#123456"
    bold = {text.get_text() for text in axis.texts if text.get_weight() == "bold"}
    assert bold == averaged


def test_other_axes_and_groups_are_refused():
    axis = Figure().add_subplot()
    with pytest.raises(ValueError, match="averaged"):
        diagrams.draw_cube(axis, "", {"H"}, "#123456")
    with pytest.raises(ValueError, match="groups"):
        diagrams.draw_cube(axis, "", {"C"}, "#123456", 4)


def test_picture_has_a_box_for_every_block_passed_through():
    axis = Figure().add_subplot()
    diagrams.draw_paths(axis, 3, "#0072B2")
    assert len(axis.patches) == 12
    assert "$J_3J_2J_1$" in [text.get_text() for text in axis.texts]
