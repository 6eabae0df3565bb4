"""Slips that are seen in the code alone, and may be made in any lesson. They are told beside what a check has found."""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

# What makes something new and changes nothing. `.to` and its kind change a module in place, and a tensor not.
MAKES = {"detach", "clone", "mean", "sum", "div", "mul", "flatten", "reshape", "view", "tolist", "cat", "stack"}
MAKES |= {"tensor", "as_tensor", "unsqueeze", "squeeze", "split", "strip", "new_group", "lerp", "sub", "where", "clamp"}
OF_A_TENSOR = {"to", "cpu", "cuda", "float", "double", "half"}
MODULES = {"model", "net", "module", "network", "replica"}
LOSSES = {"CrossEntropyLoss", "NLLLoss", "MSELoss", "L1Loss", "SmoothL1Loss", "BCELoss", "BCEWithLogitsLoss"}
SILENT = {"all_reduce", "broadcast", "reduce", "all_gather", "gather", "scatter", "barrier", "send"}
SILENT |= {"all_gather_object", "broadcast_object_list", "gather_object", "all_gather_into_tensor", "monitored_barrier"}
ASKED = {"get_rank", "get_world_size"}
LOOPS = ast.For | ast.AsyncFor | ast.While


def slip(answer: Any, said: str = "") -> str:
    """Return what is told of the first slip in a function's source; nothing where none is seen, or no source is found.

    said: what is said of the answer already. What that tells of is not told twice.
    It is a fact about the code of an answer that was found wrong, and need not be why.
    """
    try:
        written = ast.parse(textwrap.dedent(inspect.getsource(answer))).body[0]
    except Exception:  # whatever a learner may pass
        return ""
    if not isinstance(written, ast.FunctionDef | ast.ClassDef):  # a lambda's source is the whole of its statement
        return ""
    for node in ast.walk(written):
        for child in ast.iter_child_nodes(node):
            child.above = node
    written.known = {name for name, it in getattr(answer, "__globals__", {}).items() if inspect.ismodule(it)}
    looks = [look for look, words in TELLS.items() if not any(it in said for it in words)]
    return next((told for look in looks for told in look(written)), "")


def _code(node: ast.AST) -> str:
    """Return a piece of code in a sentence."""
    code = ast.unparse(node)
    return f"`{code}`" if len(code) <= 40 else f"`{code[:39]}…`"


def _name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _text_without_f(written: ast.AST) -> Iterator[str]:
    names = {node.arg for node in ast.walk(written) if isinstance(node, ast.arg)}
    names |= written.known | {
        it.id for it in ast.walk(written) if isinstance(it, ast.Name) and isinstance(it.ctx, ast.Store)
    }
    for node in ast.walk(written):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and not isinstance(node.above, ast.Expr):
            braces = [it[0] for it in re.finditer(r"\{(\w+)[^{}]*\}", node.value) if it[1] in names]
            if braces and not isinstance(node.above, ast.Attribute | ast.JoinedStr):  # "…".format(…), and f"{{n}}"
                yield f"`{braces[0]}` stands in a text with no `f` before it, and stays as it is."


def _always_true(written: ast.AST) -> Iterator[str]:
    for node in ast.walk(written):
        if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or) and not isinstance(node.above, ast.Assign):
            used = isinstance(node.above, ast.Return | ast.Call | ast.BinOp | ast.AugAssign)  # `n / (d or 1)`
            held = node.values[: -1 if used else None]
            if any(isinstance(it, ast.Constant) and it.value for it in held):
                yield f"{_code(node)} is always true: each side of `or` needs a comparison of its own."


def _not_kept(written: ast.AST) -> Iterator[str]:
    for node in ast.walk(written):
        made = node.value if isinstance(node, ast.Expr) else None
        if isinstance(made, ast.BinOp) and isinstance(made.op, ast.Div) and isinstance(made.left, ast.Constant):
            continue  # 1 / 0: it is there to fail
        if isinstance(made, ast.BinOp | ast.Compare | ast.UnaryOp):
            yield f"What comes out of {_code(made)} is kept nowhere."
        elif isinstance(made, ast.Attribute):
            yield f"{_code(made)} alone does nothing: a call has `()`."
        elif isinstance(made, ast.Call) and isinstance(made.func, ast.Attribute) and made.func.attr in MAKES:
            yield f"What {_code(made)} makes is kept nowhere."
        elif isinstance(made, ast.Call) and isinstance(made.func, ast.Attribute) and made.func.attr in OF_A_TENSOR:
            if _name(made.func.value) not in MODULES:
                yield f"Of a tensor {_code(made)} makes another one, and it is kept nowhere."


