"""Which of two models is more robust? Paired measurements on the same samples, and one report for both."""

import deepfool
from deepfool.metrics import compare, summarize
from deepfool.reporting.page import write_report

runs = {
    name: deepfool.evaluate(name, "mnist-sample", out=f"runs/{name}", limit=100)
    for name in ("fc500-mnist", "lenet-mnist")
}
for name, run in runs.items():
    figures = summarize(run)
    print(f"{name:12} accuracy {figures['accuracy']['value']:.3f}, rho_adv {figures['rho_adv']['value']:.4f}")

found = compare(runs["fc500-mnist"].records(), runs["lenet-mnist"].records(), "l2")
print(f"mean difference of ||r|| / ||x||: {found.mean_difference}")
print(f"larger in the second for {found.larger_in_b} of {found.pairs} samples; Wilcoxon's p-value {found.p_value:.2g}")

page = write_report(list(runs.values()), "runs/both.html", gallery=False)
print(f"both on one page: {page}")
