"""The figures, drawn only from results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from deepfool.errors import RunError
from deepfool.experiments import geometry
from deepfool.experiments.pictures import unpack
from deepfool.reporting.figures import DASHES, PALETTE, import_plotting
from deepfool.reporting.images import show_perturbation, to_pixels

_STYLE = {
    "font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.3,
    "svg.fonttype": "path", "svg.hashsalt": "deepfool", "legend.frameon": False, "text.parse_math": True,
}  # fmt: skip

BLUE, ORANGE, GREEN, PINK = PALETTE[:4]
STRATEGY_NAMES = {"deepfool": "DeepFool", "fgsm": "FGSM", "clean": "clean"}


def draw_all(results: Mapping[str, Mapping[str, Any]], folder: Path) -> dict[str, list[str]]:
    """Draw what the results allow, and return the names of the files for each figure of the paper."""
    files: dict[str, list[str]] = {}
    for figure, (experiment, draw) in _DRAWERS.items():
        result = results.get(experiment)
        if result is not None and result.get("missing") is None:
            files[figure] = draw(result, folder)
    return files


def _import(name: str) -> Any:
    return import_plotting(name, "deepfool reproduce")


def _save(path: Path, size: tuple[float, float], draw: Callable[[Any], None], dpi: int = 150) -> str:
    """Draw into a file; the same result gives the same bytes."""
    matplotlib = _import("matplotlib")
    figure_class = _import("matplotlib.figure").Figure  # not pyplot, which would keep a display and every figure
    with matplotlib.rc_context(_STYLE):
        figure = figure_class(figsize=size, layout="constrained", facecolor="white")
        draw(figure)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(path, dpi=dpi, metadata={"Date": None} if path.suffix == ".svg" else {"Software": None})
        except OSError as error:
            raise RunError(f"{path} cannot be written: {error.strerror or error}.") from error
    return path.name


# Figures 6, 7 and 9: curves over the extra epochs.


def draw_figure_6(result: Mapping[str, Any], folder: Path) -> list[str]:
    """A panel for each network, as in the paper."""

    def draw(row: Mapping[str, Any]) -> Callable[[Any], None]:
        lines = [
            (STRATEGY_NAMES[name], _series(curve, "deepfool")) for name, curve in row["curves"].items()
        ]  # fmt: skip
        return lambda figure: _plot(figure, row["name"], lines, r"$\hat\rho_{\mathrm{adv}}$, by DeepFool")

    return _draw_rows(result, folder, "figure6", draw)


def draw_figure_7(result: Mapping[str, Any], folder: Path) -> list[str]:
    """A line for each alpha."""

    def draw(row: Mapping[str, Any]) -> Callable[[Any], None]:
        lines = [(rf"$\alpha$ = {alpha}", _series(curve, "deepfool")) for alpha, curve in row["curves"].items()]
        return lambda figure: _plot(figure, row["name"], lines, r"$\hat\rho_{\mathrm{adv}}$, by DeepFool")

    return _draw_rows(result, folder, "figure7", draw)


def draw_figure_9(result: Mapping[str, Any], folder: Path) -> list[str]:
    """The same networks judged twice, each judge relative to its own value before fine-tuning."""

    def draw(row: Mapping[str, Any]) -> Callable[[Any], None]:
        lines = []
        for judge in ("deepfool", "fgsm"):
            values = _series(row["curves"]["fgsm"], judge)
            lines.append((f"judged by {STRATEGY_NAMES[judge]}", values / values[:, :1]))
        return lambda figure: _plot(figure, row["name"], lines, r"$\hat\rho_{\mathrm{adv}}$, relative to before")

    return _draw_rows(result, folder, "figure9", draw)


def _series(curve: Sequence[Mapping[str, Any]], judge: str) -> np.ndarray[Any, Any]:
    """(seeds, epochs)."""
    return np.array([[epoch["rho"][judge] for epoch in one["epochs"]] for one in curve], np.float64)


def _draw_rows(
    result: Mapping[str, Any], folder: Path, name: str, draw: Callable[[Mapping[str, Any]], Callable[[Any], None]]
) -> list[str]:
    return [
        _save(folder / f"{name}-{row['network']}.svg", (4.4, 3.0), draw(row))
        for row in result["rows"]
        if row.get("missing") is None
    ]


def _plot(figure: Any, title: str, lines: Sequence[tuple[str, np.ndarray[Any, Any]]], label: str) -> None:
    """Lines for the means over the seeds, with bands from the lowest to the highest."""
    axes = figure.subplots()
    for i, (name, values) in enumerate(lines):
        epochs = np.arange(values.shape[1])
        axes.plot(
            epochs,
            values.mean(0),
            color=PALETTE[i],
            linestyle=DASHES[i],
            marker="os^D"[i % 4],
            markersize=4,
            label=name,
        )
        axes.fill_between(epochs, values.min(0), values.max(0), color=PALETTE[i], alpha=0.2, linewidth=0)
    axes.set(xlabel="extra epochs", ylabel=label, title=title)
    axes.set_xticks(np.arange(max(values.shape[1] for _, values in lines)))
    axes.set_ylim(0, 1.3 * np.nanmax([values.max() for _, values in lines]))  # room for the legend
    axes.legend(loc="upper center", ncols=len(lines), fontsize=8, handlelength=2.4, columnspacing=1.2)


# Figures 2 to 5: the geometry.


def draw_figure_2(result: Mapping[str, Any], folder: Path) -> list[str]:
    """The projection onto a line."""
    found = result["figure2"]
    x0, r = np.array(found["x0"]), np.array(found["r"])
    weight, bias = (np.asarray(each) for each in geometry.LINE)

    def draw(figure: Any) -> None:
        axes = _plane(figure, (-1.4, 1.6), (-1.2, 1.6))
        grid_x, grid_y = _grid(axes)
        scores = weight[0] * grid_x + weight[1] * grid_y + bias
        axes.contourf(grid_x, grid_y, scores, levels=[-9, 0, 9], colors=[BLUE, ORANGE], alpha=0.13)
        axes.contour(grid_x, grid_y, scores, levels=[0], colors=[GREEN], linewidths=2)
        _arrow(axes, x0, x0 + r, "black")
        _point(axes, x0, "$x_0$", (-14, 4))
        axes.text(*(x0 + r / 2 + (0.02, -0.16)), r"$r_*(x_0)$")
        axes.text(0.02, 1.3, r"$\mathcal{F}$: $f(x) = 0$", color=GREEN)
        axes.text(-1.3, -1.05, "$f(x) < 0$", color=BLUE)
        axes.text(0.9, 0.5, "$f(x) > 0$", color=ORANGE)
        axes.set_title(rf"$\Delta(x_0; f) = \|r_*\|_2$ = {found['distance']:.3f}")

    return [_save(folder / "figure2.svg", (4.2, 3.6), draw)]


def draw_figure_3(result: Mapping[str, Any], folder: Path) -> list[str]:
    """The graph of f, its tangent plane at x_0, and where that plane is zero."""
    points = [np.array(point) for point in result["figure3"]["points"]]
    _import("mpl_toolkits.mplot3d")

    def draw(figure: Any) -> None:
        axes = figure.add_subplot(projection="3d")
        grid_x, grid_y = np.meshgrid(np.linspace(-0.4, 2.1, 21), np.linspace(-0.4, 2.1, 21))
        axes.plot_wireframe(
            grid_x, grid_y, _scores(geometry.Bowl(), grid_x, grid_y)[..., 0], color="0.55", linewidth=0.4
        )
        value, slope = geometry.linearize(geometry.Bowl(), list(points[0]))
        height, (a, b) = float(value[0]), slope[0].tolist()
        tangent = height + a * (grid_x - points[0][0]) + b * (grid_y - points[0][1])
        tangent[(tangent < -1.5) | (tangent > 3.2)] = np.nan
        axes.plot_surface(grid_x, grid_y, tangent, color=GREEN, alpha=0.25, linewidth=0)
        on_line = np.array([points[1] + t * np.array([-b, a]) / np.hypot(a, b) for t in (-0.9, 0.9)])
        axes.plot(on_line[:, 0], on_line[:, 1], [0, 0], color=ORANGE, linewidth=2, label="the tangent plane is 0")
        axes.contour(grid_x, grid_y, _scores(geometry.Bowl(), grid_x, grid_y)[..., 0], levels=[0], colors=[BLUE],
                     linewidths=2, offset=0)  # fmt: skip
        path = np.array(points)
        axes.plot(path[:, 0], path[:, 1], np.zeros(len(path)), "o-", color="black", markersize=4, linewidth=1)
        axes.plot(*[[points[0][k]] * 2 for k in (0, 1)], [0, height], color="black", linewidth=0.8, linestyle=":")
        for i, point in enumerate(points[:2]):
            axes.text(point[0] - 0.16, point[1] - 0.2, 0.08, f"$x_{i}$")
        axes.plot([], [], color=BLUE, linewidth=2, label=r"$\mathcal{F}$: $f(x) = 0$")
        axes.set(xlabel="$x^{(1)}$", ylabel="$x^{(2)}$", zlim=(-1.5, 3.2), zlabel="$f$")
        axes.view_init(28, -64)
        axes.legend(loc="upper left")
        axes.set_title(f"{len(points) - 1} iterations to the boundary")

    return [_save(folder / "figure3.svg", (5.2, 4.2), draw)]


def draw_figure_4(result: Mapping[str, Any], folder: Path) -> list[str]:
    """The polyhedron of an affine classifier and the projection onto its nearest face."""
    found = result["figure4"]
    weight, bias = geometry.PLANES
    affine = nn.Linear(2, 4).double()
    affine.load_state_dict({"weight": weight.double(), "bias": bias.double()})
    x0, r = np.array(found["x0"]), np.array(found["r"])

    def draw(figure: Any) -> None:
        axes = _plane(figure, (-1.7, 2.0), (-1.6, 2.0))
        _polyhedron(axes, affine, found["x0"], affine_only=True)
        _arrow(axes, x0, x0 + r, "black")
        _point(axes, x0, "$x_0$", (-13, 3))
        axes.set_title(rf"$\hat l(x_0)$ = {found['nearest'] + 1}, distance {found['distance']:.3f}")
        figure.legend(loc="outside right center")  # beside the axes, which are square and leave room

    return [_save(folder / "figure4.svg", (5.0, 3.6), draw)]


def draw_figure_5(result: Mapping[str, Any], folder: Path) -> list[str]:
    """The curved boundaries, their linearisations at x_0, and DeepFool's iterates."""
    points = [np.array(point) for point in result["figure5"]["points"]]

    def draw(figure: Any) -> None:
        axes = _plane(figure, (-2.2, 2.2), (-2.0, 2.0))
        _polyhedron(axes, geometry.Curved(), list(points[0]), affine_only=False)
        for i, (a, b) in enumerate(pairwise(points)):
            _arrow(axes, a, b, "black")
            if i < 2:
                _point(axes, b, f"$x_{i + 1}$", (6, -4))
        _point(axes, points[0], "$x_0$", (-13, 3))
        axes.set_title(f"{len(points) - 1} iterations to the boundary")
        figure.legend(loc="outside right center")  # beside the axes, which are square and leave room

    return [_save(folder / "figure5.svg", (5.0, 3.6), draw)]


