"""REPORT: what a run found, to look at.

    page.py         the self-contained HTML page: `write_report`
      wording.py      the verdict in words, and numbers as text
      references.py   what other networks reach
      charts.py       the few numbers that the charts draw
      gallery.py      the most fragile and the most robust samples
      naming.py       labels as people call them
      provenance.py   how it was measured, and the command to repeat it
    tables.py       the figures as Markdown, CSV and LaTeX
    figures.py      vector figures for papers (matplotlib)
    single.py       one image against one model
    images.py       samples and perturbations as pictures
    picture.py      one image: original, perturbed, perturbation
    rounding.py     a perturbation that survives 8 bits

The charts of the page are drawn by Plotly's basic bundle (1.2 MB of the 3.5 MB of the whole; MIT licence; in
`vendor/`): it has the two kinds that are needed, zooms, and shows numbers where the pointer is.
"""
