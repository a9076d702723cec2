"""DISPLAY: pictures, tables and curves as HTML, for notebooks. Pure functions of arrays and text.

    pixels.py   samples and perturbations as pictures
    tables.py   tables, paragraphs and marks
    curves.py   a curve as SVG

Notebooks are light or dark, and each front end says so in its own way. So nothing here has a background: text and lines
take the colour of the text around them, and the few colours of our own can be read on white and on black. Styles are
inline, because a notebook that is opened without being run drops style sheets.
"""
