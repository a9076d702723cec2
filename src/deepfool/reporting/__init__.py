"""REPORT: what a run found, for people to read. Pages, tables and figures are made from the run folder alone.

    page.py         the self-contained HTML page: `write_report`
      wording.py      the verdict in words (most are made in `metrics.verdict`); names as text
      references.py   the values of other networks, and what sets a run apart from them
      peers.py        the table of other networks
      times.py        times as people read them
      charts.py       the numbers that the charts draw
      gallery.py      the most fragile and the most robust samples
      naming.py       names of classes
      provenance.py   how it was measured, and the command to repeat it
      pairs.py        several runs compared: in words, and the same samples side by side
      signoff.py      the first page on paper, which can be signed
    printing.py     the page as a PDF, by the Chromium of the system
    tables.py       the numbers as Markdown, CSV and LaTeX
    figures.py      vector figures for papers (matplotlib)
    single.py       one image against one model
    images.py       samples and perturbations as pixels
    picture.py      original, perturbed image and perturbation side by side
    rounding.py     a perturbation that survives rounding to 8 bits

The page draws its charts with Plotly's basic bundle (MIT licence, in `vendor/`; 1.2 MB instead of 3.5 MB for all of
Plotly). It has the two chart types we need, zooms, and shows values on hover.
"""
