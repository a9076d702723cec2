"""Turn the stored results into docs/benchmarks/speed.md and its plot."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from benchmarks.labels import place_labels

HEAD = """# Speed

Made by `make bench`, except for the sections that name another command. All implementations attack the same images
in one process, in turns. Times are medians over the rounds (a single round if an implementation takes over 8
seconds), so read the ratios, not the milliseconds. "Norm" is our mean l2 norm divided by theirs, on the images that
both fooled. All implementations use the same overshoot, 0.02.

In the cases without bounds ("free"), `adv-lib` is the library's function as it is. It clips every step to [0, 1],
has no other mode, and takes many more steps because of that. `adv-lib, freed` is the same function on inputs that
were rescaled so that the clipping has no effect; see `benchmarks/deepfools.py`. foolbox and ART run without bounds.
ART and torchattacks get fewer images of the batch, because they would take minutes for all of them, and are compared
per image.

`deepfool` is the default (`candidates="auto"`: all classes, with gradients only for those that can be nearest).
`deepfool, all` computes the gradients of all classes. `deepfool, tighten` ends with a search back towards the input.
In the case with 10 candidates, `deepfool` and foolbox consider the ten top-scoring classes, and `deepfool, all` is
the default, which considers all 1000. A library that fooled no image has "-".
"""

NORMS = """
## Why the norms differ

Without bounds, `deepfool` linearises at x_0 + sum of r_i and returns x_0 + 1.02 times that sum, as in the paper.
adv-lib, foolbox and torchattacks linearise at the point with the overshoot, which is nearer to the boundary. This is
the whole difference: with that one line changed, `deepfool` has foolbox's mean norms, for a tenth more
steps on the deeper networks (`python -m benchmarks.overshot` prints both). `tighten=True` searches back along the
ray and ends below either.

Inside [0, 1], adv-lib, foolbox and torchattacks clip after each step, fall short of the boundary and take more
steps, each with a new linearisation. `deepfool` takes steps that are exact in the box, but only part of the first
two (0.6 and 0.9), to the same effect: the classifier is linearised again before the boundary is reached. There it
linearises at the overshot point, as those libraries do. Mean l2 norms inside [0, 1] and passes per image, forward
and backward, of `python -m benchmarks.in_box` (fc500-mnist and mlp-mnist-small 400 images, lenet-mnist and
lenet-cifar10 150, conv-mnist-l2 60):

| network | at the point without overshoot, 0.6 and 0.7 | at the overshot one, 0.6 and 0.7 | 0.6 and 0.9 | 0.7 alone |
|---|---|---|---|---|
| fc500-mnist | 1.2652, 13.2 | 1.2440, 13.5 | 1.2441, 13.3 | 1.2515, 11.6 |
| mlp-mnist-small | 0.9366, 31.9 | 0.9220, 33.5 | 0.9257, 32.3 | 0.9391, 24.9 |
| lenet-mnist | 1.6717, 14.2 | 1.6458, 15.3 | 1.6506, 14.5 | 1.6721, 13.3 |
| lenet-cifar10 | 0.2966, 11.4 | 0.2922, 13.3 | 0.2944, 12.7 | 0.2988, 11.6 |
| conv-mnist-l2 | 3.641, 16.3 | 3.606, 17.3 | 3.633, 16.8 | 3.877, 14.8 |
"""

SMALL = """
## What was tried for small networks

On FC500 the passes are so short that half of the time goes into some two thousand small operations. What they cost
was counted by `perf` and by operation, on fc500-mnist, batch 200, one thread. Where no command is named, a figure is
from one comparison of two versions, in turns, whose script was not kept.

- Kept: products, clamps and `index_select` in place of `where`, boolean masks and `a[rows]` on whole batches. Those
  take five to thirty times as long (546 against 22 microseconds for 200 x 784 numbers). Sorted values from numpy in
  place of an order from torch. All rows, where those that could be left out multiply less than a million numbers:
  mlp-mnist-small takes 14 instead of 24 ms.
