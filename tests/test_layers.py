"""Who may import whom: arrows only point down.

The table is the design; the code is read with `ast`, so that an import inside a function or under
TYPE_CHECKING counts as well. What a layer loads in fact is checked in a fresh interpreter.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGE: Final = ROOT / "src" / "headrace"

EVERYONE_MAY: Final = frozenset({"errors", "history"})
# The two that everyone may import stand below that rule.
FLOOR: Final[dict[str, frozenset[str]]] = {"errors": frozenset(), "history": frozenset({"errors"})}
ALLOWED: Final[dict[str, frozenset[str]]] = {
    "wire": frozenset(),
    "protocol": frozenset({"wire"}),
    "store": frozenset({"wire"}),
    "columns": frozenset({"wire"}),
    "capture": frozenset({"wire"}),
    "aio": frozenset({"wire", "protocol"}),
    "client": frozenset({"wire", "protocol", "columns", "aio"}),
    "node": frozenset({"wire", "protocol", "store", "aio"}),
    "spark": frozenset({"wire", "columns", "client"}),
    "web": frozenset({"client", "node", "spark"}),
    "cluster": frozenset({"wire", "protocol", "client"}),
}
MAY_IMPORT_ALL: Final = frozenset({"cli", "demo", "testing", "__main__"})

HEAVY_FOR_THE_CORE: Final = ("asyncio", "socket", "pyarrow", "numba", "pyspark")
HEAVY_FOR_HELP: Final = ("numba", "pyarrow", "pyspark")


def layer_of(path: Path, package: Path) -> str:
    """Return the layer a file belongs to; "" is the package's own __init__."""
    first = path.relative_to(package).parts[0]
    return "" if first == "__init__.py" else first.removesuffix(".py")


def allowed_for(layer: str) -> frozenset[str] | None:
    """Return what a layer may import, None for everything; KeyError for a layer nobody knows."""
    if layer in MAY_IMPORT_ALL:
        return None
    if layer == "":
        return frozenset()
    return (FLOOR[layer] if layer in FLOOR else ALLOWED[layer] | EVERYONE_MAY) | {layer}


