"""RECORDS: from a model and data to a run folder.

manifests.py      what a run is: its identity, and where it was measured
naming.py         the default folder of a run
rows.py           one row per sample: its fields, the checks on them, and the rows as columns
columns.py        a records file as columns, read in blocks
kept.py           the columns of a large run, kept beside its records
records.py        a run folder, for reading
writing.py        the one process that writes a run folder
merging.py        several runs joined into one
evaluation.py     `evaluate`: attack every sample, write one row for each
execution.py      how a model is run: device, memory layout, torch.compile
worker.py         what one worker does with a batch
backlog.py        the batches still to run, and those to retry
local.py          workers on this machine
ray_cluster.py    workers on a Ray cluster
audit/            how far to trust what was measured: a checklist
labels.py         whether the labels of the data are those of the model
consistency.py    whether the scores of a model are stable
cautions.py       what that found, as warnings
gallery.py        the samples that the report shows
collecting.py     their pictures, kept when a run completes
verification.py   check a run again from its stored perturbations
verified.py       what that found, kept in the run folder
"""
