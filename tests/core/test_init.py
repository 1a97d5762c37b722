"""``import counterpoint`` is quick: its names are imported on first use, and are the same in every order of imports."""

from __future__ import annotations

import ast
import pickle
import re
import subprocess
import sys
import typing
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest
import torch
from identities import FORMULAS
from processes import fresh

import counterpoint as cp
from counterpoint import api
from counterpoint.integrations.flags import check_names
from counterpoint.names import BUILT_IN, ELSEWHERE, OBJECTIVES

ORDERS = [
    "import counterpoint.base, counterpoint.grad_cache",
    "from counterpoint.base import Objective",
    "from counterpoint.grad_cache import gradcache",
    "from counterpoint import objective, gradcache",
    "from counterpoint import *",
    "import counterpoint.views",
    "import counterpoint.objectives.nacl",
    "import counterpoint.engine.tiles",
    "import counterpoint.diagnose",
    "import counterpoint.hyper, counterpoint.spec",
    "import counterpoint.plugins.logits",
]


@pytest.mark.parametrize("order", ORDERS)
def test_names_do_not_depend_on_the_order_of_imports(order):
    code = f"""
{order}
import counterpoint as cp, importlib, types
for name in cp.__all__:  # no function is hidden by a module of its name
    assert name == "views" or not isinstance(getattr(cp, name), types.ModuleType), name
from counterpoint import gather, objective
from counterpoint.base import Objective
assert objective("adnce:mu=0.7") == cp.ADNCE(mu=0.7) and issubclass(cp.ADNCE, Objective)
assert callable(gather) and cp.views.__name__ == "counterpoint.views"
print(*cp.registry)
"""
    assert fresh(code) == " ".join(list(cp.registry)[: len(OBJECTIVES)])


def test_no_noise_without_numpy():
    code = """
import sys
sys.modules["numpy"] = None
import counterpoint as cp, torch
z1, z2 = torch.randn(2, 8, 4, requires_grad=True)
cp.ADNCE()(z1, z2).backward()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/")
    assert (done.returncode, done.stderr) == (0, "")


def test_import_needs_no_torch():
    code = "import counterpoint, sys; print(counterpoint.__version__, 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/")
    assert done.stdout.endswith("False\n"), done.stderr


def test_each_public_name_is_imported_where_it_is_listed():
    imports = [node for node in ast.parse(Path(api.__file__).read_text()).body if isinstance(node, ast.ImportFrom)]
    assert sorted(alias.name for node in imports for alias in node.names) == sorted(cp.__all__) == dir(cp)
    for name in cp.__all__:
        assert getattr(cp, name) is getattr(api, name)


def test_the_package_has_no_names_but_its_own():
    code = """
import counterpoint as cp, types
cp.InfoNCE
names = {n: x for n, x in vars(cp).items() if n not in cp.__all__ and n[0] != "_"}
print(*(n for n, x in names.items() if not isinstance(x, types.ModuleType) or x.__name__ != f"counterpoint.{n}"))
"""
    assert fresh(code) == ""


def test_a_name_that_does_not_exist_names_the_nearest():
    with pytest.raises(AttributeError, match=r"module 'counterpoint' has no attribute 'ADNEC'. Did you mean 'ADNCE'\?"):
        cp.ADNEC  # noqa: B018
    with pytest.raises(AttributeError, match=r"has no attribute '__wrapped__'\.$"):
        cp.__wrapped__  # noqa: B018
    with pytest.raises(ImportError):
        exec("from counterpoint import ADNEC")


@pytest.mark.parametrize(
    ("name", "here"),
    [
        ("NTXentLoss", "cp.InfoNCE(temperature)(z1, z2)."),
        ("SupConLoss", "cp.SupCon(temperature)(z1, z2, labels=labels)"),
        ("SupervisedContrastiveLoss", "labels=labels"),
        ("TripletLoss", "negatives=negative"),
        ("TripletMarginLoss", "negatives=negative"),
        ("MultipleNegativesRankingLoss", "cp.InfoNCE"),
        ("DCLLoss", 'denominator="negatives"'),
        ("hcl", "Did you mean 'HCL'?"),
        ("sys", "has no attribute 'sys'."),
        ("plugin", "Did you mean 'plugins'?"),
    ],
)
def test_a_name_of_another_library_points_to_ours(name, here):
    with pytest.raises(AttributeError, match=re.escape(here)):
        getattr(cp, name)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_what_stands_for_a_name_of_another_library_exists(name):
    spec, call = ELSEWHERE[name]
    cls = getattr(cp, call.partition("(")[0].partition(",")[0])
    assert cls.name == spec == cp.objective(spec).name
    with pytest.raises(cp.SpecError, match=f"Did you mean '{spec}'"):
        cp.objective(name)
    z1, z2 = torch.randn(2, 8, 4)
    given = {
        "temperature": 0.5,
        "prior": 0.1,
        "z1": z1,
        "z2": z2,
        "query": z1,
        "key": z2,
        "bank": z2.flip(0),
        "anchor": z1,
        "positive": z2,
        "negative": z1.flip(0),
    }
    for code in re.findall(r"(?:InfoNCE|DCL|SupCon)\((?:[^()]|\([^()]*\))*\)(?:\([^()]*\))?", call):
        eval(f"cp.{code}", {"cp": cp, "labels": torch.arange(8) // 2, **given})


@pytest.mark.parametrize(
    "name",
    [
        "plugins.logits.ContrastiveLoss",
        "plugins.registry.names",
        "integrations.store.find_runs",
        "integrations.store.grid.run_grid",
        "integrations.report.summarise",
        "integrations.sentence.settings.Settings",
        "integrations.graph.settings.Settings",
    ],
)
def test_packages_inside_are_attributes(name):
    assert fresh(f"import counterpoint; print(counterpoint.{name}.__module__)").startswith("counterpoint.")


@pytest.mark.parametrize(
    ("package", "name", "meant"),
    [
        ("counterpoint.plugins", "lightyl", "lightly"),
        ("counterpoint.integrations", "imgae", "image"),
        ("counterpoint.integrations.store", "find_rusn", "find_runs"),
        ("counterpoint.integrations.graph", "Encodr", "Encoder"),
        ("counterpoint.integrations.sentence", "trainig", "training"),
    ],
)
def test_packages_inside_name_the_nearest_too(package, name, meant):
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute '{name}'. Did you mean '{meant}'"):
        getattr(import_module(package), name)


def test_modules_are_attributes_and_other_attributes_can_be_set(monkeypatch):
    assert isinstance(cp.hyper, ModuleType)
    assert isinstance(cp.objectives, ModuleType)
    monkeypatch.setattr(cp, "objective", len)
    assert cp.objective is len


def test_built_in_names_are_taken_before_the_first_class_of_a_user():
    code = """
