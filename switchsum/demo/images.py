"""The demo's data: scikit-learn's handwritten digits, 1,797 real images of 8 x 8 pixels.

Loaded once, by the process that starts the workers: scikit-learn takes longer to import than the training takes to run.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

TEST_SHARE = 0.2


def save(path: Path, seed: int) -> None:
    """Write the split that `seed` gives: images float32[N, 1, 8, 8] in 0..1 and labels int64[N], of both parts.

    Each digit keeps its share in both parts. The file is numpy's npz with the fields of `digits.Digits`.
    """
    pixels, labels = load_digits(return_X_y=True)
    images = (pixels / 16.0).astype(np.float32).reshape(-1, 1, 8, 8)
    train_images, test_images, train_labels, test_labels = train_test_split(
        images, labels.astype(np.int64), test_size=TEST_SHARE, random_state=seed, stratify=labels
    )
    np.savez(
        path,
        train_images=train_images,
        train_labels=train_labels,
        test_images=test_images,
        test_labels=test_labels,
    )
