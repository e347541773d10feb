"""An explorable figure: the frames that a cell recorded, and the slider that exchanges them."""

import base64
import hashlib
import html
from pathlib import Path

from docutils import nodes
from nbformat import NotebookNode
from sphinx.transforms import SphinxTransform

from normbook.press.files import write_if_new
from normbook.press.sphinx.state import recorded_cells

FRAMES = "application/vnd.normbook.frames+json"  # as normbook.lab.figures writes it
PNG = "image/png"
# The script shows the slider and takes the pictures out of the template, in which none is fetched.
BEFORE = """<div class="frames"><label hidden>{name}
<input type="range" list="{list}" max="{last}" value="{first}" aria-valuetext="{label}"
 autocomplete="off" /><span aria-hidden="true">{label}</span></label>
<datalist id="{list}">{options}</datalist><template>"""
AFTER = "</template></div>\n"


class Frames(nodes.General, nodes.Element):
    """A slider: `name`, `labels`, the index of the `first` frame; below it an image a frame."""


class OfferFrames(SphinxTransform):
    """Put a slider under each picture that was recorded with frames."""

    default_priority = 500

    def apply(self, **unused) -> None:
        """Find the pictures of each cell that makes figures, in the order in which it gave them."""
        for node, cell in recorded_cells(self):
            outputs = [output for output in cell.outputs if PNG in output.get("data", {})]
            images = [i for part in node.findall(nodes.figure) for i in part.findall(nodes.image)]
            for image, output in zip(images, outputs, strict=False):
                if FRAMES in output.metadata:
                    self.offer(image, output)

    def offer(self, image: nodes.image, output: NotebookNode) -> None:
        """Put an output's slider behind its image, whose alt text is the first frame's too."""
        found, folder = output.metadata[FRAMES], Path(image["uri"]).parent
        slider = Frames(name=found.name, first=found.first)
        slider["labels"] = [frame.label for frame in found.frames]
        for index, frame in enumerate(found.frames):
            words = f"{found.name} = {frame.label}: {frame.words}".removesuffix(": ")
            alt = image.get("alt", words) if index == found.first else words
            uri = self.write(frame.get("png", output.data[PNG]), folder)
            slider += nodes.image(uri=uri, alt=alt)
        image.parent.insert(image.parent.index(image) + 1, slider)

    def write(self, png: str, folder: Path) -> str:
        """Write a picture beside those of MyST-NB, named like them. Returns its address."""
        data = base64.b64decode(png)
        place = folder / f"{hashlib.sha256(data).hexdigest()}.png"
        write_if_new(Path(f"{self.app.srcdir}{place}"), data)
        return place.as_posix()


def open_slider(writer, node: Frames) -> None:
    """Write what stands before the pictures."""
    name, *labels = map(html.escape, (node["name"], *node["labels"]))
    options = [f'<option value="{at}" label="{label}"></option>' for at, label in enumerate(labels)]
    values = {"first": node["first"], "last": len(labels) - 1, "label": labels[node["first"]]}
    place = "-".join(["frames", *node.parent["ids"]])
    writer.body.append(BEFORE.format(name=name, list=place, options="".join(options), **values))


def close_slider(writer, node: Frames) -> None:
    """Write what stands behind the pictures."""
    writer.body.append(AFTER)
