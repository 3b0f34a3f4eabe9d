"""Where foreign bytes are decoded in the product: every function that calls a decoder.

A function counts under the name of the outermost function or method around the call. What such a
function returns is a value of ours; before it, nothing looks into what others wrote.
"""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

REPO: Final = Path(__file__).parents[3]
LAYERS: Final = ("operator", "planner", "perfmodel")
DECODERS: Final = frozenset(
    {
        *("json.load", "json.loads", "yaml.load", "yaml.safe_load", "yaml.load_all", "csv.reader"),
        *("csv.DictReader", "tomllib.load", "tomllib.loads", "pickle.load", "pickle.loads"),
        *("datetime.fromisoformat", "datetime.strptime", "ast.literal_eval"),
    }
)
METHODS: Final = frozenset(
    {"model_validate", "model_validate_json", "validate_python", "validate_json"}
)
READERS_OF_OURS: Final = frozenset({"Node", "reading", "read_json", "load_document", "read_meta"})
"""Our own way in: whoever calls it holds something foreign."""
PARTS: Final = frozenset({"metadata", "spec", "status", "items", "data"})
"""Parts of any Kubernetes object; in the operator, whoever looks at one holds a foreign object."""


def borders() -> frozenset[str]:
    """Dotted names of the functions that decode what others wrote."""
    found = set()
    for layer in LAYERS:
        for path in sorted((REPO / layer).rglob("*.py")):
            module = "archipelago." + ".".join(path.relative_to(REPO).with_suffix("").parts)
            tree = ast.parse(path.read_text(encoding="utf-8"))
            for name, node in _functions(tree, module):
                if any(_decodes(n, in_operator=layer == "operator") for n in ast.walk(node)):
                    found.add(name)
    return frozenset(found)


def _functions(tree: ast.AST, prefix: str) -> Iterator[tuple[str, ast.AST]]:
    """Outermost functions, methods, and what a module or class runs itself."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}.{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{prefix}.{node.name}")
        else:
            yield f"{prefix}.<body>", node


def _decodes(node: ast.AST, *, in_operator: bool) -> bool:
    if isinstance(node, ast.Call):
        called = _name(node.func)
        return (
            called in DECODERS
            or called in READERS_OF_OURS
            or any(_name(given) in READERS_OF_OURS for given in node.args)  # `map(Node, items)`
            or (isinstance(node.func, ast.Attribute) and node.func.attr in METHODS)
            or (in_operator and _part(node))
        )
    return in_operator and isinstance(node, ast.Subscript) and _part(node)


def _name(function: ast.AST) -> str:
    """``name`` or ``module.name``; empty for anything longer."""
    match function:
        case ast.Name(name):
            return name
        case ast.Attribute(ast.Name(module), name):
            return f"{module}.{name}"
    return ""


def _part(node: ast.Call | ast.Subscript) -> bool:
    """Whether a part of an object is read: ``body["spec"]`` or ``body.get("spec")``."""
    if isinstance(node, ast.Subscript):
        return isinstance(node.ctx, ast.Load) and _is_part(node.slice)
    getter = isinstance(node.func, ast.Attribute) and node.func.attr == "get"
    return getter and bool(node.args) and _is_part(node.args[0])


def _is_part(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value in PARTS
