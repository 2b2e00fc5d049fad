"""What is known of an expression's value, and telling `Events` of what it does. `flow.py` has the statements."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

from torch_tpu.linter import syntax, values
from torch_tpu.linter.guards import guard, mentions_tpu
from torch_tpu.linter.scopes import Call, Class, Events, Function, Loop, Scope
from torch_tpu.linter.syntax import Definition
from torch_tpu.linter.values import FROM_LOADER, HOST, TENSOR, UNKNOWN, Value

_RETURN_SELF = frozenset({
    "to", "cuda", "cpu", "eval", "train", "half", "float", "bfloat16", "double", "requires_grad_", "share_memory",
})  # fmt: skip
"""Methods of a module that return it."""


class Expressions:
    """Evaluates the expressions of one file, in the scope and the loops that it is in."""

    def __init__(self, tree: ast.Module, events: Events):
        self.tree = tree
        self.events = events
        self.recording = False
        self.functions: dict[int, Function] = {}
        self.classes: dict[str, Class] = {}
        self.scope = Scope(None)
        self.function: Function | None = None
        self.owner: Class | None = None
        self.loops: list[Loop] = []
        self.seldom = 0
        """Inside what does not run in every turn of the loop, or of the function."""
        self.absent = 0
        """Inside what does not run on a TPU."""
        self.quiet = 0
        """Inside what makes a string no device: a comparison, a list of choices."""
        self.role = ""
        """What the expression is for: the parameter or the variable that gets it, or the function that it is given to."""
        self.default_place: values.Place = "host"
        self._queue: list[tuple[Function, Scope, int]] = []
        self._calls: list[tuple[Function | None, Function, bool]] = []

    # ---------------------------------------------------------------------------------------------------- where

    def step(self, *, collections: bool = False) -> str:
        """Where this runs in every step, in words; empty if it does not.

        Args:
            collections: loops over a collection count too.
        """
        if self.seldom or self.absent:
            return ""
        kinds = ("steps", "collection") if collections else ("steps",)
        for loop in reversed(self.loops):
            if loop.kind in kinds:
                return "in a loop"
            if loop.kind == "outer":
                break
        return self.function.hot if self.function is not None else ""

    def changing(self) -> frozenset[str]:
        """The names that change in the loops around this."""
        return frozenset().union(*(loop.assigned for loop in self.loops))

    # ---------------------------------------------------------------------------------------------- expressions

    def eval(self, node: ast.expr) -> Value:
        """What is known of an expression's value."""
        method = getattr(self, f"_{type(node).__name__}", None)
        if method is not None:
            result: Value = method(node)
            return result
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.eval(child)
        return UNKNOWN

    def eval_for(self, role: str, node: ast.expr) -> Value:
        """`eval`, of what something named `role` gets."""
        before, self.role = self.role, role
        value = self.eval(node)
        self.role = before
        return value

    def _Constant(self, node: ast.Constant) -> Value:
        if isinstance(node.value, str):
            self._tell_text(node, node.value)
        return Value("host", constant=node.value)

    def _JoinedStr(self, node: ast.JoinedStr) -> Value:
        first = node.values[0] if node.values else None
        if isinstance(first, ast.Constant) and isinstance(first.value, str):
            self._tell_text(node, f"{first.value}0" if len(node.values) > 1 else first.value)
        for item in node.values:
            if isinstance(item, ast.FormattedValue):
                self.eval(item.value)
        return HOST

    def _tell_text(self, node: ast.expr, text: str) -> None:
        if self.recording and not self.quiet and not self.absent:
            self.events.text(self, node, text)

    def _Name(self, node: ast.Name) -> Value:
        value = self.scope.find(node.id)
        if value is None:
            return UNKNOWN
        if value.kind == "name":
            self._tell_use(node, value.name)
        return value

    def _tell_use(self, node: ast.expr, name: str) -> None:
        if self.recording and not self.absent:
            self.events.used(self, node, name)

    def name_of(self, node: ast.expr) -> str:
        """The full name of something imported; "" for all else."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        root = self.scope.find(node.id)
        if root is None or root.kind != "name":
            return ""
        return canonical(".".join([root.name, *reversed(parts)]))

    def _Attribute(self, node: ast.Attribute) -> Value:
        name = self.name_of(node)
        if name:
            self._tell_use(node, name)
            return Value("name", name=name)
        return self.attribute(self.eval(node.value), node.attr)

    def attribute(self, base: Value, name: str) -> Value:
        if base.is_tensor:
            if name == "device":
                return Value("host", constant="cpu" if base.place == "host" else None)
            return HOST if values.is_host_attribute(name) else replace(base, constant=None)
        known = self.classes.get(base.name) if base.kind in ("instance", "module") else None
        if known is not None:
            if name in known.methods:
                return Value("function", name=str(id(known.methods[name].node)))
            return known.attributes.get(name, UNKNOWN)
        if base.kind == "module" and name in ("weight", "bias"):
            return values.ON_DEVICE
        if base.is_output and values.is_output_of_model(name):
            return Value("tensor", base.place)
        return HOST if base.kind == "host" else Value(place=base.place) if base.kind == "unknown" else UNKNOWN

    def _Subscript(self, node: ast.Subscript) -> Value:
        base = self.eval(node.value)
        self.quiet += 1
        index = self.eval(node.slice)
        self.quiet -= 1
        if base.is_tensor:
            if self.recording:
                self.events.indexed(self, node, base, index)
            return replace(base, constant=None)
        if base.kind == "items":
            place = index.constant
            if isinstance(place, int) and -len(base.items) <= place < len(base.items):
                return base.items[place]
        if base.kind == "module":
            return base
        if base.is_output and isinstance(index.constant, str):
            return self.attribute(base, index.constant)
        return base.element() if base.kind in ("items", "many", "host", "unknown") else UNKNOWN

    def _Tuple(self, node: ast.Tuple | ast.List) -> Value:
        self.quiet += 1
        items = tuple(self.eval(item) for item in node.elts)
        self.quiet -= 1
        return Value("items", items=items)

    _List = _Tuple

    def _Set(self, node: ast.Set) -> Value:
        self.quiet += 1
        for item in node.elts:
            self.eval(item)
        self.quiet -= 1
        return UNKNOWN

    def _Dict(self, node: ast.Dict) -> Value:
        self.quiet += 1
        for key in node.keys:
            if key is not None:
                self.eval(key)
        self.quiet -= 1
        for key, value in zip(node.keys, node.values):
            self.eval_for(str(key.value) if isinstance(key, ast.Constant) else "", value)
        return UNKNOWN

    def _Starred(self, node: ast.Starred) -> Value:
        self.eval(node.value)
        return UNKNOWN

    def _BinOp(self, node: ast.BinOp) -> Value:
        left, right = self.eval(node.left), self.eval(node.right)
        if left.is_tensor or right.is_tensor:
            both = left.is_mask and right.is_mask and isinstance(node.op, (ast.BitAnd, ast.BitOr, ast.BitXor))
            return Value("tensor", values.place_of([left, right]), both, left.is_wide or right.is_wide)
        if isinstance(left.constant, int) and isinstance(right.constant, int):
            return Value("host", constant=_computed(node.op, left.constant, right.constant))
        if left.kind == right.kind == "items" and isinstance(node.op, ast.Add):
            return Value("items", items=left.items + right.items)
        return HOST if left.kind == right.kind == "host" else UNKNOWN

    def _UnaryOp(self, node: ast.UnaryOp) -> Value:
        if isinstance(node.op, ast.Not):
            return self.decide(node)
        value = self.eval(node.operand)
        if isinstance(node.op, ast.USub) and isinstance(value.constant, (int, float)):
            return Value("host", constant=-value.constant)
        return value if value.is_tensor else HOST if value.kind == "host" else UNKNOWN

    def _BoolOp(self, node: ast.BoolOp) -> Value:
        for item in node.values[:-1]:
            self.decide(item)
        # `get_current_accelerator() or "cuda"`
        absent = isinstance(node.op, ast.Or) and mentions_tpu(node.values[0])
        self.absent += absent
        value = self.eval(node.values[-1])
        self.absent -= absent
        return value

    def _Compare(self, node: ast.Compare) -> Value:
        self.quiet += 1
        sides = [self.eval(side) for side in (node.left, *node.comparators)]
        self.quiet -= 1
        if any(isinstance(op, (ast.Is, ast.IsNot, ast.In, ast.NotIn)) for op in node.ops):
            return HOST
        if any(side.is_tensor for side in sides):
            return Value("tensor", values.place_of(sides), True)
        places = {side.place for side in sides if side.kind == "unknown"}
        return HOST if not places else Value(place="host" if places == {"host"} else "unknown")

    def _IfExp(self, node: ast.IfExp) -> Value:
        what = self.guarded(node.test)
        if what == "cuda":
            self._tell_choice(node)
        self.absent += what == "cuda"
        body = self.eval(node.body)
        self.absent += (what == "other") - (what == "cuda")
        other = self.eval(node.orelse)
        self.absent -= what == "other"
        return values.merge(body, other)

    def guarded(self, test: ast.expr) -> Literal["cuda", "other", ""]:
        """Evaluates a condition, and says what it says about where the code runs: see `guard`."""
        what = guard(self.name_of, test)
        self.absent += what != ""  # to ask whether CUDA is there is no fault
        self.decide(test)
        self.absent -= what != ""
        return what

    def _tell_choice(self, node: ast.If | ast.IfExp) -> None:
        if self.recording and not self.absent:
            self.events.chosen(self, node)

    def _Lambda(self, node: ast.Lambda) -> Value:
        self.define(node, "lambda")
        return Value("function", name=str(id(node)))

    def _NamedExpr(self, node: ast.NamedExpr) -> Value:
        value = self.eval(node.value)
        self.bind(node.target, value)
        return value

    def _ListComp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Value:
        scope, self.scope = self.scope, Scope(self.scope)
        num_loops = len(self.loops)
        for generator in node.generators:
            iterated = self.eval(generator.iter)
            self.bind(generator.target, self.element(generator.iter, iterated))
            few = isinstance(generator.iter, (ast.Tuple, ast.List, ast.Set, ast.Dict))
            self.loops.append(Loop(node, "few" if few else "collection", syntax.names_in(generator.target)))
            for condition in generator.ifs:
                self.decide(condition)
        if isinstance(node, ast.DictComp):
            self.eval(node.key)
            value = self.eval(node.value)
        else:
            value = self.eval(node.elt)
        del self.loops[num_loops:]
        self.scope = scope
        return Value("many", items=(value,)) if not isinstance(node, ast.DictComp) else UNKNOWN

    _SetComp = _GeneratorExp = _DictComp = _ListComp

    # ------------------------------------------------------------------------------------------------------ calls

    def _Call(self, node: ast.Call) -> Value:
        receiver, method = None, ""
        if isinstance(node.func, ast.Attribute) and not self.name_of(node.func):
            receiver, method = self.eval(node.func.value), node.func.attr
            callee = self.attribute(receiver, method)
        else:
            callee = self.eval(node.func)
        silent = method in ("startswith", "endswith")
        self.quiet += silent
        called = method or callee.name.rpartition(".")[2]
        args = tuple(self.eval_for(called, arg) for arg in node.args)
        # The default of an argument of the command line is what that argument is for.
        option = str(args[0].constant) if method == "add_argument" and args else ""
        keywords = {item.arg or "**": self.eval_for(option or item.arg or "", item.value) for item in node.keywords}
        self.quiet -= silent
        result = self._result(node, callee, receiver, method, args, keywords)
        if result.kind == "unknown" and (args or keywords) and syntax.is_model(node.func):
            result = replace(result, is_output=True)
        if self.recording:
            self.events.called(self, node, Call(callee, receiver, method, args, keywords, result))
        return result

    def _result(
        self,
        node: ast.Call,
        callee: Value,
        receiver: Value | None,
        method: str,
        args: tuple[Value, ...],
        keywords: Mapping[str, Value],
    ) -> Value:
        if callee.kind == "function":
            return self._called_function(self.functions.get(int(callee.name)))
        if callee.kind == "class":
            made = self.classes[callee.name]
            self._called_function(made.methods.get("__init__"))
            return Value("module" if made.is_module else "instance", name=callee.name)
        if callee.kind == "name":
            if callee.name == "torch.set_default_device":
                self.default_place = "unknown"
            return values.call_result(callee.name, args, keywords, default_place=self.default_place)
        if callee.kind in ("module", "instance"):
            known = self.classes.get(callee.name)
            if known is None:
                return values.module_result(callee, args)
            entry = known.methods.get("forward" if known.is_module else "__call__")
            return self._called_function(entry) if entry is not None else UNKNOWN
        if receiver is not None:
            return self._method(receiver, method, args, keywords)
        return _builtin(node, args)

    def _method(self, receiver: Value, method: str, args: tuple[Value, ...], keywords: Mapping[str, Value]) -> Value:
        if method in ("register_buffer", "register_parameter") and receiver.kind == "instance":
            if args and isinstance(args[0].constant, str) and receiver.name in self.classes:
                self.classes[receiver.name].attributes[args[0].constant] = TENSOR
            return HOST
        if receiver.kind in ("instance", "module") and method in _RETURN_SELF:
            return receiver
        if method == "parameters":
            return Value("many", items=(values.ON_DEVICE,))
        if receiver.kind == "host" and method in ("to", "item", "tolist"):
            return HOST
        if receiver.kind in ("unknown", "tensor"):
            return values.method_result(receiver, method, args, keywords)
        return HOST if receiver.kind == "host" else UNKNOWN

    def _called_function(self, function: Function | None) -> Value:
        if function is None:
            return UNKNOWN
        in_loop = not self.seldom and any(loop.kind == "steps" for loop in self.loops[-1:])
        if not self.seldom:
            self._calls.append((self.function, function, in_loop))
        returned = function.returns or UNKNOWN
        if isinstance(function.node, (ast.FunctionDef, ast.AsyncFunctionDef)) and syntax.is_generator(function.node):
            return Value("many", items=(FROM_LOADER,))
        return returned

    def element(self, node: ast.expr, iterated: Value) -> Value:
        """What a loop's target is in each turn."""
        if not isinstance(node, ast.Call):
            return iterated.element()
        callee = node.func.id if isinstance(node.func, ast.Name) else ""
        inner = [self.element(arg, self.silent(arg)) for arg in node.args]
        if callee == "range":
            return HOST
        if callee == "enumerate" and inner:
            return Value("items", items=(HOST, inner[0]))
        if callee == "zip" and inner:
            return Value("items", items=tuple(inner))
        if callee in ("tqdm", "trange", "reversed", "sorted", "list", "iter", "tuple") and inner:
            return inner[0]
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if method == "parameters" or method == "buffers":
            return values.ON_DEVICE
        if method in ("named_parameters", "named_buffers"):
            return Value("items", items=(HOST, values.ON_DEVICE))
        return iterated.element()

    def bind(self, target: ast.expr, value: Value) -> None:
        """Assigns to a name, an attribute of `self`, or to several."""
        if isinstance(target, ast.Name):
            body = self.tree if self.function is None else self.function.node
            if value.kind == "unknown" and id(target) in syntax.shown_to_be_tensors(body):
                value = Value("tensor", value.place)
            self.scope.names[target.id] = value
        elif isinstance(target, (ast.Tuple, ast.List)):
            for index, item in enumerate(target.elts):
                if isinstance(item, ast.Starred):
                    self.bind(item.value, UNKNOWN)
                elif value.kind == "items" and len(value.items) == len(target.elts):
                    self.bind(item, value.items[index])
                else:
                    self.bind(item, value.element())
        elif isinstance(target, ast.Attribute):
            if self.name_of(target):
                self.eval(target)
                return
            base = self.eval(target.value)
            if base.kind == "instance" and base.name in self.classes:
                attributes = self.classes[base.name].attributes
                before = attributes.get(target.attr)
                attributes[target.attr] = value if before is None else widen(before, value)
        elif isinstance(target, ast.Subscript):
            self.eval(target.value)
            self.eval(target.slice)

    def define(self, node: Definition, name: str) -> Function:
        """A function is defined: its defaults are evaluated now, its body after all else."""
        arguments = node.args
        positional = [*arguments.posonlyargs, *arguments.args]
        pairs = list(zip(positional[len(positional) - len(arguments.defaults) :], arguments.defaults))
        pairs += [(arg, default) for arg, default in zip(arguments.kwonlyargs, arguments.kw_defaults) if default]
        for parameter, default in pairs:
            self.eval_for(parameter.arg, default)
        function = self.functions.get(id(node))
        if function is None:
            function = self.functions[id(node)] = Function(node, self.owner, name)
        if self.owner is not None and self.function is None:
            self.owner.methods[name] = function
        self._queue.append((function, self.scope, self.absent))
        return function

    def silent(self, node: ast.expr) -> Value:
        recording, self.recording = self.recording, False
        value = self.eval(node)
        self.recording = recording
        return value

    def decide(self, node: ast.expr) -> Value:
        """Evaluates something that Python takes the truth of."""
        if isinstance(node, ast.BoolOp):
            for item in node.values:
                self.decide(item)
            return HOST
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            self.decide(node.operand)
            return HOST
        value = self.eval(node)
        if self.recording:
            self.events.decided(self, node, value)
        return value


