"""The operators change what a program does, each in its way, and leave alone what no test sees."""

import ast
from pathlib import Path

import pytest

from tests.mutants.equivalent import EQUIVALENT
from tests.mutants.forked_tests import replace_code
from tests.mutants.operators import mutate, sites
from tests.mutants.random_mutants import CORE, sample

ROOT = Path(__file__).resolve().parents[2]

SOURCE = '''
class Shelf:
    def __init__(self):
        self.items, self.limit = [], 2

    def put(self, item, place, other):
        """Puts an item."""
        log.info("put %s", item)
        assert item is not None
        if len(self.items) >= self.limit and not self.may_grow(1):
            raise ValueError("no room for " + item)
        self.items.append(pair(place, other))
        return self.items

    def may_grow(self, by: int) -> bool:
        try:
            return min(by, self.limit) == 1 or False
        finally:
            self.limit += 1

    def rest(self):
        for item in self.items:
            if not item:
                continue
            yield item
        while self.limit > 0:
            self.limit -= 1
'''


def changes() -> set[tuple[str, str]]:
    made = (mutate("shelf.py", SOURCE, site) for site in sites(SOURCE))
    return {(each.operator, each.after) for each in made if each is not None}


@pytest.mark.parametrize(
    ("operator", "after"),
    [
        ("comparison", "if len(self.items) > self.limit and (not self.may_grow(1)):"),
        ("comparison", "if len(self.items) < self.limit and (not self.may_grow(1)):"),
        ("and, or", "if len(self.items) >= self.limit or not self.may_grow(1):"),
        ("operand removed", "if not self.may_grow(1):"),
        ("negation removed", "if len(self.items) >= self.limit and self.may_grow(1):"),
        ("constant", "if len(self.items) >= self.limit and (not self.may_grow(2)):"),
        ("constant", "return min(by, self.limit) == 1 or True"),
        ("condition ignored", "raise ValueError('no room for ' + item)"),
        ("branch removed", "pass"),
        ("removed", "pass"),
        ("arguments swapped", "self.items.append(pair(other, place))"),
        ("answer replaced by None", "return None"),
        ("answer negated", "return not (min(by, self.limit) == 1 or False)"),
        ("twin", "return max(by, self.limit) == 1 or False"),
        ("finally removed", "return min(by, self.limit) == 1 or False"),
        ("looked at once only", "if self.limit > 0:"),
    ],
)
def test_each_operator_makes_its_change(operator: str, after: str) -> None:
    assert (operator, after) in changes()


def test_assertions_and_the_arguments_of_min_and_max_are_left_alone() -> None:
    source = """
def pairs(one, two):
    assert_never(one)
    return zip(min(one, two), max(two, one), strict=True)
"""

    made = [mutate("p.py", source, site) for site in sites(source)]

    assert {each.operator for each in made if each} == {"answer replaced by None", "twin"}


def test_texts_assertions_and_log_lines_are_left_alone() -> None:
    changed = {each.before for site in sites(SOURCE) if (each := mutate("s.py", SOURCE, site))}

    assert not any(word in text for text in changed for word in ("log.", "assert", "Puts an"))
    assert not any(text.startswith("no room") for text in changed)


def test_a_repeated_statement_is_numbered() -> None:
    source = "def twice(a):\n    a.go()\n    a.stop()\n    a.go()\n"

    removed = [each.before for site in sites(source) if (each := mutate("t.py", source, site))]

    assert removed == ["a.go()", "a.stop()", "a.go()  # number 2 of the function"]


def test_every_mutant_is_other_instructions() -> None:
    for site in sites(SOURCE):
        change = mutate("shelf.py", SOURCE, site)
        assert change is not None
        assert ast.unparse(ast.parse(change.source)) != ast.unparse(ast.parse(SOURCE))


def test_live_functions_run_the_code_of_a_mutant(tmp_path: Path) -> None:
    place = tmp_path / "shelf.py"
    place.write_text(SOURCE)
    loaded: dict[str, type] = {}
    exec(compile(SOURCE, str(place), "exec"), loaded)  # as an import would
    shelf = loaded["Shelf"]()
    (change,) = [
        each
        for site in sites(SOURCE)
        if (each := mutate(str(place), SOURCE, site)) and each.operator == "twin"
    ]
    before = shelf.may_grow(1)

    count = replace_code(str(place), change.function, SOURCE, change.source)

    assert (count, before, shelf.may_grow(1)) == (1, True, False)
    assert shelf.limit == 4


def test_a_live_function_runs_the_code_of_a_mutant_that_lost_its_super(tmp_path: Path) -> None:
    source = "class Box(dict):\n    def clear(self):\n        super().clear()\n        return 7\n"
    place = tmp_path / "box.py"
    loaded: dict[str, type] = {}
    exec(compile(source, str(place), "exec"), loaded)  # as an import would
    box = loaded["Box"](a=1)
    removed = next(each for site in sites(source) if (each := mutate(str(place), source, site)))

    replace_code(str(place), removed.function, source, removed.source)

    assert (removed.operator, box.clear(), box) == ("removed", 7, {"a": 1})


def test_a_sample_is_the_same_for_a_seed_and_another_for_another() -> None:
    first, again, other = (sample(ROOT, seed, 5, "tx/conflicts") for seed in (1, 1, 2))

    assert [each.key for each in first] == [each.key for each in again]
    assert [each.key for each in first] != [each.key for each in other]


@pytest.mark.slow  # run by `make mutants-random`, which is what the list is for
def test_each_equivalent_mutant_can_still_be_made() -> None:
    assert all(EQUIVALENT.values())
    wanted: dict[str, set[tuple[str, str, str]]] = {}
    for file, *mutant in EQUIVALENT:
        wanted.setdefault(file, set()).add(tuple(mutant))

    for file, mutants in wanted.items():
        assert file in CORE
        source = (ROOT / file).read_text("utf-8")
        names = {name for name, *_ in mutants}
        made = (mutate(file, source, site) for site in sites(source) if site.function in names)
        assert mutants <= {each.key[1:] for each in made if each}, file


def test_each_module_of_the_core_is_there() -> None:
    assert [module for module in CORE if not (ROOT / module).is_file()] == []
