"""Python's ways of turning data into code: none of them is taken, here or in the tests (B47).

bandit (``make audit``) knows more patterns; this names the ones that we never want to explain.
"""

import ast
import importlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

REPO = Path(__file__).parents[1]
FOLDERS = ("operator", "planner", "perfmodel", "deploy", "benchmarks", "tests")
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "jsonpickle"}
CALLS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen", "yaml.load_all"}
CALLS |= {"yaml.unsafe_load", "yaml.full_load", "tempfile.mktemp"}
# Code of our own pages is run as their readers would run it.
EXPLAINED = {
    ("tests/planner/table/test_write.py", "exec()"),
    ("tests/docs/test_pages.py", "exec()"),
    ("tests/docs/test_typed_on_a_cluster.py", "exec()"),
    ("tests/scenarios/test_closed_loop.py", "exec()"),
    ("tests/faults/test_writes.py", "exec()"),
}
# Every use of yaml.load, and the loader that makes it a safe one.
LOADERS = {
    "perfmodel/catalogue/read.py": ("archipelago.perfmodel.catalogue.read", "_LOADER"),
    "planner/servingplan/load.py": ("archipelago.planner.servingplan.load", "_StrictLoader"),
}


def findings(tree: ast.AST) -> Iterator[str]:
    """What a module does that it must not, by line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            named = {getattr(node, "module", None), *(alias.name for alias in node.names)}
            for name in named & MODULES:
                yield f"{node.lineno}: imports {name}"
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in CALLS:
                yield f"{node.lineno}: {name}()"
            for keyword in node.keywords:
                if keyword.arg == "shell" and not (
                    isinstance(keyword.value, ast.Constant) and keyword.value.value is False
                ):
                    yield f"{node.lineno}: {name}(shell=...)"


@cache
def sources() -> dict[str, ast.Module]:
    """Every module by its path, parsed."""
    return {
        str(path.relative_to(REPO)): ast.parse(path.read_text())
        for folder in FOLDERS
        for path in sorted((REPO / folder).rglob("*.py"))
    }


def test_nothing_turns_data_into_code() -> None:
    found = [
        f"{path}:{finding}"
        for path, module in sources().items()
        for finding in findings(module)
        if (path, finding.split(": ")[1]) not in EXPLAINED
    ]
    assert found == []


@pytest.mark.parametrize(
    "code",
    ["import pickle", "from pickle import loads", "eval(x)", "os.system(x)", "yaml.unsafe_load(x)",
     "subprocess.run(x, shell=True)", "run(x, shell=flag)"],
)  # fmt: skip
def test_each_of_them_would_be_found(code: str) -> None:
    assert len(list(findings(ast.parse(code)))) == 1


def test_yaml_is_read_by_safe_loaders_only() -> None:
    loads = {
        path: ast.unparse(node)
        for path, module in sources().items()
        for node in ast.walk(module)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "yaml.load"
    }
    assert loads.pop("planner/documents.py").endswith("Loader=loader)")
    local = 'loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)'  # yaml is imported late there
    assert local in (REPO / "planner" / "documents.py").read_text()
    assert set(loads) == set(LOADERS)
    safe = (yaml.SafeLoader, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    for path, (module, name) in LOADERS.items():
        assert name in loads[path]
        assert issubclass(getattr(importlib.import_module(module), name), safe)