- Lost: rounds of 143 instead of 35 samples (a fifth more rows, no time gained); one shortened step instead of two
  inside bounds (a tenth fewer passes, but perturbations up to 6 % larger on conv-mnist-l2).
- Kept later, for fc500-mnist inside [0, 1] (batch 200, one thread, CPU time, in turns with the code before; the
  same answers): all rows at the first point, and classes left out from the second on. The first point took five
  rounds of rows, each with a forward pass; all rows in one round take no longer. Three classes first took 75.5 ms,
  two 82, one 88, six 71 and all nine 70. A class is not tried in the box if the features with room to move cannot
  reach its boundary sooner than another was reached: 7 instead of 14 computations of steps. Together 67 instead of
  73 ms in l2, 90 instead of 110 in linf, and 41 instead of 47 in a batch of 100.
- Kept later, for larger networks: a row of the whole batch that takes 8 MB or more is taken by itself. Several
  together do not fit in the caches: on one thread three rows of nin-cifar10 (batch 16) took 342 ms together and 277
  one after another, nine of lenet-mnist (batch 200) 515 and 411 (`python -m benchmarks.dense --only rows`); where a
  row has 5 MB or less, together is as fast (within 3 %) or faster. `deepfool` takes 0.84 of the time on nin-cifar10
  (batch 32, free) and 0.95 to 1.01 on lenet-mnist (batch
  200, three runs).
- Lost: the Jacobian of a dense network in closed form, as a chain of matrix products without autograd. The rows of
  three classes of 200 images took 5.9 ms where autograd takes 6.3, nine 17.7 and 18.4, the forward pass 2.0 both
  ways: the products run at the speed of the machine already. Leaving classes out by how much the box lengthened the
  way to the nearest (l2): that saves 0.15 of 8.6 rows if other ways may be lengthened 1.15 times less, and 1.5 if
  not at all less, but some were lengthened 1.3 times less (1.6 in linf).
- What is left there, of 67 ms: 36 are passes, 4 the slopes at the last hidden layer, 9 steps in the box. The rest
  is spread over many small operations; no function takes 3 ms of it.
- Lost: a compiled inner loop. The seven searches of a batch for how far to go in the box take 2.7 ms. The same
  rounds take 4.6 by `torch.jit.script` and 4.8 by `torch.compile`, which needs a C++ compiler and 3 s to start, 3.4
  in numpy, and 3.6 if samples that are done leave.

For fewer rows, on larger networks too, these were tried. Slopes are those at x_0, of 1000 images of fc500-mnist,
lenet-mnist and lenet-cifar10 and 200 of nin-cifar10, in this order; times are CPU time of one thread, in turns:

- Lost: the row of the likeliest class alone, and others only if its step fails. Another class is nearer than the
  likeliest for 215, 227, 151 and 35 of the images, so the step would be another one.
- Lost: one class or two first instead of three. Without bounds lenet-mnist (batch 200) took 458, 455 and 472 ms,
  lenet-cifar10 (100) 518, 524 and 535, nin-cifar10 (32) 1784, 1752 and 1760: rows saved are spent on second rounds.
  With one class, two images missed their nearest class.
- Lost: better guesses of the slopes. How many rows are needed follows from the largest errors, not from the usual
  ones. The logarithm of true over guessed slopes has a standard deviation of 0.10, 0.09, 0.11 and 0.11 within a
  sample, and one in a thousand is too low by a factor of 1.32, 1.28, 1.50 and 1.49. Corrected by the mean for each
  pair of classes (of other images, so that samples would depend on each other) that is 1.28, 1.26, 1.43 and 1.51. The
  rows that are known say little more. Of what follows from three rows and from how the gradients of the classes
  overlap at the hidden layer, one in a thousand is too low by 1.35, 1.35, 1.53 and 1.39, where the steepest of the
  three, as it is used, has 1.26, 1.28, 1.42 and 1.23. An earlier layer is better on fc500-mnist (1.18 at the first
  one), but the gradients of all classes there cost 0.7 of a row at each point. The second convolution of lenet-mnist
  has 1.26.
