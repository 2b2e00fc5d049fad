"""Follows values through a file: an abstract interpreter of Python's syntax tree.

It runs the module's body and then every function's, statement by statement, with `values.Value` for values, and tells
an `Events` object what it comes across. The file is run twice silently, so that what functions return, what attributes
hold and which functions run in every step are known, and then once aloud.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

from torch_tpu.linter import syntax, values
from torch_tpu.linter.expressions import Expressions, canonical
from torch_tpu.linter.guards import catches_import, guard
from torch_tpu.linter.scopes import Class, Events, Function, Loop, Scope
from torch_tpu.linter.syntax import Definition, LoopKind
from torch_tpu.linter.values import HOST, TENSOR, UNKNOWN, Value


class Flow(Expressions):
    """One file."""

    def __init__(self, tree: ast.Module, events: Events):
        super().__init__(tree, events)

    def run(self) -> None:
        """Follows the whole file; `events` is told in the last round."""
        for self.recording in (False, False, True):
            self.scope = Scope(None)
            self._calls = []
            self.block(self.tree.body)
            while self._queue:
                self._run_function(*self._queue.pop(0))
            self._heat()

    def _heat(self) -> None:
        """Finds the functions that run in every step."""
        for function in self.functions.values():
            if function.name == "forward" and function.owner is not None and function.owner.is_module:
                function.hot = "in forward"
        for _, callee, in_loop in self._calls:
            if in_loop and not callee.hot and not self._works_in_a_loop(callee):
                callee.hot = f"in {callee.name}, which a loop calls"
        heated = {id(function) for function in self.functions.values() if function.hot}
        for caller, callee, _ in self._calls:  # and one call further, where it is still plain why
            if caller is not None and id(caller) in heated and not callee.hot and not self._works_in_a_loop(callee):
                callee.hot = f"in {callee.name}, which {caller.name} calls in every step"

    def _works_in_a_loop(self, function: Function) -> bool:
        """Whether a call of a function is many steps, and not part of one."""
        return function.name in syntax.MANY_STEPS or any(
            isinstance(item, (ast.For, ast.While)) and syntax.works(item) for item in syntax.own_nodes(function.node)
        )

    # ----------------------------------------------------------------------------------------------- statements

    def block(self, body: Sequence[ast.stmt]) -> None:
        absent = 0
        for statement in body:
            self.statement(statement)
            if isinstance(statement, ast.If) and self._leaves_on_tpu(statement):
                self.absent += 1
                absent += 1
        self.absent -= absent

    def _leaves_on_tpu(self, node: ast.If) -> bool:
        """`if not torch.cuda.is_available(): return`."""
        return syntax.leaves(node.body) and guard(self.name_of, node.test) == "other"

    def statement(self, node: ast.stmt) -> None:
        method = getattr(self, f"_{type(node).__name__}", None)
        if method is not None:
            method(node)
            return
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.eval(child)
            elif isinstance(child, ast.stmt):
                self.statement(child)

    def _Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self._tell_import(node, alias.name)
            root = alias.name.partition(".")[0]
            self.scope.names[alias.asname or root] = Value("name", name=alias.name if alias.asname else root)

    def _ImportFrom(self, node: ast.ImportFrom) -> None:
        module = node.module or ""
        for alias in node.names:
            full = f"{module}.{alias.name}" if module else alias.name
            if node.level:
                full = "." * node.level + full
            else:
                self._tell_import(node, full)
            self.scope.names[alias.asname or alias.name] = Value("name", name=canonical(full))

    def _tell_import(self, node: ast.stmt, name: str) -> None:
        if self.recording and not self.absent:
            self.events.imported(self, node, name)

    def _FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for decorator in node.decorator_list:
            self.eval(decorator)
        self.define(node, node.name)
        self.scope.names[node.name] = Value("function", name=str(id(node)))

    _AsyncFunctionDef = _FunctionDef

    def _ClassDef(self, node: ast.ClassDef) -> None:
        bases = [self.eval(base) for base in node.bases]
        for decorator in node.decorator_list:
            self.eval(decorator)
        known = self.classes.get(node.name)
        if known is None:
            is_module = syntax.has_forward(node) or any(map(self._is_module_class, bases))
            known = self.classes[node.name] = Class(node.name, is_module)
        outer, self.owner = self.owner, known
        scope, self.scope = self.scope, Scope(self.scope)
        self.block(node.body)
        inherited = self.scope.names
        self.scope, self.owner = scope, outer
        for name, value in inherited.items():
            if value.kind != "function":
                known.attributes.setdefault(name, value)
        self.scope.names[node.name] = Value("class", name=node.name)

    def _is_module_class(self, value: Value) -> bool:
        if value.kind == "class":
            return self.classes[value.name].is_module
        return value.name.startswith("torch.nn.") or value.name.endswith((".PreTrainedModel", ".LightningModule"))

    def _run_function(self, function: Function, scope: Scope, absent: int) -> None:
        node = function.node
        self.scope, self.function, self.owner = Scope(scope), function, function.owner
        self.loops, self.seldom, self.absent, self.quiet = [], 0, absent, 0
        self._bind_parameters(function)
        if isinstance(node, ast.Lambda):
            function.returns = self.eval(node.body)
        else:
            said = values.annotated(node.returns)
            function.returns = None
            self.block(node.body)
            function.returns = said or function.returns
        self.function, self.owner = None, None
        self.scope = scope

    def _bind_parameters(self, function: Function) -> None:
        node = function.node
        arguments = node.args
        every = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        in_forward = function.name == "forward" and function.owner is not None and function.owner.is_module
        tensor_methods = values.IN_FORWARD if in_forward else values.TENSOR_ONLY
        methods = syntax.called_methods(node)
        for parameter in every:
            said = values.annotated(parameter.annotation)
            if parameter.annotation is None and methods.get(parameter.arg, set()) & tensor_methods:
                said = TENSOR
            self.scope.names[parameter.arg] = said or UNKNOWN
        for extra in (arguments.vararg, arguments.kwarg):
            if extra is not None:
                self.scope.names[extra.arg] = UNKNOWN
        first = every[0].arg if every else ""
        if (
            function.owner is not None
            and first in ("self", "cls", "module")
            and function.name in function.owner.methods
        ):
            self.scope.names[first] = Value("instance", name=function.owner.name)

    def _Return(self, node: ast.Return) -> None:
        value = self.eval(node.value) if node.value is not None else HOST
        if self.function is not None:
            before = self.function.returns
            self.function.returns = value if before is None else values.merge(before, value)

    def _Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # a docstring
            self.eval(node.value)

    def _Assign(self, node: ast.Assign) -> None:
        value = self.eval_for(ast.unparse(node.targets[0]), node.value)
        for target in node.targets:
            self._tell_assignment(node, target, node.value)
            self.bind(target, value)

    def _AnnAssign(self, node: ast.AnnAssign) -> None:
        value = self.eval_for(ast.unparse(node.target), node.value) if node.value is not None else UNKNOWN
        if node.value is not None:
            self._tell_assignment(node, node.target, node.value)
        said = values.annotated(node.annotation)
        self.bind(node.target, said if said is not None and value.kind == "unknown" else value)

    def _AugAssign(self, node: ast.AugAssign) -> None:
        before = self.eval(node.target)
        value = self.eval(node.value)
        if before.is_tensor or value.is_tensor:
            self.bind(node.target, Value("tensor", values.place_of([before, value])))
        elif before.kind != "items":
            self.bind(node.target, HOST if before.kind == value.kind == "host" else UNKNOWN)

    def _tell_assignment(self, node: ast.stmt, target: ast.expr, value: ast.expr) -> None:
        if self.recording:
            self.events.assigned(self, node, target, value)

    # ------------------------------------------------------------------------------------------ branches, loops

    def _If(self, node: ast.If) -> None:
        what = self.guarded(node.test)
        if what == "cuda":
            self._tell_choice(node)
        names = dict(self.scope.names)
        seldom = self._is_seldom(node.test) or syntax.ends_loop(node.body, bool(self.loops))
        self._branch(node.body, absent=what == "cuda", seldom=seldom)
        after, self.scope.names = self.scope.names, names
        self._branch(node.orelse, absent=what == "other", seldom=syntax.ends_loop(node.orelse, bool(self.loops)))
        if what == "cuda":  # what only that branch defines is asked for where it ran
            self.scope.names = after | self.scope.names
            return
        if syntax.leaves(node.body):
            return
        keep = syntax.leaves(node.orelse) or what == "other"
        self.scope.names = after if keep else self._join(after, self.scope.names)

    def _is_seldom(self, test: ast.expr) -> bool:
        counters = [syntax.targets_of(loop.node) for loop in self.loops if loop.kind == "steps"]
        return syntax.is_every_so_often(test) or any(syntax.is_one_turn(test, targets) for targets in counters)

    def _branch(self, body: Sequence[ast.stmt], *, absent: bool, seldom: bool) -> None:
        self.absent += absent
        self.seldom += seldom
        self.block(body)
        self.absent -= absent
        self.seldom -= seldom

    def _join(self, a: dict[str, Value], b: dict[str, Value]) -> dict[str, Value]:
        """What is known where two ways meet; a name that only one of them has is what that one says."""
        return a | b | {name: values.merge(a[name], b[name]) for name in a.keys() & b.keys()}

    def _Try(self, node: ast.Try) -> None:
        optional = any(catches_import(handler) for handler in node.handlers)
        only_imports = optional and any(isinstance(item, (ast.Import, ast.ImportFrom)) for item in node.body)
        self._branch(node.body, absent=only_imports, seldom=False)
        for handler in node.handlers:
            if handler.name:
                self.scope.names[handler.name] = HOST
            self._branch(handler.body, absent=only_imports, seldom=True)
        self.block(node.orelse)
        self.block(node.finalbody)

    def _With(self, node: ast.With | ast.AsyncWith) -> None:
        before = self.default_place
        for item in node.items:
            value = self.eval(item.context_expr)
            if isinstance(item.context_expr, ast.Call) and self.name_of(item.context_expr.func) == "torch.device":
                self.default_place = "unknown"
            if item.optional_vars is not None:
                self.bind(item.optional_vars, value)
        self.block(node.body)
        self.default_place = before

    _AsyncWith = _With

    def _Assert(self, node: ast.Assert) -> None:
        self.decide(node.test)

    def _For(self, node: ast.For | ast.AsyncFor) -> None:
        self.bind(node.target, self.element(node.iter, self.eval(node.iter)))
        self._loop(node, syntax.loop_kind(self._definition_of, node, node.iter))

    _AsyncFor = _For

    def _While(self, node: ast.While) -> None:
        kind = syntax.loop_kind(self._definition_of, node, None)
        self.loops.append(Loop(node, kind, syntax.assigned_in(node)))
        self.decide(node.test)
        self.loops.pop()
        self._loop(node, kind)

    def _loop(self, node: ast.For | ast.AsyncFor | ast.While, kind: LoopKind) -> None:
        before = dict(self.scope.names)
        seldom, self.seldom = self.seldom, 0 if kind == "steps" else self.seldom
        self.loops.append(Loop(node, kind, syntax.assigned_in(node)))
        if self.recording:  # what the first turn leaves is what the second one finds
            self.recording = False
            self.block(node.body)
            self.scope.names = self._join(before, self.scope.names)
            if isinstance(node, (ast.For, ast.AsyncFor)):
                self.bind(node.target, self.element(node.iter, self.eval(node.iter)))
            self.recording = True
        self.block(node.body)
        self.scope.names = self._join(before, self.scope.names)
        self.loops.pop()
        self.seldom = seldom
        self.block(node.orelse)

    def _definition_of(self, node: ast.expr) -> Definition | None:
        value = self.silent(node)
        known = self.functions.get(int(value.name)) if value.kind == "function" else None
        return known.node if known is not None else None
