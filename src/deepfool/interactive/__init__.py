"""IN PYTHON AND NOTEBOOKS: the run as an object that measures, checks and shows itself.

    runs.py         `Run`: summary, report, data frame, check, and what a notebook shows of it
    evaluation.py   `evaluate` and `finetune` with a progress bar where there is a notebook
    frames.py       the rows of a run as a pandas data frame
    showing.py      verdict, curve and tables as HTML
    progress.py     the bar

`deepfool.evaluate`, `deepfool.finetune` and `deepfool.Run` are these. They stand late in the order of imports because
they bring together what is before them: records, metrics and the report. What they add to `deepfool.runs` is comfort;
the numbers are the same.
"""
