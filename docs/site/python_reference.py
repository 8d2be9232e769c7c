"""Writes the reference of the Python package, from its stubs and sources: nothing is imported.

The page is reStructuredText, because docstrings are."""

import ast
import builtins
import copy
import inspect
from collections.abc import Iterator
from pathlib import Path

HEAD = """Reference of Python
===================

Signatures and docstrings of the package ``kvmem``.
"""

# The modules, each with the files whose public names it has.
MODULES = {
    "kvmem": (
        "_kvmem.pyi",
        "_async_node.py",
        "_tensor.py",
        "c_library.py",
        "data.py",
        "_stats.py",
        "tier.py",
        "errors.py",
    ),
    "kvmem.mooncake": ("mooncake/*.py", "_kvmem.pyi", "_stats.py"),
    "kvmem.nixl": ("nixl/*.py",),
    "kvmem.lmcache": ("lmcache/*.py", "_kvmem.pyi"),
    "kvmem.sglang": ("sglang/*.py",),
    "kvmem.llama_cpp": ("llama_cpp/*.py",),
    "kvmem.storage": ("storage/*.py",),
    "kvmem.transformers": ("transformers/*.py", "storage/versions.py"),
    "kvmem.vllm": ("vllm/*.py", "storage/versions.py"),
}

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Aliases(ast.NodeTransformer):
    """Replaces the stub's private aliases of types by what they stand for."""

    def __init__(self, stub: Path) -> None:
        self.meant: dict[str, ast.expr] = {"_Buffer": ast.Name("Buffer")}
        for node in ast.parse(stub.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.AnnAssign) and node.value:
                self.meant[ast.unparse(node.target)] = node.value

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.meant.get(node.id, node)

    def parse(self, file: Path) -> ast.Module:
        return self.visit(ast.parse(file.read_text(encoding="utf-8")))


