"""Cells of claims, folded under a line that counts them."""

from docutils import nodes
from sphinx.transforms import SphinxTransform

from normbook.press.siblings import CLAIMS_TAG, counted
from normbook.press.sphinx.state import evidence_of


class FoldClaims(SphinxTransform):
    """Fold each cell tagged `claims`, as MyST-NB folds a cell tagged `hide-cell`."""

    default_priority = 500

    def apply(self, **unused) -> None:
        """Give the cells of this page their line, counted from what they recorded."""
        page = evidence_of(self.app).book.pages.get(self.env.docname)
        if page is None or not page.is_chapter:
            return
        cells = [
            node
            for node in self.document.findall(nodes.container)
            if node.get("nb_element") == "cell_code"
        ]
        for node in cells:
            if f"tag_{CLAIMS_TAG}" not in node["classes"]:
                continue
            before = page.notebook.cells[: node["cell_index"]]
            index = sum(cell.cell_type == "code" for cell in before)
            line = counted(page.recorded_cells[index].outputs)
            node["hide_mode"], node["prompt_show"], node["prompt_hide"] = "all", line, line
