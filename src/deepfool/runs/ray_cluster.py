"""Workers on a Ray cluster. The one file that names Ray."""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from deepfool.errors import DeepFoolError, InputError, RunError, require
from deepfool.runs.backlog import Backlog, Task, fail_to_start
from deepfool.runs.rows import Group
from deepfool.runs.worker import Batch, Job, RemoteWorker

START_TIMEOUT = 300.0
"""Seconds in which at least one Ray worker has to start."""

AHEAD = 2
"""Batches that a worker has at once: the one that it runs, and the next, so that it need not wait for us in between."""

CONNECT_TIMEOUT = 5.0
"""Seconds in which the machine of a Ray cluster has to answer."""


def run_on_ray(
    job: Job, batches: Iterable[Batch], workers: int | None, address: str | None
) -> Generator[Group, None, None]:
    """Run batches on Ray: the cluster at `address`, the one this process is connected to, or a local one."""
    with keeping_ray(workers, address):
        ray = _import_ray()
        actors = _start_actors(ray, job, workers, may_grow=address is not None)
        try:
            yield from _work_through(ray, actors, Backlog(batches))
        finally:
            for actor in actors:
                ray.kill(actor)


def _start_actors(ray: Any, job: Job, workers: int | None, *, may_grow: bool) -> list[Any]:
    """One actor per worker, each with a CPU or a GPU of its own. Ray restarts those that crash, on any node.

    Where the cluster `may_grow`, all the workers that were asked for are: those for which there is no room yet tell
    an autoscaler to add nodes, and no batch waits for them.
    """
    gpu = job.device.startswith("cuda")
    available = int(ray.cluster_resources().get("GPU" if gpu else "CPU", 0))
    count = workers if workers and may_grow else min(workers or available, available)
    if count < 1:
        raise RunError(f"the Ray cluster has no {'GPU' if gpu else 'CPU'}.", hint="choose another --device.")
    try:
        payload = ray.put(replace(job, device="cuda") if gpu else job)
    except Exception as error:
        raise InputError(f"the model or the attack cannot be sent to Ray: {error}.") from error
    resources = {"num_cpus": 1, "num_gpus": 1} if gpu else {"num_cpus": 1}
    actor = ray.remote(**resources, max_restarts=-1)(RemoteWorker)
    threads = None if gpu else 1  # as many as Ray sets aside
    return [actor.remote(payload, threads) for _ in range(count)]


@dataclass(eq=False)
class _Hand:
    """A worker, and the calls with the batches that it was given: it runs them in this order."""

    actor: Any
    given: deque[tuple[Any, Task]] = field(default_factory=deque)


def _work_through(ray: Any, actors: list[Any], backlog: Backlog) -> Generator[Group, None, None]:
    """Keep each actor in batches until the backlog is empty.

    Batches of crashed actors go to any other one. Ray's own max_task_retries would keep them for the actor that
    crashed, and wait forever if its machine is gone for good. Only the first batch that an actor has in hand is waited
    for: if the actor crashes, that one is to blame, and it had not begun with the next.
    """
    starting = {_when_ready(actor): _Hand(actor) for actor in actors}
    hands: list[_Hand] = []
    started = False
    while True:
        running = {hand.given[0][0]: hand for hand in hands if hand.given}
        done, _ = ray.wait([*running, *starting], num_returns=1, timeout=None if started else START_TIMEOUT)
        if not done:
            raise RunError(
                f"no Ray worker started within {START_TIMEOUT:.0f} s.", hint="does the cluster have room for one?"
            )
        hand = running[done[0]] if done[0] in running else starting.pop(done[0])
        groups: list[Group] = []
        try:
            groups = ray.get(done[0])
            started = True
            if hand.given:
                hand.given.popleft()
            else:
                hands.append(hand)
        except ray.exceptions.RayTaskError as error:
            raise _read_error(error) from None
        except ray.exceptions.RayError as error:
            why = str(error).strip().splitlines()[0]
            if hand.given:
                hands.remove(hand)
                _take_back(hand, backlog, why)
                starting[_when_ready(hand.actor)] = hand
            elif not (starting or hands):  # Ray has given this one up, and it was the last
                raise fail_to_start(why) from error
        _hand_out(hands, backlog)  # before the rows are written: no worker waits for that
        yield from groups
        if hands and not any(hand.given for hand in hands):
            return


def _hand_out(hands: list[_Hand], backlog: Backlog) -> None:
    """Give batches to those that have the fewest first."""
    for count in range(AHEAD):
        for hand in hands:
            if len(hand.given) == count and (task := backlog.next()) is not None:
                hand.given.append((hand.actor.run.remote(task.batch), task))


def _take_back(hand: _Hand, backlog: Backlog, why: str) -> None:
    """Put the batches of a crashed worker back."""
    (_, first), *rest = hand.given
    hand.given.clear()
    backlog.retry(first, why)
    for _, task in rest:
        backlog.put_back(task)


def _when_ready(actor: Any) -> Any:
    """Answers once the actor is up, however often it has to be restarted until then."""
    return actor.run.options(max_task_retries=-1).remote(None)


def _read_error(error: Any) -> DeepFoolError:
    cause = error.cause
    return cause if isinstance(cause, DeepFoolError) else RunError(f"a Ray worker failed: {cause}.")


@contextmanager
def keeping_ray(workers: int | None = None, address: str | None = None) -> Iterator[None]:
    """Start Ray once for several runs; without this, each run on Ray starts and stops its own."""
    ray = _import_ray()
    own = not ray.is_initialized()
    if own:
        _connect(ray, workers, address)
    try:
        yield
    finally:
        if own:
            ray.shutdown()


def check_address(address: str) -> None:
    """Check that something listens at the address of a Ray cluster; Ray itself would try for minutes in silence.

    >>> check_address("127.0.0.1:1")
    Traceback (most recent call last):
    ...
    deepfool.errors.RunError: no Ray cluster answers at 127.0.0.1:1: ... Hint: ...
    """
    if address == "auto":  # Ray looks for a cluster on this machine, and fails at once if there is none
        address = os.environ.get("RAY_ADDRESS", "auto")
    if address in ("auto", "local"):
        return
    host, port = _split_address(address)
    try:
        socket.create_connection((host, port), timeout=CONNECT_TIMEOUT).close()
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise RunError(
            f"no Ray cluster answers at {address}: {why}.",
            hint="check that it is running and that the port is open.",
        ) from error


def _split_address(address: str) -> tuple[str, int]:
    """Host and port of HOST:PORT or ray://HOST:PORT.

    >>> _split_address("ray://head.example:10001"), _split_address("[::1]:6379")
    (('head.example', 10001), ('::1', 6379))
    """
    host, colon, port = address.removeprefix("ray://").partition("?")[0].rstrip("/").rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit() and 0 < int(port[:6]) < 2**16):
        raise InputError(f"a Ray address must be HOST:PORT, ray://HOST:PORT or auto, got {address!r}.")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _connect(ray: Any, workers: int | None, address: str | None) -> None:
    if address is not None:
        check_address(address)
    options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address is None:
        cores = max(workers or 1, os.cpu_count() or 1)
        options |= {"address": "local", "num_cpus": cores, "include_dashboard": False}
    else:
        options |= {"address": address}
    try:
        ray.init(**options)
    except Exception as error:
        raise RunError(f"cannot connect to Ray at {address or 'this machine'}: {error}.") from error


def _import_ray() -> Any:
    require("ray.exceptions", extra="ray", purpose="--engine ray")
    return require("ray", extra="ray", purpose="--engine ray")
