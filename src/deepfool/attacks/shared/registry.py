"""Attacks by name. A new attack is one line in the table; wherever a name is accepted, so is the function itself."""

from __future__ import annotations

import ast
import importlib
import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from deepfool.errors import DeepFoolError, InputError, is_out_of_memory

if TYPE_CHECKING:
    from deepfool.attacks.shared.adversarial import Adversarial

Attack: TypeAlias = "Callable[..., Adversarial]"

ATTACKS: dict[str, str] = {
    "deepfool": "deepfool.attacks.deepfool:deepfool",
    "smallest": "deepfool.attacks.smallest:smallest",
    "superdeepfool": "deepfool.attacks.superdeepfool:superdeepfool",
    "ddn": "deepfool.attacks.ddn:ddn",
    "fmn": "deepfool.attacks.fmn:fmn",
    "fab": "deepfool.attacks.fab:fab",
    "sparsefool": "deepfool.attacks.sparsefool:sparsefool",
    "sigma_zero": "deepfool.attacks.sigma_zero:sigma_zero",
    "fgsm": "deepfool.attacks.fgsm:fgsm",
    "lbfgs": "deepfool.attacks.lbfgs:lbfgs",
}
"""name -> "module:function"."""

END_WITH_THE_FIRST = ("deepfool", "superdeepfool", "sparsefool", "fgsm")
"""Attacks that end when something fools, or soon after: whether a row had converged means nothing for them."""

_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)

SHARED = {
    "bounds": None, "target": None, "goal": None, "mask": None, "threshold": None, "outputs": "auto", "labels": None,
}  # fmt: skip
"""What every attack takes besides its own arguments, with the defaults; `task.Shared` has the types."""

SET_BY_THE_RUN = ("labels", "seed")
"""What is not a knob: it belongs to the data, or to the run as a whole."""


def find_attack(attack: str | Attack) -> Attack:
    """The function behind a name of the table or behind `module:function`; a function is returned as it is.

    >>> find_attack("deepfool").__name__
    'deepfool'
    >>> find_attack("deepfol")
    Traceback (most recent call last):
    ...
    deepfool.errors.InputError: there is no attack called 'deepfol'. Hint: did you mean deepfool?
    """
    if not isinstance(attack, str):
        if not callable(attack):
            raise InputError(f"attack must be a name or a function, got {type(attack).__name__}.")
        return _check_signature(attack, name_attack(attack))
    module, colon, function = ATTACKS.get(attack, attack).partition(":")
    if not colon:
        close = get_close_matches(attack, ATTACKS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"choose from {', '.join(ATTACKS)}, or give module:function."
        raise InputError(f"there is no attack called {attack!r}.", hint=hint)
    try:
        found = getattr(importlib.import_module(module), function)
    except Exception as error:  # the module runs when it is imported, and may raise anything
        raise InputError(f"the attack {attack!r} cannot be imported: {type(error).__name__}: {error}.") from error
    if not callable(found):
        raise InputError(f"the attack {attack!r} must be a function, got {type(found).__name__}.")
    return _check_signature(found, attack)


def _check_signature(attack: Attack, name: str) -> Attack:
    """An attack takes the model and x by their place, and everything else by name."""
    expected = f"the attack {name!r} must be a function (model, x, *, ...) that returns an Adversarial"
    if isinstance(attack, type):
        raise InputError(f"{expected}, got a class.")
    try:
        parameters = inspect.signature(attack).parameters.values()
    except (TypeError, ValueError):  # of something written in C
        raise InputError(f"{expected}, got one whose arguments cannot be seen.") from None
    places = [each for each in parameters if each.kind in _BY_PLACE]
    several = any(each.kind is inspect.Parameter.VAR_POSITIONAL for each in parameters)
    needed = [each for each in places if each.default is inspect.Parameter.empty and each.name not in SET_BY_THE_RUN]
    if (len(places) < 2 and not several) or len(needed) > 2:
        raise InputError(f"{expected}, got ({', '.join(map(str, parameters))}).")
    return attack


def run_attack(attack: Attack, model: Any, x: Any, knobs: Mapping[str, Any]) -> Adversarial:
    """Call an attack. If a user's own attack raises, or returns something else, the error says that it was theirs.

    >>> run_attack(lambda model, x: x, None, [1, 2], {})
    Traceback (most recent call last):
    ...
    deepfool.errors.InputError: the attack ... must return an Adversarial of 2 rows, got [1, 2].
    """
    from deepfool.attacks.shared.adversarial import Adversarial  # not at the top: names are looked up without torch

    name = name_attack(attack)
    try:
        found = attack(model, x, **knobs)
    except Exception as error:
        if isinstance(error, DeepFoolError) or name in ATTACKS or is_out_of_memory(error):
            raise
        raise InputError(f"the attack {name} raised {type(error).__name__}: {error}") from error
    if not isinstance(found, Adversarial) or len(found) != len(x):
        raise InputError(f"the attack {name} must return an Adversarial of {len(x)} rows, got {found!r:.80}.")
    return found


def name_attack(attack: str | Attack) -> str:
    """The name that a run is filed under: as in the table, else module:function.

    >>> name_attack(find_attack("deepfool"))
    'deepfool'
    """
    if isinstance(attack, str):
        return attack
    place = f"{getattr(attack, '__module__', '?')}:{getattr(attack, '__qualname__', type(attack).__qualname__)}"
    return next((name for name, known in ATTACKS.items() if known == place), place)


def complete_knobs(attack: Attack, given: Mapping[str, Any]) -> dict[str, Any]:
    """All knobs of an attack: those given, and the defaults of the others.

    >>> knobs = complete_knobs(find_attack("deepfool"), {"max_iter": 10})
    >>> knobs["max_iter"], knobs["overshoot"]
    (10, 0.02)
    >>> complete_knobs(find_attack("deepfool"), {"max_itre": 10})
    Traceback (most recent call last):
    ...
    deepfool.errors.InputError: deepfool has no knob called 'max_itre'. Hint: did you mean max_iter?
    """
    known = list_knobs(attack)
    parameters = inspect.signature(attack).parameters.values()
    open_ended = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)
    for name in given:
        if name not in known and (not open_ended or name in _list_taken(attack)):
            close = get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"its knobs are {', '.join(known) or 'none'}."
            raise InputError(f"{name_attack(attack)} has no knob called {name!r}.", hint=hint)
    knobs = {**known, **given}
    missing = [name for name, value in knobs.items() if value is inspect.Parameter.empty]
    if missing:
        raise InputError(f"{name_attack(attack)} needs a value for {', '.join(missing)}.")
    return knobs