- Lost: inside bounds, to count only the features that have room to move. As it is that takes 0.91 of the time on
  lenet-mnist (batch 200) in l2 and 0.79 in linf, 0.98 on fc500-mnist (200) and 1.02 on lenet-cifar10 (50). But of
  14,395 samples of random models with many features at their bounds, 4 ended more than 0.1 % farther out. With 5 % to
  spare, and only where the known classes agree to a factor of 1.2, none of 28,798 did. Then lenet-mnist takes 1.01 of
  the time in l2 and 0.90 in linf, and fc500-mnist 1.05 in both. As it was, none did either.
- Lost, without a try: the graph of a test inside bounds kept for the samples that are not fooled, to save them a
  forward pass at the same point. Rows from it would be those of the whole batch, and less than half of it is left.

`smallest` with 100 passes inside [0, 1], before and after the changes below, in milliseconds of CPU time per image
(one thread, a shared machine, both in turns in one process; the same mean norms to five digits, and the same passes).
The bare passes take 1.3 to 1.6. `python -m benchmarks.dense` measures the present state:

| fc500-mnist | l2 | linf | l1 |
|---|---|---|---|
| batches of 50 | 9.6, 6.4 | 7.5, 6.2 | 9.9, 8.2 |
| batches of 200 | 5.2, 3.6 | 4.1, 3.3 | 5.0, 3.9 |

Since then the search has changed: where it converges sooner it restarts sooner, sample by sample, in smaller groups.
On a quiet machine `python -m benchmarks.dense` gave 3.6, 3.4 and 3.3 in batches of 200 and 7.0, 6.1 and 5.3 in
batches of 50, where the bare passes took 1.1 and 1.3. In the same run `candidates="auto"` took at most 3 % longer
than "all" in the 20 cases of FC500 and both LeNets, in batches of 1 to 100, and was up to 2.3 times as fast.

- Kept: each projection begins at the multiplier t of the round before (median error 0.4 % in l2). Newton's method then
  takes 5.0 instead of 9.4 rounds over the features until the last row of a batch of 50 is done (3.1 instead of 3.3 in
  linf), and takes them in numpy, whose operations on a few numbers need a third of the time. Rows are gathered by
  `index_select`, and not at all if they are all; `abs().sum()` in place of torch's l1 norm (28 against 156
  microseconds for 200 x 784 numbers); a sum to see that all is finite (16 against 325). Where looking at numbers means
  waiting, the pieces are sorted instead: 5 to 10 waits a pass, not 11 to 19. Steps of `deepfool` inside bounds make
  fewer passes over the features: 5 % of its time on fc500-mnist in l2, 12 % in linf (batch 200).
- Lost: a multiplier guessed from the middle of the box (median error 3.3 %; 3.9 rounds for the mean row of 50 images,
  and 2.5 from a guess that is 1 % off); false position in place of bisection (3.9 rounds as well) and a cubic through
  both ends (4.6); sorting the pieces for all rows (181 ms for all projections of 50 images in l2, where Newton's method
  from zero took 155) or for those that are left after four or six rounds (217 and 169); for l1 an order from sorted
  integers that carry the index (463 microseconds for 50 x 784, the values alone 171).
"""

AIMS = """
## What separates these figures from the aims