def imported_layers(tree: ast.AST) -> list[tuple[int, str]]:
    """Return (line, layer) of each import of ours; layer "." marks a relative import."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level > 0:
                found.append((node.lineno, "."))
                continue
            source = node.module or ""
            # `from headrace import wire` names the layer in the second half.
            modules = (
                [f"headrace.{alias.name}" for alias in node.names]
                if source == "headrace"
                else [source]
            )
        else:
            continue
        for module in modules:
            top, _, rest = module.partition(".")
            if top == "headrace" and rest and not rest.startswith("__"):
                found.append((node.lineno, rest.partition(".")[0]))
    return found


def layer_problems(package: Path) -> list[str]:
    """Return one sentence per import that points up, sideways or is relative."""
    problems = []
    for path in sorted(package.rglob("*.py")):
        layer = layer_of(path, package)
        place = path.relative_to(package.parent)
        try:
            allowed = allowed_for(layer)
        except KeyError:
            problems.append(f"{place}: the layer {layer} is not in the table of test_layers.py")
            continue
        for line, target in imported_layers(ast.parse(path.read_text(encoding="utf-8"))):
            if target == ".":
                problems.append(f"{place}:{line}: relative import, all of ours are absolute")
            elif allowed is not None and target not in allowed:
                names = ", ".join(sorted(allowed - {layer})) or "nothing"
                who = layer or "headrace"
                problems.append(f"{place}:{line}: {who} imports {target}, allowed: {names}")
    return problems


def promise_problems(package: Path) -> list[str]:
    """Return one sentence per package whose docstring hides a layer its files import."""
    problems = []
    for init in sorted(package.glob("*/__init__.py")):
        layer = init.parent.name
        text = ast.get_docstring(ast.parse(init.read_text(encoding="utf-8"))) or ""
        _, marked, promise = text.partition("Imports:")
        if not marked:
            problems.append(
                f"{layer}/__init__.py: the docstring has no line that starts 'Imports:'"
            )
            continue
        words = set(promise.replace(",", " ").replace(".", " ").split())
        if layer in MAY_IMPORT_ALL:
            continue
        real = {
            target
            for path in init.parent.rglob("*.py")
            for _, target in imported_layers(ast.parse(path.read_text(encoding="utf-8")))
        }
        missing = sorted(real - words - {layer, "."})
        if missing:
            problems.append(f"{layer}/__init__.py: 'Imports:' leaves out {', '.join(missing)}")
    return problems


def modules_of(layer: str, package: Path) -> list[str]:
    """Return the dotted names of all modules of a layer."""
    files = [path for path in sorted((package / layer).rglob("*.py")) if path.name != "__main__.py"]
    dotted = [".".join(path.relative_to(package.parent).with_suffix("").parts) for path in files]
    return [name.removesuffix(".__init__") for name in dotted]


def loaded_by(code: str, heavy: tuple[str, ...], source: Path) -> set[str]:
    """Run `code` in a fresh interpreter and return which of `heavy` it loaded."""
    script = (
        f"import sys\nsys.path.insert(0, {str(source)!r})\nbefore = set(sys.modules)\n{code}\n"
        f"heavy = {heavy!r}\n"
        "print('loaded:', *(set(heavy) & (set(sys.modules) - before)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].removeprefix("loaded:").split())


def test_every_import_points_down_and_is_absolute() -> None:
    assert layer_problems(PACKAGE) == []


def test_every_package_says_what_it_imports() -> None:
    assert promise_problems(PACKAGE) == []


@pytest.mark.parametrize("layer", ["wire", "protocol"])
def test_the_core_loads_nothing_heavy(layer: str) -> None:
    modules = modules_of(layer, PACKAGE)
    assert modules, f"src/headrace/{layer} holds no module"
    code = "\n".join(f"import {module}" for module in modules)
    assert loaded_by(code, HEAVY_FOR_THE_CORE, PACKAGE.parent) == set()


def test_help_loads_nothing_heavy() -> None:
    code = (
        "sys.argv = ['headrace', '--help']\n"
        "from headrace.cli import main\n"
        "try:\n    main()\nexcept SystemExit as done:\n    assert not done.code, done.code\n"
    )
    assert loaded_by(code, HEAVY_FOR_HELP, PACKAGE.parent) == set()


PLANTED: Final = {
    "points up": ("wire/bad.py", "from headrace.protocol.stream import State", "imports protocol"),
    "sideways": ("store/bad.py", "import headrace.protocol", "imports protocol"),
    "through the root": ("wire/bad.py", "from headrace import client", "imports client"),
    "in a function": ("wire/bad.py", "def f():\n    import headrace.node.server", "imports node"),
    "relative": ("wire/bad.py", "from . import frame", "relative import"),
    "below the floor": ("errors.py", "import headrace.history", "errors imports history"),
    "unknown layer": ("misc/bad.py", "", "not in the table"),
    "from the root": ("__init__.py", "from headrace.wire import frame", "headrace imports wire"),
}


@pytest.mark.parametrize("plant", PLANTED.values(), ids=PLANTED)
def test_a_planted_import_is_found(plant: tuple[str, str, str], tmp_path: Path) -> None:
    name, text, expected = plant
    path = tmp_path / "headrace" / name
    path.parent.mkdir(parents=True)
    path.write_text(text, encoding="utf-8")
    (problem,) = layer_problems(tmp_path / "headrace")
    assert expected in problem


def test_an_allowed_import_is_no_problem(tmp_path: Path) -> None:
    path = tmp_path / "headrace" / "protocol" / "good.py"
    path.parent.mkdir(parents=True)
    path.write_text(
        "from headrace import __version__\nfrom headrace.errors import HeadraceError\n"
        "from headrace.wire.frame import Frame\nimport headrace.history\n"
    )
    assert layer_problems(tmp_path / "headrace") == []


def test_a_planted_silent_package_is_found(tmp_path: Path) -> None:
    wire, protocol = tmp_path / "headrace" / "wire", tmp_path / "headrace" / "protocol"
    for package, docstring in ((wire, "wire."), (protocol, "protocol.\n\nImports: errors.")):
        package.mkdir(parents=True)
        (package / "__init__.py").write_text(f'"""{docstring}"""')
    (protocol / "stream.py").write_text("from headrace.wire.frame import Frame")
    silent, hiding = sorted(promise_problems(tmp_path / "headrace"), reverse=True)
    assert "no line that starts 'Imports:'" in silent
    assert "leaves out wire" in hiding


def test_a_planted_heavy_import_is_found(tmp_path: Path) -> None:
    package = tmp_path / "headrace" / "wire"
    package.mkdir(parents=True)
    (tmp_path / "headrace" / "__init__.py").write_text("")
    (package / "__init__.py").write_text("import asyncio")
    modules = modules_of("wire", tmp_path / "headrace")
    assert modules == ["headrace.wire"]
    loaded = loaded_by(f"import {modules[0]}", HEAVY_FOR_THE_CORE, tmp_path)
    assert loaded == {"asyncio", "socket"}
