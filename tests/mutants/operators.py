"""The mutation operators of `random_mutants`: small changes on the syntax tree.

Only the bodies of functions are changed. Assertions, annotations, log lines and the texts of errors
are left alone, since no test should depend on them; `assert_never` and `zip(…, strict=True)` are
assertions too. The arguments of `min` and `max` are not swapped, since their order has no meaning.
"""

import ast
import copy
import difflib
import marshal
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from types import CodeType

Function = ast.FunctionDef | ast.AsyncFunctionDef

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
TWINS = {"min": "max", "max": "min", "any": "all", "all": "any"}
NAMES = (ast.Name, ast.Attribute)
LOGGERS = {"log", "_log", "logger", "warnings"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One mutant: `function` is the qualified name, `before` and `after` are the lines of the
    function that differ, as `ast.unparse` writes them, so that they don't depend on layout."""

    file: str
    function: str
    line: int
    operator: str
    before: str
    after: str
    source: str  # the whole module with the change

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Identifies the mutant while the code around it moves."""
        return self.file, self.function, self.before, self.after


@dataclass(frozen=True, slots=True)
class Site:
    """A place where something can be changed: the n-th node of a function, in `ast.walk`'s order,
    and which of the alternatives there."""

    function: str
    function_index: int  # of the module's functions, since a property and its setter share a name
    line: int
    node_index: int
    alternative: int


def functions(tree: ast.Module) -> Iterator[tuple[str, Function]]:
    """The outermost functions of a module, with their qualified names; nested ones belong to
    these."""
    pending: list[tuple[str, ast.stmt]] = [("", each) for each in reversed(tree.body)]
    while pending:
        prefix, node = pending.pop()
        if isinstance(node, Function):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            pending += [(f"{prefix}{node.name}.", each) for each in reversed(node.body)]


def sites(source: str) -> list[Site]:
    """Every place of a module with each of its alternatives."""
    found = []
    for index, (name, function) in enumerate(functions(_parsed(source))):
        skipped = _skipped(function)
        for place, node in enumerate(ast.walk(function)):
            if id(node) in skipped:
                continue
            line = getattr(node, "lineno", function.lineno)
            count = sum(1 for _ in _alternatives(node, function))
            found += [Site(name, index, line, place, number) for number in range(count)]
    return found


def mutate(file: str, source: str, site: Site) -> Change | None:
    """The mutant of that place; None if it compiles to the same code or not at all."""
    original = _original(source, site.function_index)
    tree, function = original.parsed()
    node = list(ast.walk(function))[site.node_index]
    operator, instead = list(_alternatives(node, function))[site.alternative]
    # Replaced from its parent: the nodes of the alternative may hold the node itself.
    _Replacing(node, instead).visit(function)
    ast.fix_missing_locations(function)
    try:
        changed = _compiled(function)
    except (SyntaxError, ValueError):
        return None
    if same_meaning(original.code, changed):
        return None
    removed, added = _difference(original.unparsed, ast.unparse(function))
    return Change(
        file=file, function=original.name, line=site.line, operator=operator,
        before=removed, after=added, source=original.module_with(tree),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Original:
    """A function without a change. Its text is parsed for each mutant, not that of its module."""

    name: str
    before: str  # the text of the module before the function
    text: str  # the function with its decorators, indented, in a class for each class around it
    behind: str
    code: CodeType
    unparsed: str

    @property
    def depth(self) -> int:
        return self.name.count(".")

    def parsed(self) -> tuple[ast.Module, Function]:
        """A new tree of `text`, and the function in it."""
        tree = ast.parse(self.text)
        [(_, function)] = functions(tree)
        return tree, function

    def module_with(self, tree: ast.Module) -> str:
        """The text of the module with the function of this tree."""
        *_, text = ast.unparse(tree).split("\n", self.depth)
        return f"{self.before}{text}\n{self.behind}"


@cache
def _original(source: str, index: int) -> _Original:
    name, function = list(functions(_parsed(source)))[index]
    lines = [f"{line}\n" for line in source.split("\n")]
    start = min([function.lineno, *(each.lineno for each in function.decorator_list)]) - 1
    classes = [f"{'    ' * depth}class C{depth}:\n" for depth in range(name.count("."))]
    return _Original(
        name=name,
        before="".join(lines[:start]),
        text="".join([*classes, *lines[start : function.end_lineno]]),
        behind="".join(lines[function.end_lineno :]),
        code=_compiled(function),
        unparsed=ast.unparse(function),
    )


@cache
def _parsed(source: str) -> ast.Module:
    """The tree of a module; it is not changed."""
    return ast.parse(source)


def _compiled(function: Function) -> CodeType:
    """The function by itself, which takes a tenth of the time of its module."""
    return compile(ast.Module([function], []), "function", "exec")


def same_meaning(first: CodeType, second: CodeType) -> bool:
    """Whether both are the same instructions, wherever they stand in the file."""
    return marshal.dumps(_without_places(first)) == marshal.dumps(_without_places(second))


def _without_places(code: CodeType) -> CodeType:
    constants = tuple(
        _without_places(each) if isinstance(each, CodeType) else each for each in code.co_consts
    )
    return code.replace(co_consts=constants, co_linetable=b"", co_firstlineno=1)


def _difference(before: str, after: str) -> tuple[str, str]:
    lines = list(difflib.ndiff(before.splitlines(), after.splitlines()))
    removed = [line[2:].strip() for line in lines if line.startswith("- ")]
    added = [line[2:].strip() for line in lines if line.startswith("+ ")]
    if removed:
        # A statement may stand in a function more than once: the second is told from the first.
        first = next(at for at, line in enumerate(lines) if line.startswith("- "))
        earlier = [line[2:].strip() for line in lines[:first] if not line.startswith("?")]
        if count := earlier.count(removed[0]):
            removed[0] += f"  # number {count + 1} of the function"
    return "\n".join(removed), "\n".join(added)


class _Replacing(ast.NodeTransformer):
    def __init__(self, node: ast.AST, instead: ast.AST | Sequence[ast.stmt]) -> None:
        self._node, self._instead = node, instead

    def visit(self, node: ast.AST) -> ast.AST | Sequence[ast.stmt]:
        if node is self._node:
            return self._instead
        return self.generic_visit(node)


def _skipped(function: Function) -> set[int]:
    """The nodes at which nothing is changed."""
    skipped = {id(function)}
    for node in ast.walk(function):
        for part in _left_alone(node):
            skipped.update(id(each) for each in ast.walk(part))
    return skipped


def _left_alone(node: ast.AST) -> Sequence[ast.AST]:
    """The parts of a node at which nothing is changed; it may be the node itself."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            returned = [] if node.returns is None else [node.returns]
            return [node.args, *returned, *node.decorator_list]
        case ast.AnnAssign(annotation=part) | ast.Raise(exc=ast.Call() as part):
            return [part]
        case ast.Assert() | ast.JoinedStr() | ast.keyword(arg="strict"):
            return [node]
        case ast.Expr() if _is_without_effect(node):
            return [node]
        case ast.If(orelse=[]) if all(map(_is_without_effect, node.body)):
            return [node]
        case _:
            return []


def _is_without_effect(node: ast.stmt) -> bool:
    match node:
        case ast.Expr(value=ast.Call(func=ast.Name(id="assert_never"))):
            return True
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))):
            return name in LOGGERS
        case _:
            return False