"Aim" is the speed-up that we set out to reach. On LeNet, NIN and EfficientNet-Lite0 the time is little more than
that of the bare passes, so only fewer passes would make `deepfool` much faster. It takes five to six gradient rows
per image, where the gradients of all classes take ten to eighteen. One row per step would be enough if the nearest
class were known; the other rows make sure that it is the nearest. The libraries that run without bounds take
only a few more steps than `deepfool` does, so the rows are all that is left to gain on them. On FC500 the passes are
so short that nearly as much time goes into the small operations between them.
"""

CHOICES = """\
`evaluate` uses the channels-last layout for images if most of the weights belong to convolutions of 64 channels or
more (`deepfool.runs.execution.prefers_channels_last`). It keeps freed memory for the next batch instead of returning
it to the system ("kept memory"). It compiles the model only with `--compile`, because compiled backward passes take
one class at a time and compiling takes a minute. The number of threads is torch's own choice, one per core; with
`--workers`, the cores are divided among the workers.
"""


def write_page(work: Path, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    cases = [json.loads(file.read_text()) for file in sorted(work.glob("*.json"))]
    prices = [json.loads(file.read_text()) for file in sorted((work / "price").glob("*.json"))]
    choices = [json.loads(file.read_text()) for file in sorted((work / "choices").glob("*.json"))]
    lines = [HEAD]
    for case in cases:
        lines += _describe(case)
    lines += ["![speed-up over other libraries](speed.svg)", AIMS, NORMS, SMALL] if cases else []
    lines += _list_prices(prices) + _tell_many(work / "many-classes")
    lines += _list_scaling([json.loads(file.read_text()) for file in sorted((work / "scaling").glob("*.json"))])
    lines += _list_choices(choices)
    (out / "speed.md").write_text("\n".join(lines).rstrip() + "\n")
    if cases:
        _draw(cases, out / "speed.svg")


def _describe(case: dict[str, Any]) -> list[str]:
    own = [name for name in case["seconds"] if name.startswith("deepfool")]
    peers = [name for name in case["seconds"] if name not in own]
    lines = [
        f"## {case['case']}", "",
        f"{case['threads']} threads, {case['rounds']} rounds; `deepfool` took {case['floor']:.2f} times as long as the "
        "bare forward passes and backward rows that it used.", "",
        "| | ms per image | mean norm | fooled |" + "".join(f" faster than {p} | norm : {p} |" for p in peers),
        "|---|---|---|---|" + "---|---|" * len(peers),
    ]  # fmt: skip
    for name in own + peers:
        norms = [v for v in case["norms"][name] if v is not None]
        mean = f"{sum(norms) / len(norms):.4f}" if norms else "-"
        cells = f"| {name} | {1000 * case['seconds'][name]:.2f} | {mean} | {len(norms)}/{len(case['norms'][name])} |"
        for peer in peers:
            if name in peers:
                cells += " | |"
                continue
            target = case["targets"].get(peer) if name == "deepfool" else None
            faster, ratio = case["seconds"][peer] / case["seconds"][name], _ratio(case, name, peer)
            if math.isnan(ratio):  # it fooled nothing: its time says nothing
                cells += " - | - |"
                continue
            cells += f" {faster:.1f}" + (f" (aim {target})" if target else "") + f" | {ratio:.3f} |"
        lines.append(cells)
    return [*lines, ""]


def _ratio(case: dict[str, Any], name: str, peer: str) -> float:
    pairs = zip(case["norms"][name], case["norms"][peer], strict=False)  # a peer may have had fewer images
    both = [(a, b) for a, b in pairs if a is not None and b is not None]
    return sum(a for a, _ in both) / sum(b for _, b in both) if both else math.nan


def _list_prices(prices: list[dict[str, Any]]) -> list[str]:
    if not prices:
        return []
    lines = [
        "## What it costs to leave classes out", "",
        '`"auto"` compared with `"all"`: the share of images with the same final perturbation, the largest ratio of the'
        ' norms for any image, and gradient rows and forward passes per image. "Other batches" is `"all"` compared with'
        " itself in batches of 37 instead of 200 images, where only the rounding of sums differs: it decides for images"
        ' that lie next to a boundary. "Only auto" counts the images that are the same in other batches, but not with'
        ' `"auto"`.', "",
        '| network | norm | images | the same | other batches | only auto | worst ratio | rows: all | auto '
        "| forwards: all | auto |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for price in prices:
        where = price["norm"] + (" in [0, 1]" if price["boxed"] else "")
        lines.append(
            f"| {price['network']} | {where} | {price['images']} | {price['same']:.2%} | {price['same_batched']:.2%} "
            f"| {price['only_auto']} | {price['worst']:.4f} "
            f"| {price['rows']['all']:.1f} | {price['rows']['auto']:.1f} "
            f"| {price['forwards']['all']:.1f} | {price['forwards']['auto']:.1f} |"
        )
    return [*lines, ""]


def _tell_many(work: Path) -> list[str]:
    """What benchmarks/many_classes.py found."""
    files = work / "timing.json", work / "first-steps.json"
    if not all(file.exists() for file in files):
        return []
    timing, same = (json.loads(file.read_text()) for file in files)
    return [
        "## A thousand classes", "",
        f"`python -m benchmarks.many_classes FOLDER`, EfficientNet-Lite0 at 224 px, {timing['threads']} threads. A run "
        f"over all 1000 classes took {timing['ratio']:.2f} times as long as one over the ten top-scoring (batch "
        f"{timing['batch']}, median over {timing['rounds']} round(s)). The first step agreed with the full Jacobian in "
        f"{sum(same)} of {len(same)} images. Peak memory of the whole process: {timing['peak']:.2f} GB.", "",
    ]  # fmt: skip


def _list_scaling(found: list[dict[str, Any]]) -> list[str]:
    """What benchmarks/scaling.py found."""
    if not found:
        return []
    lines = ["## More samples, more workers", "",
             "`python -m benchmarks.scaling`: whole runs of `evaluate`, one thread per worker.", ""]  # fmt: skip
    for one in found:
        sizes = ", ".join(
            f"{ratio:.2f} for {size}" for size, ratio in zip(one["sizes"], one["per_sample"], strict=True)
        )
        crews = ", ".join(f"{way} {ratio:.2f} times as fast as one" for way, ratio in one["speedup"].items())
        memory = ", ".join(f"{size:.0f}" for size in one.get("memory", ()))
        more = f" Peak memory in MB: {memory}." if memory else ""
        more += f" Ray adds {one['ray']:.1%} to the work of a batch of the default size." if "ray" in one else ""
        lines.append(f"- {one['network']}: time per sample relative to the smallest run {sizes}; {crews}.{more}")
    return [*lines, ""]


def _list_choices(choices: list[dict[str, Any]]) -> list[str]:
    if not choices:
        return []
    ways = list(dict.fromkeys(way for choice in choices for way in choice["ratios"] if way != "plain"))
    lines = ["## What was tried", "",
             "`make bench BENCH_OPTIONS=--choices`: time relative to the default run; below 1 is faster.", "",
             "| network | batch | " + " | ".join(ways) + " |", "|---|---|" + "---|" * len(ways)]  # fmt: skip
    for choice in choices:
        cells = [
            f"{choice['ratios'][way]:.2f}" if way in choice["ratios"] else "failed" if way in choice["failed"] else "-"
            for way in ways
        ]
        lines.append(f"| {choice['network']} | {choice['batch']} | " + " | ".join(cells) + " |")
    return [*lines, "", CHOICES]


def _draw(cases: list[dict[str, Any]], file: Path) -> None:
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(8, 1 + 0.9 * len(cases)), layout="constrained")
    colours = {
        "adv-lib": "#d55e00",
        "adv-lib, freed": "#e69f00",
        "foolbox": "#009e73",
        "ART": "#cc79a7",
        "torchattacks": "#56b4e9",
    }
    named: list[tuple[float, float, str]] = []
    for row, case in enumerate(reversed(cases)):
        for name, seconds in case["seconds"].items():
            if name in colours and not math.isnan(_ratio(case, "deepfool", name)):
                ratio = seconds / case["seconds"]["deepfool"]
                axis.scatter(ratio, row, color=colours[name], zorder=3)
                named.append((ratio, row, name))
    axis.set(xscale="log", xlabel="times as long as deepfool, per image", yticks=range(len(cases)))
    axis.set_yticklabels([case["case"] for case in reversed(cases)], fontsize=8)
    axis.axvline(1, color="#0072b2")
    axis.grid(alpha=0.3, axis="x")
    axis.margins(0.1)
    place_labels(axis, named)
    figure.savefig(file, metadata={"Date": None})