def _builtin(node: ast.Call, args: Sequence[Value]) -> Value:
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if name in ("float", "int", "bool", "len", "str", "isinstance", "range", "round", "hasattr", "id", "repr", "type"):
        return HOST
    if name in ("sum", "min", "max", "abs", "next", "getattr") and args:
        if name == "abs":
            return args[0]
        element = args[0].element()
        return element if element.is_tensor else UNKNOWN
    if name in ("list", "tuple", "sorted", "reversed", "iter") and args:
        return args[0] if args[0].kind in ("items", "many") else UNKNOWN
    return UNKNOWN


def widen(before: Value, value: Value) -> Value:
    """An attribute that is None at first is what is assigned later."""
    if before == Value("host") and value.kind != "host":
        return value
    return before if value.constant is None and value == HOST else values.merge(before, value)


def canonical(name: str) -> str:
    """The name that tables use."""
    return name.replace("torch.functional.", "torch.") if name.startswith("torch.functional.") else name


def _computed(op: ast.operator, a: int, b: int) -> int | None:
    if isinstance(op, ast.Add):
        return a + b
    if isinstance(op, ast.Sub):
        return a - b
    if isinstance(op, ast.Mult):
        return a * b
    return a // b if isinstance(op, ast.FloorDiv) and b else None