Alternative = tuple[str, ast.AST | Sequence[ast.stmt]]


def _alternatives(node: ast.AST, function: Function) -> Iterator[Alternative]:
    """What can stand in the place of this node, each with the operator's name."""
    if isinstance(node, ast.stmt):
        yield from _statements(node, function)
    elif isinstance(node, ast.expr):
        yield from _expressions(node)
    elif isinstance(node, ast.excepthandler):
        if not (len(node.body) == 1 and isinstance(node.body[0], ast.Raise)):
            handler = copy.copy(node)
            handler.body = [ast.Raise()]
            yield "handler removed", handler
    elif isinstance(node, ast.comprehension) and node.ifs:
        unfiltered = copy.copy(node)
        unfiltered.ifs = []
        yield "filter removed", unfiltered


def _statements(node: ast.stmt, function: Function) -> Iterator[Alternative]:
    if _is_removable(node, function):
        yield "removed", ast.Pass()
    elif isinstance(node, ast.Return):
        yield from _returns(node, function)
    else:
        yield from _compounds(node)


def _is_removable(node: ast.stmt, function: Function) -> bool:
    match node:
        case ast.Expr(value=ast.Call() | ast.Await() | ast.YieldFrom()):
            return True
        case ast.Assign():
            return _may_be_left_out(node, function)
        case ast.Raise():
            return node.exc is not None
        case _:
            return isinstance(node, ast.AugAssign | ast.Delete | ast.Continue | ast.Break)


def _compounds(node: ast.stmt) -> Iterator[Alternative]:
    match node:
        case ast.If():
            yield "branch removed", node.orelse or [ast.Pass()]
            yield "condition ignored", node.body
        case ast.While():
            yield "looked at once only", ast.If(node.test, node.body, [])
        case ast.Try(finalbody=[_, *_]):
            yield "finally removed", _without_finally(node)
        case ast.With() | ast.AsyncWith():
            if all(item.optional_vars is None for item in node.items):
                yield "context left out", node.body
        case _:
            pass