def _loss_not_called(written: ast.AST) -> Iterator[str]:
    for node in ast.walk(written):
        if isinstance(node, ast.Call) and _name(node.func) in LOSSES and len(node.args) > 1:
            yield f"{_code(node.func)} makes a loss function: what the loss is of goes into a call of that, `(…)(…)`."


def _not_called(written: ast.AST) -> Iterator[str]:
    for node in ast.walk(written):
        if _name(node) in ASKED and isinstance(getattr(node, "above", None), ast.Compare | ast.BinOp):
            yield f"{_code(node)} is a function, and no number: it is called with `()`."


def _nothing_returned(written: ast.AST) -> Iterator[str]:
    uses = ast.Assign | ast.AugAssign | ast.AnnAssign | ast.NamedExpr | ast.Return | ast.BinOp | ast.Compare
    for node in ast.walk(written):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.above, uses):
            called, waits = node.func, any(it.arg in ("async_op", None) for it in node.keywords)
            if called.attr in SILENT and _name(called.value) in ("dist", "distributed") and not waits:
                more = "" if called.attr in ("send", "barrier", "monitored_barrier") else "fills what it is given, and "
                yield f"{_code(called)} {more}returns nothing."


def _only_renamed(written: ast.AST) -> Iterator[str]:
    """A name is given to something that nobody reads: one that was given before, or that a loop gives."""
    if not isinstance(written, ast.FunctionDef):
        return
    inner = [it for it in ast.walk(written) if it is not written and isinstance(it, ast.FunctionDef | ast.Lambda)]
    given = {it.arg for it in ast.walk(written.args) if isinstance(it, ast.arg)}
    for node in ast.walk(written):
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if not isinstance(target, ast.Name) or inner:
            continue
        reads = [it for it in ast.walk(written) if isinstance(it, ast.Name) and it.id == target.id]
        reads = [it for it in reads if isinstance(it.ctx, ast.Load)]
        loops = [it for it in _around(node) if isinstance(it, LOOPS)]
        its = next((it for it in loops if target.id in _targets(it)), None)
        if its is None and target.id not in given:
            works = isinstance(node.value, ast.Call) and _name(node.value.func).endswith("_")  # in place
            if not reads and target.id != "_" and not works and not _is_shared(written, target.id):
                yield f"`{target.id}` is never used."
            continue
        again = loops[: loops.index(its)] if its else loops  # in these it may be read in the next turn
        places = [*again, *([node] if again else [])]
        end = (node.end_lineno, node.end_col_offset)
        if not any((it.lineno, it.col_offset) > end or set(_around(it)) & set(places) for it in reads):
            yield f"{_code(node)} makes something new, and what `{target.id}` was stays as it is."


def _is_shared(written: ast.AST, name: str) -> bool:
    """Tell whether a name is somebody else's too."""
    return any(isinstance(it, ast.Global | ast.Nonlocal) and name in it.names for it in ast.walk(written))


def _around(node: ast.AST) -> Iterator[ast.AST]:
    while node := getattr(node, "above", None):
        yield node


def _targets(loop: ast.AST) -> set[str]:
    return {it.id for it in ast.walk(loop.target) if isinstance(it, ast.Name)} if hasattr(loop, "target") else set()


# And words by which it is told already.
TELLS: dict[Callable[[ast.AST], Iterator[str]], tuple[str, ...]] = {
    _text_without_f: ("`f`",),
    _not_called: ("`()`",),
    _loss_not_called: ("`(…)(…)`",),
    _always_true: ("always true",),
    _not_kept: ("new tensor", "new one", "another one", "nothing back"),
    _nothing_returned: ("returns nothing", "returns None", "That is nothing"),
    _only_renamed: ("new tensor", "another tensor", "only a name"),
}
