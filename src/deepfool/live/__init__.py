"""LIVE: a page on this machine on which one draws a digit or drops a photo and sees the decision fall.

    exhibit.py     what is shown: the models, the data, the order of its samples
    questions.py   what a visitor asks, checked before anything runs
    jobs.py        one worker, a short queue, cancelling
    stages.py      what happens to a question, in order; each stage sends what it finds at once
    app.py         the addresses; safety.py guards them, serving.py starts them
    static/        the page: plain JavaScript modules, no build step

Starlette and uvicorn serve it (extra `live`): both are small, typed, and what most of Python's web servers stand on.
Progress is a stream of server-sent events in the answer to the request itself, so that leaving the page ends the job.
The charts are drawn by the page: Plotly adds style elements of its own, which the page's Content-Security-Policy
forbids.
"""
