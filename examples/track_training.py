"""Robustness while a network trains: measured on 50 fixed digits every second epoch, and logged to TensorBoard."""

import torch
from torch import nn
from torch.utils.tensorboard import SummaryWriter

import deepfool
from deepfool.integrations import Probe, tensorboard

data = deepfool.datasets.load("mnist-sample")
x, y = data.batch(range(800)), torch.as_tensor(data.labels[:800])
unseen = data.batch(range(800, 1000)), data.labels[800:]

torch.manual_seed(0)
net = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
probe = Probe(unseen, samples=50, every=2)
probe.try_out(net)  # says now, not after hours, if the network cannot be measured

with SummaryWriter("runs/tensorboard") as writer:
    for epoch in range(1, 7):
        for rows in torch.randperm(len(x)).split(50):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()
        if probe.is_due(epoch) and (found := probe.measure(net, epoch)):
            for name, value in found.figures.items():
                writer.add_scalar(f"robustness/{name}", value, epoch)
            print(f"epoch {epoch}: accuracy {found.figures['accuracy']:.2f}, rho_adv <= {found.rho}")
    run = deepfool.evaluate(net, unseen)  # in the end, all of them
    tensorboard.log_run(run, writer, step=epoch, prefix="final")
print(f"{run.folder} is in TensorBoard too: tensorboard --logdir runs/tensorboard")
