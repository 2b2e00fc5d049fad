"""Several StableHLO programs as one, so that a compiler is asked once: half of the time goes into starting it.

The programs stay functions of their own, with their own arguments and results: nothing of one depends on another.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_HEAD = re.compile(r"module @\S+ \{\nfunc\.func public @main\((.*)\) -> (.*) \{\n")
_ALIAS = re.compile(r" \{tf\.aliasing_output = \d+ : i32\}")
_TYPE = re.compile(r"tensor<(?:[^<>]|<[^>]*>)*>")


def join(texts: Sequence[str]) -> str:
    """One module whose main function calls the main functions of modules.

    Raises:
        ValueError: a module is not of the form that `hlo.Function.module` writes, with one function.
    """
    functions, arguments, calls, names, types = [], [], [], [], []
    for index, text in enumerate(texts):
        head = _HEAD.match(text)
        if head is None or text.count("func.func") != 1:
            raise ValueError(f"not a module with one function: {text[:100]}")
        given, returned = _ALIAS.sub("", head[1]), head[2]
        body = text[head.end() :].rstrip().removesuffix("}").rstrip()
        functions.append(f"func.func private @part_{index}({given}) -> {returned} {{\n{body}")
        taken, made = _TYPE.findall(given), _TYPE.findall(returned)
        operands = [f"%a{index}_{place}" for place in range(len(taken))]
        arguments += [f"{name}: {kind}" for name, kind in zip(operands, taken, strict=True)]
        results = f"%r{index}:{len(made)} = " if made else ""
        signature = f"({', '.join(taken)}) -> ({', '.join(made)})"
        calls.append(f"{results}func.call @part_{index}({', '.join(operands)}) : {signature}")
        names += [f"%r{index}#{place}" for place in range(len(made))]
        types += made
    main = f"func.func public @main({', '.join(arguments)}) -> ({', '.join(types)}) {{"
    end = f"return {', '.join(names)} : {', '.join(types)}" if types else "return"
    return "\n".join(["module @joined {", *functions, main, *calls, end, "}", "}"])
