"""How far to trust what a run measured: a checklist, each line pass, caution or fail with a sentence and a number.

checklist.py      the checklist itself, and the file `audit.json` in the run folder
subject.py        what is audited: a few samples, the rows of the run, and what the strongest attack finds there
on_the_model.py   checks of the model: random scores, dead gradients, hidden or saturated operations
on_the_result.py  checks of the result: more budget, a stronger attack, what rows were found by, bounds, 8 bits
auditing.py       `audit`: of a run, or of a model and data
"""
