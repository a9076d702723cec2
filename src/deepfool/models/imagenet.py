"""The 1,000 classes of ImageNet (ILSVRC 2012) in the challenge's order: WordNet's synset ids, and a name for each."""

from __future__ import annotations

import functools
from pathlib import Path


@functools.cache
def list_classes() -> tuple[tuple[str, str], ...]:
    """The synset and the name of each class.

    >>> list_classes()[3]
    ('n01491361', 'tiger shark')
    """
    lines = (Path(__file__).parent / "imagenet_classes.tsv").read_text("utf-8").splitlines()
    return tuple((synset, name) for synset, _, name in (line.partition("\t") for line in lines))


def list_names() -> tuple[str, ...]:
    """The names alone.

    >>> list_names()[:2]
    ('tench', 'goldfish')
    """
    return tuple(name for _, name in list_classes())


def list_synsets() -> tuple[str, ...]:
    """The synset ids alone.

    >>> list_synsets()[:2]
    ('n01440764', 'n01443537')
    """
    return tuple(synset for synset, _ in list_classes())
