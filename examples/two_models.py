"""Which of two models is more robust? Paired measurements on the same samples, and one report for both."""

import deepfool
from deepfool.metrics.pairing import pair
from deepfool.reporting.page import write_report

names = ("fc500-mnist", "lenet-mnist")
first, second = (deepfool.evaluate(name, "mnist-sample", limit=100) for name in names)
for run in (first, second):
    print(run.summary())

print(pair(first, second).sentence)

page = write_report([first, second], "runs/both.html", gallery=False)
print(f"both on one page: {page}")
