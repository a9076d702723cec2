"""The house rules that a machine can check."""

import ast
import subprocess
import sys
from pathlib import Path

import deepfool

SOURCE = Path(deepfool.__file__).parent

ORDER = [
    "errors", "cache", "outcomes", "values", "norms", "boxes", "subspaces", "schemas", "display", "classifier",
    "attacks", "certificates", "models", "datasets", "runs", "metrics", "training", "universals", "reporting",
    "interactive", "integrations", "live", "experiments", "cli",
]  # fmt: skip
"""A module may import what stands before its own part, and its own part."""


def imported_parts(file: Path):
    """The parts of the package that a file imports, at its top or later inside a function."""
    for node in ast.walk(ast.parse(file.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("deepfool"):
            names = [node.module] if node.module != "deepfool" else [f"deepfool.{a.name}" for a in node.names]
        elif isinstance(node, ast.Import):
            names = [a.name for a in node.names if a.name.startswith("deepfool.")]
        yield from (name.split(".")[1] for name in names)


def test_imports_point_one_way():
    for file in SOURCE.rglob("*.py"):
        part = file.relative_to(SOURCE).parts[0].removesuffix(".py")
        if part in ("__init__", "__main__"):
            continue
        assert part in ORDER, f"{file} belongs to no known part: add it to ORDER, and to the map in the docs"
        for other in imported_parts(file):
            if other not in ("__version__",):
                assert ORDER.index(other) <= ORDER.index(part), f"{file.name} imports {other}, which comes after {part}"


def test_the_public_names():
    assert sorted(deepfool.__all__) == [
        "Adversarial", "Audit", "Certificate", "Classifier", "Evidence", "Feature", "Proof", "Run", "Schema",
        "SmallestEps", "Status", "Universal", "__version__", "affine", "audit", "certifiable", "certify",
        "datasets", "ddn", "deepfool",
        "errors", "evaluate", "fab", "fgsm", "finetune", "fmn", "integrations", "lbfgs", "metrics", "models",
        "sigma_zero", "smallest", "smallest_eps", "sparsefool", "subspaces", "superdeepfool", "tighten", "universal",
    ]  # fmt: skip
    for name in deepfool.__all__:
        assert getattr(deepfool, name) is not None
    assert dir(deepfool) == sorted(deepfool.__all__)


def test_unknown_names_are_attribute_errors():
    assert not hasattr(deepfool, "deepfoool")


def test_import_is_light():
    """`import deepfool` alone loads no torch, no plotting, no Ray."""
    heavy = "{'torch', 'numpy', 'scipy', 'matplotlib', 'plotly', 'ray', 'jinja2'}"
    code = f"import sys, deepfool; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_help_is_light():
    """`deepfool --help` answers before anything heavy is loaded: what takes time is known without a clock."""
    heavy = "{'torch', 'numpy', 'scipy', 'matplotlib', 'plotly', 'ray', 'jinja2'}"
    code = (
        "import sys, atexit\nfrom deepfool.cli import app\n"
        f"atexit.register(lambda: print(sorted({heavy} & set(sys.modules)), file=sys.stderr))\n"
        "app(['--help'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "evaluate" in done.stdout
    assert done.stderr.strip() == "[]"


def test_no_module_hides_behind_a_function_of_its_package():
    for package in SOURCE.rglob("__init__.py"):
        folder = package.parent
        modules = {f.stem for f in folder.glob("*.py")} | {f.parent.name for f in folder.glob("*/__init__.py")}
        own = ".".join(("deepfool", *folder.relative_to(SOURCE).parts))
        for node in ast.walk(ast.parse(package.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module != own:  # from itself a package imports modules
                for alias in node.names:
                    hidden = alias.name in modules and not (own == "deepfool" and node.module == "deepfool")
                    assert not hidden, f"{package}: {alias.name} is a module and a name"
