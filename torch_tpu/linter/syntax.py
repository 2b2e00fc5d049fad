"""Questions that the syntax alone answers: what a loop is for, what runs seldom, what a name is used as."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

LoopKind = Literal["steps", "collection", "few", "outer"]
"""steps: each turn does work. collection: goes over what is there. few: at most a few turns. outer: around another loop
that does the work."""
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
DefinitionOf = Callable[[ast.expr], Definition | None]
"""The function of the file that an expression names, if it does."""

FEW = 8
_LOOPS = (ast.For, ast.While, ast.AsyncFor)
_COLLECTIONS = frozenset({
    "items", "values", "keys", "parameters", "named_parameters", "buffers", "named_buffers", "modules",
    "named_modules", "children", "named_children", "state_dict",
})  # fmt: skip
_WORK = frozenset({"backward", "zero_grad", "optimizer_step", "mark_step", "forward", "generate"})
_WORK_NAMES = ("model", "net", "train_step", "step_fn", "training_step")
_BACKWARD_OF = ("accelerator", "fabric", "engine", "autograd")
"""What has a method `backward` that is given the loss."""
MANY_STEPS = frozenset({"generate", "fit", "train", "evaluate", "predict", "main"})
"""Functions a call of which is many steps."""
_INT64 = (
    "gather", "scatter", "take", "index_add", "index_copy", "index_fill", "index_reduce", "index_put", "one_hot",
    "cross_entropy", "nll", "loss", "criterion",
)  # fmt: skip
"""Parts of the names of functions that want indices, or targets, of int64."""
_LOOP_FUNCTIONS = ("train_one", "train_epoch", "run_epoch", "evaluate", "validate")


def loop_kind(definition_of: DefinitionOf, node: ast.stmt, iterated: ast.expr | None) -> LoopKind:
    """What a loop is for.

    Args:
        iterated: what a `for` goes over; None for `while`.
    """
    if isinstance(iterated, (ast.Tuple, ast.List, ast.Dict, ast.Set, ast.Constant)) or _is_short_range(iterated):
        return "few"
    if _is_outer(definition_of, node):
        return "outer"
    called = iterated.func if isinstance(iterated, ast.Call) else None
    over_collection = isinstance(called, ast.Attribute) and called.attr in _COLLECTIONS
    return "collection" if over_collection and not works(node) else "steps"


def _is_short_range(node: ast.expr | None) -> bool:
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "range"):
        return False
    sizes = [item.value for item in node.args if isinstance(item, ast.Constant)]
    return len(sizes) == len(node.args) and all(isinstance(size, int) and size <= FEW for size in sizes)


def works(node: ast.AST) -> bool:
    """Whether it does what a step of training or evaluation does: backward, an optimizer's step, a model's call."""
    return any(isinstance(item, ast.Call) and _is_work(item) for item in own_nodes(node))


def _is_work(call: ast.Call) -> bool:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr in _WORK or _is_step(call)
    return isinstance(call.func, ast.Name) and call.func.id in _WORK_NAMES


def is_model(called: ast.expr) -> bool:
    """Whether what is called is a model, by its name."""
    name = called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""
    return name.islower() and name.endswith(("model", "net", "module", "encoder", "decoder", "transformer"))


def _is_step(call: ast.Call) -> bool:
    """An optimizer's step, not a scheduler's or a profiler's."""
    if not (isinstance(call.func, ast.Attribute) and call.func.attr == "step"):
        return False
    receiver = ast.unparse(call.func.value).lower()
    return "sched" not in receiver and "prof" not in receiver


