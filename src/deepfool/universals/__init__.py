"""UNIVERSAL: one perturbation v for all images.

ball.py        where v may lie, and what an image becomes with it: ball, box, mask
images.py      some images as one model sees them: decisions, margins, which of them v fools
classic.py     a step of the algorithm of 2017: DeepFool on the images that v does not fool yet
ascent.py      a step of the gradient form: ascent on the clipped margin of a mini-batch
searching.py   the loop around both; a state that can be stored and resumed
selecting.py   which images are used, and which are kept out to judge
measures.py    against xi, against the number of images, on other models
results.py     what is returned, and how it is stored
universal.py   `universal`
"""