def exported(tree: ast.Module) -> list[str]:
    """Returns the names in ``__all__``."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    return []


def signature(function: Function, *, bound: bool) -> str:
    """Returns the parameters and the result, without ``self``."""
    # A base's methods are shown for each of its classes.
    arguments = copy.deepcopy(function.args)
    static = any(ast.unparse(each) == "staticmethod" for each in function.decorator_list)
    if bound and not static:
        del (arguments.posonlyargs or arguments.args)[0]
    result = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    return f"({ast.unparse(arguments)}){result}"


def indented(text: str, by: int) -> str:
    return "\n".join((" " * by + line).rstrip() for line in text.splitlines())


def directive(kind: str, declaration: str, doc: str, depth: int, *options: str) -> str:
    lines = [f".. py:{kind}:: {declaration}", *(f"   {option}" for option in options), ""]
    text = "\n".join(lines)
    if doc:
        text += "\n" + indented(inspect.cleandoc(doc), 3) + "\n"
    return indented(text, depth * 3) + "\n\n"


def members(kind: ast.ClassDef, every: dict[str, ast.ClassDef]) -> Iterator[str]:
    """Yields the public methods, properties and attributes of a class. A method may be made of one
    of another class: ``insert = _call(NodeCache.insert)``."""
    seen: set[str] = set()
    body = kind.body
    for node, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, Function) and not node.name.startswith("_"):
            decorators = [ast.unparse(each) for each in node.decorator_list]
            doc = ast.get_docstring(node) or ""
            again = node.name in seen
            seen.add(node.name)
            if any(each.endswith(".setter") for each in decorators):
                continue
            if "property" in decorators:
                result = [f":type: {ast.unparse(node.returns)}"] if node.returns else []
                yield directive("property", node.name, doc, 1, *result)
                continue
            options = [
                f":{each}:" for each in ("staticmethod", "classmethod") if each in decorators
            ]
            options += [":no-index:"] if again else []
            declaration = node.name + signature(node, bound=True)
            yield directive("method", declaration, doc, 1, *options)
        elif isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("_call("):
            owner, name = ast.unparse(node.value)[len("_call(") : -1].split(".")
            method = next(it for it in every[owner].body if getattr(it, "name", "") == name)
            declaration = name + signature(method, bound=True)
            yield directive("method", declaration, f"See :meth:`{owner}.{name}`.", 1, ":async:")
        elif isinstance(node, ast.AnnAssign) and not ast.unparse(node.target).startswith("_"):
            said = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            doc = str(after.value.value) if said else ""
            options = [f":type: {ast.unparse(node.annotation)}"]
            # The type of this name is meant where annotations have it.
            options += [":no-index:"] if ast.unparse(node.target) in vars(builtins) else []
            yield directive("attribute", ast.unparse(node.target), doc, 1, *options)


def constant(node: ast.stmt) -> str:
    """Returns the name that a statement of a module gives to a value."""
    if isinstance(node, ast.AnnAssign):
        return ast.unparse(node.target)
    return ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else ""


def shown(node: ast.stmt, every: dict[str, ast.ClassDef]) -> str:
    """Returns the entry of a class, a function or a constant."""
    if not isinstance(node, ast.ClassDef | Function):
        value = getattr(node, "value", None)
        return directive("data", constant(node), "", 0, f":value: {ast.unparse(value)}")
    doc = ast.get_docstring(node) or ""
    if isinstance(node, Function):
        return directive("function", node.name + signature(node, bound=False), doc, 0)
    bases = [ast.unparse(each) for each in node.bases]
    constructors = [
        each
        for each in node.body
        if isinstance(each, Function) and each.name in ("__new__", "__init__")
    ]
    parameters = signature(constructors[0], bound=True).partition(" -> ")[0] if constructors else ""
    is_error = node.name.endswith("Error")
    heading = "" if is_error else f"{node.name}\n{'^' * len(node.name)}\n\n"
    text = heading + directive("exception" if is_error else "class", node.name + parameters, doc, 0)
    public = [base for base in bases if not base.startswith("_") and base != "NamedTuple"]
    if public:
        text += indented("Bases: " + ", ".join(f":class:`{each}`" for each in public), 3) + "\n\n"
    # What all objects with memory have stands in a private base of the stub.
    for base in bases:
        if base.startswith("_") and base in every:
            text += "".join(members(every[base], every))
    return text + "".join(members(node, every))


def module(name: str, patterns: tuple[str, ...], package: Path) -> str:
    """Returns the section of a module: its docstring, then its public names."""
    aliases = Aliases(package / "_kvmem.pyi")
    folder = package / name.replace(".", "/").removeprefix("kvmem").strip("/")
    head = ast.parse((folder / "__init__.py").read_text(encoding="utf-8"))
    public = exported(head)
    found: dict[str, ast.stmt] = {}
    every: dict[str, ast.ClassDef] = {}
    for file in (file for pattern in patterns for file in sorted(package.glob(pattern))):
        for node in aliases.parse(file).body:
            if isinstance(node, ast.ClassDef):
                every[node.name] = node
            named = node.name if isinstance(node, ast.ClassDef | Function) else constant(node)
            if named in public and not named.startswith("_"):
                found.setdefault(named, node)
    missing = [each for each in public if each not in found and not each.startswith("_")]
    missing = [each for each in missing if not (folder / f"{each}.py").exists()]
    if missing:
        raise SystemExit(f"{name} exports {', '.join(missing)}, which none of {patterns} defines")
    text = f"``{name}``\n{'-' * (len(name) + 4)}\n\n.. py:module:: {name}\n\n"
    text += inspect.cleandoc(ast.get_docstring(head) or "") + "\n\n"
    return text + "".join(shown(node, every) for node in found.values())


def page(root: Path) -> str:
    """Returns the page of a repository."""
    package = root / "crates/kvmem-python/python/kvmem"
    return HEAD + "".join(f"\n{module(*each, package)}\n" for each in MODULES.items())
