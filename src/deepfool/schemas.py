"""Schemas: what the columns of a table are, and how a row of it may change.

A schema is stated in the units of the data, feature by feature, in the order of the model's inputs. A one-hot feature
takes a column for each of its categories. Where inputs are scaled, `shift` and `scale` lead back:
value = shift + scale * input.

    [[feature]]
    name = "age"
    kind = "integer"            # continuous (the default), integer or one-hot
    low = 18
    high = 100
    change = "up"               # any (the default), none, up or down
    cost = 0.1                  # of one unit; without it, one unit of the model's input costs 1
    shift = 38.6                # value = shift + scale * input
    scale = 13.4

    [[feature]]
    name = "work"
    kind = "one-hot"
    categories = ["office", "field", "home"]
"""

from __future__ import annotations

import importlib
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deepfool.errors import DataError, InputError
from deepfool.values import check_path

if TYPE_CHECKING:
    from torch import Tensor

Values = np.ndarray[Any, np.dtype[np.float64]]

KINDS = ("continuous", "integer", "one-hot")
CHANGES = ("any", "none", "up", "down")
OFF = 1e-3
"""How far from a whole number a value may be that is to be whole: inputs in float32, scaled, are off by less."""
EPS = 4e-7
"""The same relative to the value itself."""


@dataclass(frozen=True)
class Feature:
    """One feature of a table: a column, or for one-hot ones a column for each category.

    >>> Feature("age", "integer", low=18, change="up").columns
    1
    >>> Feature("age", "whole")
    Traceback (most recent call last):
    ...
    deepfool.errors.InputError: the kind of age must be one of continuous, integer, one-hot, got 'whole'.
    """

    name: str
    kind: str = "continuous"
    low: float = -math.inf
    high: float = math.inf
    change: str = "any"
    """"any", "none" (it must stay), "up" or "down"."""
    cost: float | None = None
    """Of one unit, for one-hot features of a column that is switched; None: one unit of the model's input costs 1."""
    shift: float | Sequence[float] = 0.0
    """value = shift + scale * input; a number for each column, or one for all."""
    scale: float | Sequence[float] = 1.0
    categories: Sequence[str] = ()
    rest: str | None = None
    """One-hot: the category that has no column, where one was dropped."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InputError(f"a feature needs a name, got {self.name!r:.60}.")
        self._check_words()
        one_hot = self.kind == "one-hot"
        object.__setattr__(self, "categories", tuple(map(str, self.categories)))
        if one_hot != bool(self.categories):
            raise InputError(f"{self.name}: categories belong to one-hot features, and those need some.")
        if len({*self.categories, self.rest}) != len(self.categories) + 1:
            raise InputError(f"{self.name}: the categories must differ.")
        if one_hot and self.change in ("up", "down"):
            raise InputError(f"{self.name}: a category goes neither up nor down, got change {self.change!r}.")
        if not one_hot and self.rest is not None:
            raise InputError(f"{self.name}: only one-hot features have a rest.")
        low, high = self._number("low"), self._number("high")
        if not low <= high:
            raise InputError(f"{self.name}: low must not exceed high, got {low:g} and {high:g}.")
        if self.cost is not None and not 0 < self._number("cost") < math.inf:
            raise InputError(f"{self.name}: cost must be a number > 0, got {self.cost:g}.")
        for name in ("shift", "scale"):
            given = np.asarray(getattr(self, name), np.float64) if _is_plain(getattr(self, name)) else np.zeros(0)
            if given.size not in (1, self.columns) or not np.isfinite(given).all() or given.ndim > 1:
                raise InputError(f"{self.name}: {name} must be a number, or one for each of {self.columns} columns.")
            if name == "scale" and not (given > 0).all():
                raise InputError(f"{self.name}: scale must be > 0.")
            object.__setattr__(self, name, float(given.reshape(-1)[0]) if given.size == 1 else tuple(given.tolist()))

    def _check_words(self) -> None:
        for name, known in (("kind", KINDS), ("change", CHANGES)):
            if getattr(self, name) not in known:
                raise InputError(
                    f"the {name} of {self.name} must be one of {', '.join(known)}, got {getattr(self, name)!r:.60}."
                )

    def _number(self, name: str) -> float:
        value = getattr(self, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
            raise InputError(f"{self.name}: {name} must be a number, got {value!r:.60}.")
        return float(value)

    @property
    def columns(self) -> int:
        return len(self.categories) or 1

    @property
    def weights(self) -> list[float]:
        """What one unit of each input costs."""
        scale = np.broadcast_to(np.asarray(self.scale, np.float64), (self.columns,))
        return [1.0 if self.cost is None else self.cost * each for each in scale.tolist()]

    def as_dict(self) -> dict[str, Any]:
        """What differs from the defaults, as plain values."""
        told = {field.name: getattr(self, field.name) for field in fields(self)}
        usual = {field.name: field.default for field in fields(self) if field.name != "name"}
        plain = {name: list(value) if isinstance(value, tuple) else value for name, value in told.items()}
        return {name: value for name, value in plain.items() if name not in usual or told[name] != usual[name]}


@dataclass(frozen=True)
class Schema:
    """What the columns of a table are, and how a row may change.

    >>> schema = Schema([Feature("age", "integer", 18, 100, "up"), Feature("work", "one-hot", categories=["a", "b"])])
    >>> schema.columns, schema.weights
    (3, None)
    >>> schema.encode({"age": [30], "work": ["b"]})
    tensor([[30., 0., 1.]])
    >>> schema.decode(schema.encode({"age": [30], "work": ["b"]}))
    {'age': [30], 'work': ['b']}
    """

    features: Sequence[Feature]

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", tuple(self.features))
        if not self.features or not all(isinstance(each, Feature) for each in self.features):
            raise InputError("a schema is a list of features, and needs at least one.")
        names = [each.name for each in self.features]
        if len(set(names)) != len(names):
            raise InputError(f"two features are called {next(n for n in names if names.count(n) > 1)!r}.")

    @property
    def columns(self) -> int:
        """How many inputs of the model it describes."""
        return sum(each.columns for each in self.features)

    @property
    def weights(self) -> list[float] | None:
        """What one unit of each input costs; None where all cost 1."""
        weights = [weight for each in self.features for weight in each.weights]
        return None if all(each == 1 for each in weights) else weights

    @cached_property
    def places(self) -> list[tuple[Feature, slice]]:
        """Each feature with its columns."""
        ends = np.cumsum([0, *(each.columns for each in self.features)]).tolist()
        return [(each, slice(ends[i], ends[i + 1])) for i, each in enumerate(self.features)]

    @cached_property
    def shift(self) -> Values:
        return np.concatenate([np.broadcast_to(np.asarray(f.shift, np.float64), f.columns) for f in self.features])

    @cached_property
    def scale(self) -> Values:
        return np.concatenate([np.broadcast_to(np.asarray(f.scale, np.float64), f.columns) for f in self.features])

    def as_dict(self) -> dict[str, Any]:
        """As plain values, as a file holds them."""
        return {"feature": [each.as_dict() for each in self.features]}

    def behind(self, scaler: Any) -> Schema:
        """The same for a model behind a fitted scaler of scikit-learn (standard, robust, min-max, max-abs).

        The scaler was fitted on the columns of this schema in their units, categories as zeros and ones.

        >>> from sklearn.preprocessing import StandardScaler
        >>> scaler = StandardScaler().fit([[0.0], [10.0]])
        >>> Schema([Feature("age")]).behind(scaler).features[0].scale
        5.0
        """
        d = self.columns
        own = {name: getattr(scaler, name, None) for name in ("mean_", "center_", "min_", "scale_")}
        if own["scale_"] is None and own["mean_"] is None and own["center_"] is None:
            raise InputError(f"{type(scaler).__name__} is no fitted scaler: it has no mean_ or scale_.")
        scale = np.ones(d) if own["scale_"] is None else np.asarray(own["scale_"], np.float64)
        if own["min_"] is not None:  # min-max: input = value * scale_ + min_
            shift, scale = -np.asarray(own["min_"], np.float64) / scale, 1 / scale
        else:
            middle = own["mean_"] if own["mean_"] is not None else own["center_"]
            shift = np.zeros(d) if middle is None else np.asarray(middle, np.float64)
        if shift.shape != (d,) or scale.shape != (d,):
            raise InputError(f"the scaler was fitted on {shift.size} columns, but the schema has {d}.")
        return Schema([
            replace(each, shift=tuple(shift[at].tolist()), scale=tuple(scale[at].tolist())) for each, at in self.places
        ])  # fmt: skip

    def encode(self, table: Any) -> Tensor:
        """The inputs of the model (n, d) for a table: a pandas frame, or a list of values for each feature."""
        import torch  # not at the top: runs are read without it

        parts = []
        for each, _ in self.places:
            try:
                values = list(table[each.name])
            except (KeyError, TypeError):
                raise InputError(f"the table has no column {each.name!r}.") from None
            parts.append(_encode(each, values))
        whole = (np.concatenate(parts, 1) - self.shift) / self.scale
        return torch.tensor(whole, dtype=torch.float32)

    def decode(self, x: Tensor) -> dict[str, list[Any]]:
        """Rows (n, d) as values by feature, which `pandas.DataFrame` takes; whole numbers and categories as such."""
        values = self.measure(x)
        table: dict[str, list[Any]] = {}
        for each, at in self.places:
            own = values[:, at]
            if each.kind == "one-hot":
                names = [*each.categories, each.rest]
                picked = np.where(own.max(1) > 0.5, own.argmax(1), len(each.categories) if each.rest else own.argmax(1))
                table[each.name] = [names[i] for i in picked.tolist()]
            else:
                column = own[:, 0]
                table[each.name] = [round(v) for v in column.tolist()] if each.kind == "integer" else column.tolist()
        return table

    def measure(self, x: Any) -> Values:
        """Inputs (n, d) in the units of the schema."""
        flat = np.asarray(x.detach().cpu() if hasattr(x, "detach") else x, np.float64)
        flat = flat.reshape(len(flat), -1)
        if flat.shape[1] != self.columns:
            raise InputError(f"the schema describes {self.columns} columns, but x has {flat.shape[1]}.")
        return np.asarray(self.shift + self.scale * flat)

    def check(self, x: Any) -> None:
        """An error if a row is not one that the schema allows.

        >>> Schema([Feature("age", "integer", low=18)]).check(np.array([[20.0], [17.0]]))
        Traceback (most recent call last):
        ...
        deepfool.errors.InputError: row 1: age is 17, but the schema begins at 18. Hint: ...
        """
        values = self.measure(x)
        for each, at in self.places:
            wrong = _find_wrong(each, values[:, at])
            if wrong:
                raise InputError(
                    f"row {wrong[0]}: {wrong[1]}.", hint="is the scaling right? value = shift + scale * input."
                )

    @staticmethod
    def of_dict(found: Any, where: str = "the schema") -> Schema:
        """From plain values: {"feature": [{"name": ...}, ...]}."""
        tables = found.get("feature") if isinstance(found, Mapping) and set(found) == {"feature"} else None
        if not isinstance(tables, list) or not all(isinstance(each, Mapping) for each in tables):
            raise InputError(f"{where} must be a list of features: [[feature]] in TOML, a list `feature` in JSON.")
        known = [field.name for field in fields(Feature)]
        for each in tables:
            if unknown := [name for name in each if name not in known]:
                raise InputError(
                    f"{where}: a feature has no {unknown[0]!r:.60}.", hint=f"it may have {', '.join(known)}."
                )
            if "name" not in each:
                raise InputError(f"{where}: each feature needs a name.")
        return Schema([Feature(**each) for each in tables])

    @staticmethod
    def read(path: str | Path) -> Schema:
        """From a TOML or JSON file."""
        path = check_path(path, "schema")
        try:
            content = path.read_bytes().decode()
            if path.suffix.lower() == ".json":
                found = json.loads(content)
            else:  # Python has tomllib from 3.11 on; tomli is the same code for older ones
                found = importlib.import_module("tomllib" if sys.version_info >= (3, 11) else "tomli").loads(content)
        except FileNotFoundError:
            raise DataError(f"{path}: there is no such file.", hint="a schema is a TOML or JSON file.") from None
        except (OSError, ValueError) as error:
            raise DataError(f"{path} cannot be read: {error}.") from error
        return Schema.of_dict(found, str(path))

    @staticmethod
    def of_frame(
        frame: Any, *, standardise: bool = True, fixed: Iterable[str] = (), up: Iterable[str] = (),
        down: Iterable[str] = (),
    ) -> Schema:  # fmt: skip
        """Read off a pandas frame: whole numbers, fractions and categories by the types of the columns.

        Values keep to the range that they have in the frame. With `standardise`, inputs are in standard deviations from
        the mean (categories stay zeros and ones); without, inputs are the values, and a standard deviation costs 1.
        `fixed` features must not change, `up` and `down` ones only in that direction.

        >>> import pandas
        >>> frame = pandas.DataFrame({"age": [20, 40], "height": [1.6, 1.8], "work": ["office", "field"]})
        >>> [(each.name, each.kind) for each in Schema.of_frame(frame, up=["age"]).features]
        [('age', 'integer'), ('height', 'continuous'), ('work', 'one-hot')]
        """
        chosen = {name: change for names, change in ((fixed, "none"), (up, "up"), (down, "down")) for name in names}
        if unknown := sorted(set(chosen) - set(map(str, frame.columns))):
            raise InputError(f"the frame has no column {unknown[0]!r}.")
        found = []
        for name in frame.columns:
            column, change = frame[name], chosen.get(str(name), "any")
            if bool(column.isna().any()):
                raise InputError(f"the column {name!r} has missing values.", hint="fill them in, or leave rows out.")
            if column.dtype.kind not in "biuf":
                given = getattr(column.dtype, "categories", None)
                categories = sorted(map(str, column.unique())) if given is None else list(map(str, given))
                found.append(Feature(str(name), "one-hot", change=change, categories=categories))
                continue
            values = np.asarray(column, np.float64)
            spread = float(values.std()) or 1.0
            kind = "continuous" if column.dtype.kind == "f" else "integer"
            scaled: dict[str, Any] = (
                {"shift": float(values.mean()), "scale": spread} if standardise else {"cost": 1 / spread}
            )
            found.append(Feature(str(name), kind, float(values.min()), float(values.max()), change, **scaled))
        return Schema(found)


def read_schema(given: Any) -> Schema:
    """A schema, however it is given: itself, its plain values, or a file.

    >>> read_schema({"feature": [{"name": "age", "kind": "integer"}]}).columns
    1
    """
    if isinstance(given, Schema):
        return given
    if isinstance(given, Mapping):
        return Schema.of_dict(given)
    if isinstance(given, str | Path):
        return Schema.read(given)
    raise InputError(f"schema must be a deepfool.Schema or a TOML or JSON file, got {type(given).__name__}.")


def _is_plain(value: Any) -> bool:
    numbers = value if isinstance(value, list | tuple) else [value]
    return all(isinstance(each, int | float) and not isinstance(each, bool) for each in numbers)


def _encode(feature: Feature, values: list[Any]) -> Values:
    if feature.kind != "one-hot":
        try:
            column = np.asarray(values, np.float64)[:, None]
        except (TypeError, ValueError):
            raise InputError(f"{feature.name} must hold numbers, got {values[0]!r:.60}.") from None
        if not np.isfinite(column).all():
            raise InputError(f"{feature.name} must hold finite numbers.")
        return column
    place = {name: i for i, name in enumerate(feature.categories)}
    rows = np.zeros((len(values), feature.columns))
    for i, value in enumerate(map(str, values)):
        if value != feature.rest and value not in place:
            raise InputError(f"{feature.name} has no category {value!r:.60}.")
        if value in place:
            rows[i, place[value]] = 1
    return rows


def _find_wrong(feature: Feature, values: Values) -> tuple[int, str] | None:
    """The first row whose values (n, k) are not what this feature allows, and why."""
    slack = OFF + EPS * np.abs(values) + EPS * np.abs(np.asarray(feature.shift))
    if feature.kind == "one-hot":
        on = np.abs(values - 1) <= slack
        odd = ~(on | (np.abs(values) <= slack)).all(1)
        count = on.sum(1)
        if (bad := odd | (count > 1) | ((count == 0) & (feature.rest is None))).any():
            i = int(bad.argmax())
            return i, f"{feature.name} is {values[i].round(3).tolist()}, which is no category"
        return None
    value = values[:, 0]
    for bad, words in (
        (value < feature.low - slack[:, 0], f"but the schema begins at {feature.low:g}"),
        (value > feature.high + slack[:, 0], f"but the schema ends at {feature.high:g}"),
        ((feature.kind == "integer") & (np.abs(value - value.round()) > slack[:, 0]), "which is not whole"),
    ):
        if np.any(bad):
            i = int(np.argmax(bad))
            return i, f"{feature.name} is {value[i]:.6g}, {words}"
    return None
