"""Several StableHLO programs as one, so that a compiler is asked once: half of the time goes into starting it.

The programs stay functions of their own, with their own arguments and results: nothing of one depends on another.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_HEAD = re.compile(r"module @\S+ \{\n(func\.func public @main\((.*)\) -> (.*) \{\n)")
_ALIAS = re.compile(r" \{tf\.aliasing_output = \d+ : i32\}")
_TYPE = re.compile(r"tensor<(?:[^<>]|<[^>]*>)*>")
_NAME = re.compile(r"%arg\d+")
_ONLY_CALL = re.compile(
    r"func\.func public @main\((?P<arguments>.*)\) -> .* \{\n"
    r"(?P<made>%1)(?::\d+)? = func\.call @(?P<name>\w+)\((?P<given>.*)\) : \(.*\n"
    r"return (?P<returned>.*) : .*\n\}\n"
    r"func\.func private @(?P=name)\((?P=arguments)\) -> (?P<rest>(?:(?!func\.func)[\s\S])*)"
)
_FUNCTION = re.compile(r"func\.func (?:public|private) @(\w+)\(")


def join(texts: Sequence[str]) -> str:
    """One module whose main function calls the main functions of modules.

    Raises:
        ValueError: a module is not of the form that `hlo.Function.module` writes.
    """
    functions, arguments, calls, names, types = [], [], [], [], []
    for index, text in enumerate(texts):
        head = _HEAD.match(text)
        if head is None:
            raise ValueError(f"not a module whose main function comes first: {text[:100]}")
        functions.append(_renamed(_ALIAS.sub("", text[head.start(1) :]), f"part_{index}_"))
        taken, made = _TYPE.findall(head[2]), _TYPE.findall(head[3])
        operands = [f"%a{index}_{place}" for place in range(len(taken))]
        arguments += [f"{name}: {kind}" for name, kind in zip(operands, taken, strict=True)]
        results = f"%r{index}:{len(made)} = " if made else ""
        signature = f"({', '.join(taken)}) -> ({', '.join(made)})"
        calls.append(f"{results}func.call @part_{index}_main({', '.join(operands)}) : {signature}")
        names += [f"%r{index}#{place}" for place in range(len(made))]
        types += made
    main = f"func.func public @main({', '.join(arguments)}) -> ({', '.join(types)}) {{"
    end = f"return {', '.join(names)} : {', '.join(types)}" if types else "return"
    return "\n".join(["module @joined {", *functions, main, *calls, end, "}", "}"])


def body(text: str) -> str:
    """What a module does, without its name: the same for one whose main function only calls its other function."""
    functions = text.partition("\n")[2]
    found = _ONLY_CALL.fullmatch(functions)
    if found is None or found["given"] != ", ".join(_NAME.findall(found["arguments"])):
        return functions
    if found["returned"].split(", ") not in ([found["made"]], [f"%1#{i}" for i in range(found["returned"].count("#"))]):
        return functions
    return f"func.func public @main({found['arguments']}) -> {found['rest']}"


def _renamed(functions: str, prefix: str) -> str:
    """The functions of a module, all of them private, with names that no other module has."""
    own = "|".join(_FUNCTION.findall(functions))
    body = functions.rstrip().removesuffix("}").rstrip().replace("func.func public", "func.func private", 1)
    return re.sub(rf"@({own})\b", rf"@{prefix}\1", body)