def _plane(figure: Any, across: tuple[float, float], up: tuple[float, float]) -> Any:
    axes = figure.subplots()
    axes.set(xlim=across, ylim=up, aspect="equal", xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    axes.grid(visible=False)
    return axes


def _grid(axes: Any, count: int = 241) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    grid_x, grid_y = np.meshgrid(np.linspace(left, right, count), np.linspace(low, high, count))
    return grid_x, grid_y


def _scores(model: nn.Module, grid_x: Any, grid_y: Any) -> np.ndarray[Any, Any]:
    with torch.no_grad():
        found = model(torch.tensor(np.stack([grid_x.ravel(), grid_y.ravel()], 1)))
    return np.asarray(found.numpy()).reshape(*grid_x.shape, -1)


def _polyhedron(axes: Any, model: nn.Module, x0: Sequence[float], *, affine_only: bool) -> None:
    """The boundaries with each other class, their linearisations at x_0, and the region inside them."""
    grid_x, grid_y = _grid(axes)
    scores = _scores(model, grid_x, grid_y)
    value, slope = geometry.linearize(model, list(x0))
    label = int(value.argmax())
    straight = [
        float(value[k] - value[label])
        + (grid_x - x0[0]) * float(slope[k, 0] - slope[label, 0])
        + (grid_y - x0[1]) * float(slope[k, 1] - slope[label, 1])
        for k in range(len(value))
    ]
    others = [k for k in range(len(value)) if k != label]
    inside = np.max([straight[k] for k in others], axis=0)
    axes.contourf(grid_x, grid_y, inside, levels=[-99, 0], colors=[GREEN], alpha=0.13)
    axes.contour(
        grid_x,
        grid_y,
        inside,
        levels=[0],
        colors=[GREEN],
        linewidths=3,
        linestyles="dotted" if affine_only else "solid",
    )
    name = "$P$" if affine_only else r"$\tilde P_0$"
    axes.plot([], [], color=GREEN, linewidth=3, linestyle=":" if affine_only else "-", label=f"boundary of {name}")
    for colour, k in zip((BLUE, ORANGE, PINK), others, strict=False):
        axes.contour(grid_x, grid_y, scores[..., k] - scores[..., label], levels=[0], colors=[colour], linewidths=1.4)
        if not affine_only:
            axes.contour(grid_x, grid_y, straight[k], levels=[0], colors=[colour], linewidths=1.1, linestyles="dashed")
        axes.plot([], [], color=colour, label=rf"$\mathcal{{F}}_{k + 1}$")


def _arrow(axes: Any, a: Any, b: Any, colour: str) -> None:
    arrow = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.3, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", xy=b, xytext=a, arrowprops=arrow)


def _point(axes: Any, at: Any, name: str, offset: tuple[float, float]) -> None:
    axes.plot(*at, "o", color="black", markersize=4)
    axes.annotate(name, xy=at, xytext=offset, textcoords="offset points")


# Figures 1 and 8: images.


def draw_figure_1(result: Mapping[str, Any], folder: Path) -> list[str]:
    """A row for each image: the image, then the perturbed image and the perturbation by DeepFool and by FGSM."""
    examples = result["examples"]

    def draw(figure: Any) -> None:
        boxes = figure.subplots(len(examples), 5, squeeze=False)
        for i, (row, each) in enumerate(zip(boxes, examples, strict=True)):
            x = unpack(each["x"])
            # Both on the same scale; otherwise the smaller one would look as large as the other.
            most = max(np.abs(unpack(each[method]["r"])).max() for method in ("deepfool", "fgsm"))
            _show(row[0], to_pixels(x), each["label"])
            for column, method in ((1, "deepfool"), (3, "fgsm")):
                found, name = each[method], {"deepfool": "DeepFool", "fgsm": "FGSM"}[method]
                r = unpack(found["r"])
                _show(row[column], to_pixels(x + r), found["label"] if i else f"{name}\n{found['label']}")
                _show(row[column + 1], to_pixels(0.5 + 0.5 * r / most), f"{100 * found['rho']:.2f} % of ||x||")

    return [_save(folder / "figure1.png", (6.6, 1.5 * len(examples) + 0.3), draw, dpi=200)]


def draw_figure_8(result: Mapping[str, Any], folder: Path) -> list[str]:
    """A digit and what it becomes."""
    x, r = unpack(result["x"]), unpack(result["r"])

    def draw(figure: Any) -> None:
        boxes = figure.subplots(1, 2 + len(result["steps"]))
        _show(boxes[0], to_pixels(x), "x: 1")
        _show(boxes[1], show_perturbation(r)[0], "r")
        for box, step in zip(boxes[2:], result["steps"], strict=True):
            _show(box, to_pixels(x + step["alpha"] * r), rf"$\alpha$ = {step['alpha']:g}: {step['label']}")

    return [_save(folder / "figure8.png", (1.25 * (2 + len(result["steps"])), 1.6), draw, dpi=200)]


def _show(axes: Any, pixels: Any, title: str) -> None:
    axes.imshow(pixels, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set_visible(False)
    axes.grid(visible=False)
    axes.set_title(title, fontsize=8)


_DRAWERS: Mapping[str, tuple[str, Callable[[Mapping[str, Any], Path], list[str]]]] = {
    "figure1": ("figure1", draw_figure_1),
    "figure2": ("geometry", draw_figure_2),
    "figure3": ("geometry", draw_figure_3),
    "figure4": ("geometry", draw_figure_4),
    "figure5": ("geometry", draw_figure_5),
    "figure6": ("figure6", draw_figure_6),
    "figure7": ("figure7", draw_figure_7),
    "figure8": ("figure8", draw_figure_8),
    "figure9": ("figure9", draw_figure_9),
}
"""Figure of the paper -> the experiment that it is drawn from, and the function that draws it."""