import counterpoint as cp
try:
    class Mine(cp.Objective, name="nca"): ...
except ValueError as error:
    print(error)
"""
    assert fresh(code) == "Mine: the name 'nca' is taken by counterpoint.objectives.nacl.NCA."


def test_the_built_in_names_are_those_of_the_registry():
    kinds = {name: kind.__name__ for name, kind in cp.registry.items() if kind.__module__.startswith(BUILT_IN)}
    assert kinds == OBJECTIVES


def test_importing_the_objectives_alone_registers_all_of_them():
    assert fresh("from counterpoint.names import known; print(*known())") == " ".join(OBJECTIVES)


@pytest.mark.parametrize(
    ("spec", "position"), [("infonse", 0), ("0.5 * ( arcl(hlc) + dp )", 13), ("arcl(hcl:t=learned(1,0.1,2)) + dq", 31)]
)
def test_unknown_objectives_are_found_without_torch(spec, position):
    with pytest.raises(cp.SpecError) as full:
        cp.objective(spec)
    code = f"""
import sys
from counterpoint.integrations.flags import check_names
from counterpoint.spec import SpecError
try:
    check_names({spec!r})
except SpecError as error:
    print(error.position, "counterpoint.values" in sys.modules, error)
"""
    assert fresh(code) == f"{position} False {full.value}"


@pytest.mark.parametrize("spec", ["mine", "arcl(mine:t=1)"])
def test_objectives_of_installed_packages_are_not_refused(monkeypatch, spec):
    monkeypatch.setattr("counterpoint.integrations.flags.metadata.entry_points", lambda group: ["an entry point"])
    check_names(spec)


def test_a_module_of_ones_own_is_named_by_a_variable(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(
        "import counterpoint as cp\n\n\nclass Mine(cp.Objective, name='mine'):\n    t = cp.Real('t', default=0.5)\n"
    )
    monkeypatch.chdir(tmp_path)
    code = f"""
import os
os.chdir({str(tmp_path)!r})
os.environ["COUNTERPOINT_IMPORT"] = "mine"
from counterpoint.integrations.store import versions
from counterpoint.integrations.flags import check_names
import counterpoint as cp
check_names("mine:t=1")
print(cp.objective("arcl(mine:t=0.1)"), versions().get("COUNTERPOINT_IMPORT"))
"""
    assert fresh(code) == "arcl(mine:t=0.1) mine"
    monkeypatch.setenv("COUNTERPOINT_IMPORT", "yours")
    monkeypatch.setattr(sys, "path", [*sys.path])  # which gets this folder
    with pytest.raises(cp.SpecError, match="No module named 'yours'"):
        cp.objective("mine")


@pytest.mark.parametrize("spec", FORMULAS)
def test_known_objectives_are_not_refused(spec):
    check_names(spec)


def test_pickles_are_loaded_where_nothing_was_imported():
    data = pickle.dumps(cp.objective("arcl(adnce:mu=0.7) + 0.1*dp"))
    assert fresh(f"import pickle; print(pickle.loads({data!r}))") == str(pickle.loads(data))


def test_the_package_is_pickled_by_name():
    assert type(cp) is ModuleType  # a plain one, which cloudpickle and dill store by name


def test_no_dotted_name_is_an_attribute():
    assert not hasattr(cp, "a.b")


def test_threads_may_be_the_first_to_use_names():
    code = """
import threading, counterpoint as cp
names, errors = [n for n in cp.__all__ if not n.startswith("_")], []
def use(start):
    for name in names[start:] + names[:start]:
        try:
            getattr(cp, name)
        except Exception as error:
            errors.append(repr(error))
threads = [threading.Thread(target=use, args=(5 * i,)) for i in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(errors)
"""
    assert fresh(code) == "[]"


def test_the_types_of_a_call_can_be_resolved():
    assert "options" in typing.get_type_hints(cp.InfoNCE.forward)