def list_knobs(attack: Attack) -> dict[str, Any]:
    """The knobs of an attack and their defaults; `inspect.Parameter.empty` where a value must be given.

    >>> list_knobs(find_attack("deepfool"))["overshoot"]
    0.02
    """
    parameters = inspect.signature(attack).parameters.values()
    taken = _list_taken(attack)
    return {each.name: each.default for each in parameters if each.kind in _BY_NAME and each.name not in taken}


def read_defaults(name: str) -> dict[str, Any]:
    """The parameters of an attack of the table that have defaults, read from its source: nothing is imported.

    >>> read_defaults("deepfool")["overshoot"]
    0.02
    """
    module, _, function = ATTACKS[name].partition(":")
    file = Path(__file__).parents[1] / f"{module.rpartition('.')[2]}.py"
    tree = ast.parse(file.read_text(encoding="utf-8"))
    [given] = [node.args for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function]
    places = given.args[len(given.args) - len(given.defaults) :]
    pairs = zip([*places, *given.kwonlyargs], [*given.defaults, *given.kw_defaults], strict=True)
    own = {argument.arg: ast.literal_eval(default) for argument, default in pairs if default is not None}
    return {**own, **{each: value for each, value in SHARED.items() if each not in own}}


def _list_taken(attack: Attack) -> set[str]:
    """Parameters that are no knobs. The model and x come first, whatever they are called."""
    parameters = inspect.signature(attack).parameters.values()
    return {*SET_BY_THE_RUN, *[each.name for each in parameters if each.kind in _BY_PLACE][:2]}


def takes(attack: Attack, name: str) -> bool:
    """Whether an attack has a parameter of this name.

    >>> takes(find_attack("deepfool"), "labels"), takes(find_attack("deepfool"), "seed")
    (True, False)
    """
    found = inspect.signature(attack).parameters.get(name)
    return found is not None and found.kind in _BY_NAME
