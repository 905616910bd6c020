"""``papermill --help-notebook`` explains every parameter of every chapter."""

import ast

from papermill import inspect_notebook


def test_each_parameter_has_a_type_and_a_comment(root, book):
    for page in book.notebooks:
        for cell in page.cells:
            if "parameters" not in cell.metadata.get("tags", []):
                continue
            assigned = [node for node in ast.parse(cell.source).body if isinstance(node, (ast.Assign, ast.AnnAssign))]
            found = inspect_notebook(str(root / f"notebooks/{page.name}.ipynb"))
            assert len(found) == len(assigned), page.name
            for name, parameter in found.items():
                assert parameter["inferred_type_name"] != "None", f"{page.name}: parameter {name} has no type"
                assert parameter["help"], f"{page.name}: parameter {name} has no comment"
