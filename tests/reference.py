"""A slow, literal transcription of Algorithms 1 and 2 in NumPy, one sample at a time, with hand-written gradients.

It shares no code with the package. The names are the paper's; line numbers refer to its two listings.
"""

from __future__ import annotations

import math

import numpy as np


class DenseNetwork:
    """f(x) = W_m a(... a(W_1 x + b_1) ...) + b_m with its Jacobian written out by the chain rule."""

    def __init__(self, weights: list[np.ndarray], biases: list[np.ndarray], activation: str) -> None:
        self.weights, self.biases, self.activation = weights, biases, activation

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return self.with_jacobian(x)[0]

    def with_jacobian(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        h, jacobian = x, np.eye(len(x))
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            h, jacobian = weight @ h + bias, weight @ jacobian
            if i < len(self.weights) - 1:
                if self.activation == "relu":
                    slope, h = (h > 0).astype(float), np.maximum(h, 0)
                else:
                    h = np.tanh(h)
                    slope = 1 - h**2
                jacobian = slope[:, None] * jacobian
        return h, jacobian


def lp_step(gap: float, w: np.ndarray, p: float) -> np.ndarray:
    """|f'| / ||w'||_q^q * |w'|^(q-1) * sign(w'), with the limits at p = 1 and p = inf."""
    if p == math.inf:
        return gap / np.abs(w).sum() * np.sign(w)
    if p == 1:
        r = np.zeros_like(w)
        i = np.abs(w).argmax()
        r[i] = gap / w[i]
        return r
    q = p / (p - 1)
    return gap / (np.abs(w) ** q).sum() * np.abs(w) ** (q - 1) * np.sign(w)


def algorithm_1(f: DenseNetwork, x: np.ndarray, p: float, eta: float = 0.02, limit: int = 50) -> tuple[np.ndarray, int]:
    """The binary case: a single output, decided by its sign."""
    x_0, r_hat, i = x, np.zeros_like(x), 0
    while np.sign(f(x_0 + (1 + eta) * r_hat)[0]) == np.sign(f(x_0)[0]) and i < limit:  # line 4
        value, gradient = f.with_jacobian(x_0 + r_hat)
        r_hat = r_hat - lp_step(value[0], gradient[0], p)  # lines 5 and 6
        i += 1  # line 7
    return (1 + eta) * r_hat, i


def algorithm_2(f: DenseNetwork, x: np.ndarray, p: float, eta: float = 0.02, limit: int = 50) -> tuple[np.ndarray, int]:
    """The multiclass case."""
    x_0, r_hat, i = x, np.zeros_like(x), 0
    k_hat = f(x_0).argmax()
    q = math.inf if p == 1 else 1.0 if p == math.inf else p / (p - 1)
    while f(x_0 + (1 + eta) * r_hat).argmax() == k_hat and i < limit:  # line 5
        value, gradient = f.with_jacobian(x_0 + r_hat)
        w_prime = {k: gradient[k] - gradient[k_hat] for k in range(len(value)) if k != k_hat}  # lines 6 to 9
        f_prime = {k: value[k] - value[k_hat] for k in w_prime}
        l_hat = min(w_prime, key=lambda k: abs(f_prime[k]) / np.linalg.norm(w_prime[k], q))  # line 10
        r_hat = r_hat + lp_step(abs(f_prime[l_hat]), w_prime[l_hat], p)  # lines 11 and 12
        i += 1  # line 13
    return (1 + eta) * r_hat, i
