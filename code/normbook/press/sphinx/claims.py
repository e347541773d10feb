"""Lines of claims: one block with what else a cell prints, and folded where there is no more."""

from docutils import nodes
from sphinx.transforms import SphinxTransform

from normbook.press.siblings import CLAIMS_TAG, count_of_claims
from normbook.press.sphinx.state import recorded_cells


class FoldClaims(SphinxTransform):
    """Fold each cell tagged `claims`, as MyST-NB folds a cell tagged `hide-cell`."""

    default_priority = 500

    def apply(self, **unused) -> None:
        """Give the cells of this page their line, counted from what they recorded."""
        for node, cell in recorded_cells(self):
            if f"tag_{CLAIMS_TAG}" in node["classes"]:
                line = count_of_claims(cell.outputs)
                node["hide_mode"], node["prompt_show"], node["prompt_hide"] = "all", line, line


class JoinLines(SphinxTransform):
    """Show the lines that a cell prints one by one, its claims among them, as one block."""

    default_priority = 500

    def apply(self, **unused) -> None:
        """Put each run of plain outputs into the first of them."""
        outputs = [
            node
            for node in self.document.findall(nodes.container)
            if node.get("nb_element") == "cell_code_output"
        ]
        for output in outputs:
            first = None
            for child in list(output.children):
                if isinstance(child, nodes.container) and not child.children:
                    continue  # a glued value, which shows nothing here
                block = plain_block(child)
                if block is None or first is None:
                    first = block
                else:
                    text = "\n".join(part.astext().rstrip("\n") for part in (first, block))
                    first.children = []
                    first += nodes.Text(text)
                    first.rawsource = text
                    output.remove(child)


def plain_block(node: nodes.Node) -> nodes.literal_block | None:
    """Return the block of an output that is plain text and nothing else, or None."""
    while isinstance(node, nodes.container) and len(node.children) == 1:
        (node,) = node.children
    plain = isinstance(node, nodes.literal_block) and node.get("language") == "myst-ansi"
    return node if plain else None