def _is_backward(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "backward"


def _is_outer(definition_of: DefinitionOf, loop: ast.stmt) -> bool:
    """Whether the work of a loop is in loops inside it, or in functions that have such loops."""
    return any(_has_working_loop(definition_of, item) for item in own_nodes(loop)) and not _steps_itself(loop)


def _has_working_loop(definition_of: DefinitionOf, item: ast.AST) -> bool:
    if isinstance(item, _LOOPS):
        return works(item)
    if not (isinstance(item, ast.Call) and isinstance(item.func, (ast.Name, ast.Attribute))):
        return False
    last = item.func.id if isinstance(item.func, ast.Name) else item.func.attr
    if last.startswith(_LOOP_FUNCTIONS):
        return True
    known = definition_of(item.func)
    return known is not None and any(isinstance(part, _LOOPS) and works(part) for part in own_nodes(known))


def _steps_itself(loop: ast.stmt) -> bool:
    """Whether an optimizer's step is in the loop, outside loops inside it."""
    todo: list[ast.AST] = list(getattr(loop, "body", []))
    while todo:
        item = todo.pop()
        if isinstance(item, ast.Call) and (_is_step(item) or _is_backward(item)):
            return True
        if not isinstance(item, (*_LOOPS, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            todo.extend(ast.iter_child_nodes(item))
    return False


def own_nodes(node: ast.AST) -> tuple[ast.AST, ...]:
    """The nodes below one, without those of functions and classes defined in it. Kept with the node, for the next time."""
    found: tuple[ast.AST, ...] | None = vars(node).get("_own_nodes")
    if found is None:
        found = vars(node)["_own_nodes"] = tuple(_own_nodes(node))
    return found


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    todo = list(ast.iter_child_nodes(node))
    while todo:
        item = todo.pop()
        yield item
        if not isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            todo.extend(ast.iter_child_nodes(item))


def is_every_so_often(test: ast.expr) -> bool:
    """`step % 100 == 0` and its like, alone or with more conditions."""
    if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And):
        return any(is_every_so_often(item) for item in test.values)
    if isinstance(test, ast.UnaryOp):
        return is_every_so_often(test.operand)
    if isinstance(test, ast.Compare):
        return any(is_every_so_often(side) for side in (test.left, *test.comparators))
    return isinstance(test, ast.BinOp) and isinstance(test.op, ast.Mod) and not isinstance(test.left, ast.Constant)


def is_one_turn(test: ast.expr, targets: frozenset[str]) -> bool:
    """`step == 0` and its like, for what a loop counts."""
    if not (isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Eq) and len(test.ops) == 1):
        return False
    return any(isinstance(side, ast.Name) and side.id in targets for side in (test.left, test.comparators[0]))


def targets_of(loop: ast.AST) -> frozenset[str]:
    """The names that a `for` gives a new value in each turn."""
    return names_in(loop.target) if isinstance(loop, (ast.For, ast.AsyncFor)) else frozenset()


def starts_anew(loop: ast.AST, text: str) -> bool:
    """Whether a variable gets a value in each turn of a loop that does not depend on the one it had."""
    if text in targets_of(loop):
        return True
    return any(
        isinstance(item, ast.Assign)
        and any(ast.unparse(target) == text for target in item.targets)
        and text not in {ast.unparse(part) for part in ast.walk(item.value) if isinstance(part, ast.expr)}
        for item in own_nodes(loop)
    )


def is_kept(body: ast.AST, join: ast.stmt, name: str) -> bool:
    """Whether what a statement of a function assigns to a name is returned or stored, by itself or in a tuple, before the
    name gets another value."""
    names = {name}
    after = [
        item for item in own_nodes(body) if isinstance(item, (ast.Assign, ast.Return)) and item.lineno > join.lineno
    ]
    for item in sorted(after, key=lambda item: item.lineno):
        targets = item.targets if isinstance(item, ast.Assign) else []
        if item.value is not None and names & _whole_names(item.value):
            if not all(isinstance(target, ast.Name) for target in targets) or not targets:
                return True
            names |= {part for target in targets for part in names_in(target)}
        elif targets and name in {part for target in targets for part in names_in(target)}:
            names.discard(name)
    return False


def _whole_names(node: ast.expr) -> frozenset[str]:
    """The names that an expression is, or that are in its tuples."""
    if isinstance(node, (ast.Tuple, ast.List)):
        return frozenset().union(*map(_whole_names, node.elts))
    if isinstance(node, ast.IfExp):
        return _whole_names(node.body) | _whole_names(node.orelse)
    return frozenset({node.id}) if isinstance(node, ast.Name) else frozenset()


def ends_loop(body: Sequence[ast.stmt], in_loop: bool) -> bool:
    """Whether a branch is the last thing that runs: it raises, or leaves the loop."""
    last = body[-1] if body else None
    return isinstance(last, ast.Raise) or (in_loop and isinstance(last, (ast.Break, ast.Return)))


def leaves(body: Sequence[ast.stmt]) -> bool:
    """Whether what follows a branch does not follow it."""
    return bool(body) and isinstance(body[-1], (ast.Return, ast.Raise, ast.Continue, ast.Break))


def assigned_in(node: ast.AST) -> frozenset[str]:
    """The names that are assigned in a statement."""
    return frozenset(
        item.id for item in own_nodes(node) if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store)
    )


def names_in(node: ast.AST) -> frozenset[str]:
    return frozenset(item.id for item in ast.walk(node) if isinstance(item, ast.Name))


def has_forward(node: ast.ClassDef) -> bool:
    return bool(node.bases) and any(isinstance(item, ast.FunctionDef) and item.name == "forward" for item in node.body)


def is_generator(node: ast.AST) -> bool:
    return any(isinstance(item, (ast.Yield, ast.YieldFrom)) for item in own_nodes(node))