def _without_finally(node: ast.Try) -> Sequence[ast.stmt]:
    if not node.handlers:
        return node.body
    return [ast.Try(node.body, node.handlers, node.orelse, [])]


def _may_be_left_out(node: ast.Assign, function: Function) -> bool:
    """Whether what reads it afterwards finds another value, and no unbound name."""
    names = [each.id for target in node.targets for each in ast.walk(target)
             if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)]  # fmt: skip
    if not names:
        return True  # an attribute, or an item
    bound = [argument.arg for argument in ast.walk(function) if isinstance(argument, ast.arg)]
    bound += [each.id for each in ast.walk(function)
              if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)]  # fmt: skip
    return all(bound.count(name) > 1 for name in names)


def _returns(node: ast.Return, function: Function) -> Iterator[Alternative]:
    if node is not function.body[-1]:
        yield "return removed", ast.Pass()
    match function.returns, node.value:
        case _, None | ast.Constant():
            pass
        case ast.Name(id="bool"), value:
            yield "answer negated", ast.Return(ast.UnaryOp(ast.Not(), value))
        case _:
            yield "answer replaced by None", ast.Return(ast.Constant(None))


def _expressions(node: ast.expr) -> Iterator[Alternative]:
    match node:
        case ast.Compare(ops=[operation]):
            for instead in COMPARISONS[type(operation)]:
                yield "comparison", ast.Compare(node.left, [instead()], node.comparators)
        case ast.BoolOp():
            yield from _connections(node)
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield "negation removed", node.operand
        case ast.IfExp():
            yield "first choice always", node.body
            yield "second choice always", node.orelse
        case ast.Call():
            yield from _calls(node)
        case _:
            yield from _numbers(node)


def _numbers(node: ast.expr) -> Iterator[Alternative]:
    match node:
        case ast.BinOp() if type(node.op) in ARITHMETIC and not _is_text(node):
            operation = ARITHMETIC[type(node.op)]()
            yield "arithmetic", ast.BinOp(node.left, operation, node.right)
        case ast.Constant(value=bool()):
            yield "constant", ast.Constant(not node.value)
        case ast.Constant(value=int()):
            yield "constant", ast.Constant(node.value + 1)
            yield "constant", ast.Constant(node.value - 1)
        case _:
            pass


def _connections(node: ast.BoolOp) -> Iterator[Alternative]:
    other = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
    yield "and, or", ast.BoolOp(other, node.values)
    for index in range(len(node.values)):
        left = node.values[:index] + node.values[index + 1 :]
        yield "operand removed", left[0] if len(left) == 1 else ast.BoolOp(node.op, left)


def _calls(node: ast.Call) -> Iterator[Alternative]:
    if isinstance(node.func, ast.Name) and node.func.id in TWINS:
        yield "twin", ast.Call(ast.Name(TWINS[node.func.id], ast.Load()), node.args, node.keywords)
    is_ordered = not (isinstance(node.func, ast.Name) and node.func.id in {"min", "max"})
    for index, (first, second) in enumerate(zip(node.args, node.args[1:], strict=False)):
        if is_ordered and isinstance(first, NAMES) and isinstance(second, type(first)):
            arguments = [*node.args[:index], second, first, *node.args[index + 2 :]]
            yield "arguments swapped", ast.Call(node.func, arguments, node.keywords)
    for keyword in node.keywords:
        for other in node.keywords:
            if keyword is not other and keyword.arg and other.arg and keyword.arg < other.arg:
                yield from _swapped_values(node, keyword, other)


def _swapped_values(
    node: ast.Call, first: ast.keyword, second: ast.keyword
) -> Iterator[Alternative]:
    """Values of two keywords of one kind, which is what follows the last `_` of their names."""
    assert first.arg is not None
    assert second.arg is not None
    kinds = [name.rpartition("_")[2] for name in (first.arg, second.arg)]
    if kinds[0] != kinds[1]:
        return
    swapped = {id(first): second.value, id(second): first.value}
    keywords = [ast.keyword(each.arg, swapped.get(id(each), each.value)) for each in node.keywords]
    yield "arguments swapped", ast.Call(node.func, node.args, keywords)


def _is_text(node: ast.BinOp) -> bool:
    return any(
        isinstance(each, ast.JoinedStr)
        or (isinstance(each, ast.Constant) and isinstance(each.value, str | bytes))
        for each in (node.left, node.right)
    )
