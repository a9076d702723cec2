"""A run on a Ray cluster of two nodes, one of which is lost on the way: `python clustering.py FOLDER`, run by
test_engines.py."""

import json
import os
import sys
import threading
import time
from pathlib import Path

from ray.cluster_utils import Cluster

from deepfool import evaluate
from tests import nets


def main(out: Path) -> None:
    notes = Path(os.environ["NOTES"])
    soon = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 200, "health_check_failure_threshold": 2}
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False, "_system_config": soon}
    )
    doomed = cluster.add_node(num_cpus=1)
    (notes / "doomed").write_text(doomed.node_id)

    def lose_node() -> None:
        while not list(notes.glob("waiting *")):
            time.sleep(0.01)
        cluster.remove_node(doomed, allow_graceful=False)

    threading.Thread(target=lose_node, daemon=True).start()
    try:
        evaluate(
            "py:tests.nets:small", nets.points(80), nets.deepfool_on_a_doomed_node, out=out, batch_size=8, engine="ray",
            ray_address=cluster.address,
        )  # fmt: skip
        told = [note.name for note in notes.iterdir() if note.name.startswith("ran ")]
        print(json.dumps({"doomed": doomed.node_id, "notes": told}))
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