def wanted_as_int64(body: ast.AST) -> frozenset[int]:
    """The ids of the expressions in a function, or a file, that are indices or targets, by themselves or by a name."""
    found: frozenset[int] | None = vars(body).get("_wanted_as_int64")
    if found is None:
        found = vars(body)["_wanted_as_int64"] = frozenset(_wanted_as_int64(own_nodes(body)))
    return found


def _wanted_as_int64(nodes: Sequence[ast.AST]) -> Iterator[int]:
    names = set()
    todo: list[ast.expr] = []
    for node in nodes:
        if isinstance(node, ast.Subscript):
            todo.append(node.slice)
        elif isinstance(node, ast.Call) and any(part in _called(node).lower() for part in _INT64):
            todo += [*node.args, *(keyword.value for keyword in node.keywords)]
    for _ in range(2):  # what is there, and what the names that are there were given
        while todo:
            item = todo.pop()
            yield id(item)
            if isinstance(item, ast.Name):
                names.add(item.id)
            todo += _made_of(item)
        todo = [node.value for node in nodes if isinstance(node, ast.Assign) and names & names_in(node.targets[0])]


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _made_of(node: ast.expr) -> list[ast.expr]:
    """What an expression is another form of."""
    if isinstance(node, ast.Call):
        return [node.func.value] if isinstance(node.func, ast.Attribute) else []
    if isinstance(node, ast.Subscript):
        return [node.value]
    if isinstance(node, (ast.Tuple, ast.List)):
        return node.elts
    if isinstance(node, ast.IfExp):
        return [node.body, node.orelse]
    return [node.left, node.right] if isinstance(node, ast.BinOp) else []


def called_methods(node: ast.AST) -> dict[str, set[str]]:
    """The attributes that are asked of each name."""
    found: dict[str, set[str]] = {}
    for item in own_nodes(node):
        if isinstance(item, ast.Attribute) and isinstance(item.value, ast.Name):
            found.setdefault(item.value.id, set()).add(item.attr)
    return found


def shown_to_be_tensors(body: ast.AST) -> frozenset[int]:
    """The ids of the names in a function, or a file, that are assigned what a later line shows to be a tensor: by
    `loss.backward()`, `(loss / n).backward()`, `scaler.scale(loss).backward()`, `accelerator.backward(loss)` or
    `loss.detach()`."""
    found: frozenset[int] | None = vars(body).get("_shown_to_be_tensors")
    if found is None:
        ids: set[int] = set()
        _follow_back(getattr(body, "body", []), frozenset(), ids)
        found = vars(body)["_shown_to_be_tensors"] = frozenset(ids)
    return found


def _follow_back(body: Sequence[ast.stmt] | ast.expr, shown: frozenset[str], ids: set[int]) -> frozenset[str]:
    """The names that a block shows to be tensors, where it begins.

    Args:
        shown: those where it ends.
        ids: gets the names that are assigned.
    """
    for node in reversed(body) if isinstance(body, Sequence) else ():
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        blocks: list[Sequence[ast.stmt]] = [getattr(node, name, []) for name in ("body", "orelse", "finalbody")]
        blocks += [handler.body for handler in getattr(node, "handlers", [])]
        inside = frozenset().union(*(_follow_back(block, shown, ids) for block in blocks if block))
        if isinstance(node, ast.If):  # `if isinstance(loss, torch.Tensor):` says that it may be something else
            inside -= {name for item in ast.walk(node.test) if isinstance(item, ast.Call) for name in names_in(item)}
        shown |= inside
        own = [node] if not blocks[0] else []
        stored = [item for part in own for item in own_nodes(part) if isinstance(item, ast.Name)]
        stored = [item for item in stored if isinstance(item.ctx, ast.Store)]
        ids.update(id(item) for item in stored if item.id in shown)
        shown -= {item.id for item in stored}
        shown |= {name for part in own for item in own_nodes(part) for name in _shown(item)}
    return shown


def _shown(node: ast.AST) -> frozenset[str]:
    """The names that a call shows to be tensors."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        return frozenset()
    whose = node.func.value
    if node.func.attr in ("backward", "detach") and not node.args:
        while isinstance(whose, (ast.Call, ast.BinOp)):  # loss.mean(), scaler.scale(loss), loss / n
            if isinstance(whose, ast.BinOp):
                whose = whose.left if isinstance(whose.op, ast.Div) else ast.Constant(None)
            elif isinstance(whose.func, ast.Attribute):
                whose = whose.args[0] if whose.func.attr == "scale" and whose.args else whose.func.value
            else:
                break
        return frozenset({whose.id}) if isinstance(whose, ast.Name) else frozenset()
    helper = node.func.attr == "manual_backward" or (
        node.func.attr == "backward" and ast.unparse(whose).lower().endswith(_BACKWARD_OF)
    )
    return names_in(node.args[0]) if helper and node.args and isinstance(node.args[0], ast.Name) else frozenset()
