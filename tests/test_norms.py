import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deepfool import norms
from deepfool.boxes import project, step_in_box
from deepfool.errors import InputError
from deepfool.norms import check_p, direction, distance, dual, norm, project_on_ball, step
from tests.oracles import solve_boxed

ALL_P = [1.0, 1.5, 2.0, 4.0, math.inf]


@pytest.mark.parametrize("p", [*ALL_P, 1.0001, 1000.0])
def test_direction_has_unit_norm_and_attains_the_dual_norm(p):
    w = torch.randn(20, 30, dtype=torch.float64)
    u = direction(w, p)
    torch.testing.assert_close(norm(u, p), torch.ones(20, dtype=torch.float64))
    torch.testing.assert_close((w * u).sum(-1), norm(w, dual(p)))


@pytest.mark.parametrize("p", ALL_P)
def test_step_closes_the_gap_at_the_distance(p):
    w, gap = torch.randn(20, 30, dtype=torch.float64), torch.rand(20, dtype=torch.float64)
    r = step(gap, w, p)
    torch.testing.assert_close((w * r).sum(-1), gap)
    torch.testing.assert_close(norm(r, p), distance(gap, w, p))


@pytest.mark.parametrize("p", ALL_P)
@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_tiny_and_huge_gradients_stay_in_range(p, scale):
    w = torch.tensor([[3.0, -4.0, 0.0]])
    r = step(torch.tensor([scale]), w * scale, p)
    torch.testing.assert_close(r, step(torch.tensor([1.0]), w, p))


def test_zero_and_broken_normals_are_infinitely_far():
    w = torch.tensor([[0.0, 0.0], [math.nan, 1.0], [math.inf, 1.0], [1.0, 1.0]])
    for p in ALL_P:
        assert distance(torch.ones(4), w, p).isfinite().tolist() == [False, False, False, True]


@pytest.mark.parametrize("p", ALL_P)
@given(seed=st.integers(0, 10**6), tightness=st.floats(0.05, 1.2))
def test_boxed_steps_match_an_independent_solver(p, seed, tightness):
    rng = np.random.default_rng(seed)
    d = int(rng.integers(1, 12))
    w = rng.normal(size=d) * (rng.random(d) < 0.8)
    low, high = -rng.random(d), rng.random(d) * (rng.random(d) < 0.9)
    most = np.maximum(w * low, w * high).sum()
    gap = tightness * most + 1e-9
    room = np.where(w > 0, high, -low)
    r, possible = step_in_box(*(torch.tensor(v)[None] for v in (gap, w, room)), p)
    expected = solve_boxed(w, gap, low, high, p)
    assert bool(possible[0]) == math.isfinite(expected)
    assert ((r[0].numpy() >= low - 1e-12) & (r[0].numpy() <= high + 1e-12)).all()
    if possible:
        assert norm(r, p).item() == pytest.approx(expected, rel=1e-4, abs=1e-7)
        assert (w * r[0].numpy()).sum() == pytest.approx(gap, rel=1e-9)
    else:
        assert (w * r[0].numpy()).sum() == pytest.approx(most)


@pytest.mark.parametrize("p", ALL_P)
def test_a_box_without_walls_gives_the_free_step(p):
    w, gap = torch.randn(5, 8, dtype=torch.float64), torch.rand(5, dtype=torch.float64)
    r, possible = step_in_box(gap, w, torch.full_like(w, math.inf), p)
    assert possible.all()
    torch.testing.assert_close(r, step(gap, w, p))


@pytest.mark.parametrize("p", [0.5, -0.1, -1, math.nan, "two", None])
def test_an_impossible_p_is_refused(p):
    with pytest.raises(InputError, match="p must be 0 or a number in"):
        check_p(p)


@pytest.mark.parametrize("p", [1, 2, math.inf])
@given(st.integers(0, 10**6), st.floats(0.01, 20))
def test_the_projection_on_a_ball_is_the_nearest_point_of_it(p, seed, size):
    """v - u makes no acute angle with any other point of the ball: the mark of a projection on a convex set."""
    generator = torch.Generator().manual_seed(seed)
    v = torch.randn(1, 12, generator=generator, dtype=torch.float64)
    radius = torch.tensor([size], dtype=torch.float64)
    u = project_on_ball(v, radius, p)
    assert norm(u, p).item() <= size * (1 + 1e-12)
    if norm(v, p).item() <= size:
        assert torch.equal(u, v)
    else:
        assert norm(u, p).item() == pytest.approx(size)
    others = torch.randn(200, 12, generator=generator, dtype=torch.float64)
    others = others / norm(others, p)[:, None] * size
    corners = size * (torch.eye(12, dtype=torch.float64) if p == 1 else torch.ones(1, 12, dtype=torch.float64))
    corners = corners / norm(corners, p)[:, None] * size
    for point in (others, corners, -corners):
        assert ((v - u) @ (point - u).T).max().item() <= 1e-9 * max(1.0, size)


def test_balls_of_no_or_infinite_radius():
    v = torch.randn(3, 5)
    for p in (1, 2, math.inf):
        assert torch.equal(project_on_ball(v, torch.full((3,), math.inf), p), v)
        assert norm(project_on_ball(v, torch.zeros(3), p), p).max() < 1e-6
        assert torch.equal(project_on_ball(torch.zeros(3, 5), torch.ones(3), p), torch.zeros(3, 5))
    with pytest.raises(InputError, match="p = 1, 2 and inf"):
        project_on_ball(v, torch.ones(3), 3)


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
@given(seed=st.integers(0, 10**6), tightness=st.floats(0.0, 1.1), outside=st.booleans())
def test_projections_match_an_independent_solver(p, seed, tightness, outside):
    rng = np.random.default_rng(seed)
    d = int(rng.integers(1, 12))
    w = rng.normal(size=d) * (rng.random(d) < 0.8)
    lower = rng.random(d) - 0.5
    upper = lower + rng.random(d)
    c = rng.normal(size=d) if outside else lower + rng.random(d) * (upper - lower)
    near = np.clip(c, lower, upper)
    most, least = np.maximum(w * lower, w * upper).sum(), (w * near).sum()
    b = least + tightness * (most - least) + 1e-9
    y, possible = project(*(torch.tensor(v)[None] for v in (c, w, b, lower, upper)), p)
    y = y[0].numpy()
    expected = solve_boxed(w, b - w @ c, lower - c, upper - c, p) if most >= b else math.inf
    assert bool(possible[0]) == (most >= b)
    assert ((y >= lower - 1e-12) & (y <= upper + 1e-12)).all()
    if possible:
        assert w @ y >= b - 1e-9
        assert np.linalg.norm(y - c, p) == pytest.approx(expected, rel=1e-4, abs=1e-6)
    else:
        assert w @ y == pytest.approx(most)


@pytest.mark.parametrize("p", [1.0, 2.0, math.inf])
def test_a_projection_without_walls_is_the_free_step(p):
    c, w = torch.randn(5, 8, dtype=torch.float64), torch.randn(5, 8, dtype=torch.float64)
    gap = torch.rand(5, dtype=torch.float64)
    wall = torch.full_like(c, math.inf)
    y, possible = project(c, w, (w * c).sum(-1) + gap, -wall, wall, p)
    assert possible.all()
    torch.testing.assert_close(y, c + step(gap, w, p))


@pytest.mark.parametrize("p", [2.0, math.inf])
def test_projections_from_outside_the_box_end_on_the_plane(p):
    """Features enter the box and leave it again on the way, so the gain bends both ways: no root may be missed."""
    torch.manual_seed(0)
    n, d = 400, 60
    x, y = torch.rand(n, d), torch.rand(n, d)
    w = torch.randn(n, d) * torch.rand(n, d) ** 4
    w = w / w.abs().sum(1, keepdim=True)
    radius = 0.02 + 0.1 * torch.rand(n, 1)
    lower, upper = (y - radius).clamp_min(0), (y + radius).clamp_max(1)
    b = (w * y).sum(1) + 0.3 * (torch.rand(n) - 0.5) * radius[:, 0]
    near, far = x.clamp(lower, upper), torch.where(w > 0, upper, lower)
    found, possible = project(x, w, b, lower, upper, p)
    assert torch.equal(possible, ((w * far).sum(1) >= b) | ((w * near).sum(1) >= b))
    needed = possible & ((w * near).sum(1) < b)
    assert needed.sum() > 50
    gain = (w * found).sum(1)
    assert (gain - b)[needed].min() > -2e-6
    if p == 2:  # in linf, features may have to move farther than to the plane, for one that has to come into the box
        torch.testing.assert_close(gain[needed], b[needed], rtol=0, atol=2e-6)


@pytest.mark.parametrize("p", [2.0, math.inf])
@given(seed=st.integers(0, 10**6))
def test_projections_are_the_same_from_any_start_and_where_numbers_are_not_at_hand(p, seed):
    """Where the search for the multiplier begins must not matter; elsewhere than on the host it is found in order."""
    rng = torch.Generator().manual_seed(seed)
    n, d = 6, 30
    x, y, w = (torch.rand(n, d, generator=rng, dtype=torch.float64) for _ in range(3))
    w = (w - 0.5) * (w > 0.2)
    radius = 0.02 + torch.rand(n, 1, generator=rng, dtype=torch.float64)
    lower, upper = (y - radius).clamp_min(0), (y + radius).clamp_max(1)
    upper[:, 0] = math.inf
    b = (w * y).sum(1) + 0.3 * (torch.rand(n, generator=rng, dtype=torch.float64) - 0.5)
    expected, possible = project(x, w, b, lower, upper, p)
    ways = {
        "here": [torch.zeros(n), torch.rand(n, generator=rng), torch.full((n,), 1e6)],
        "elsewhere": [torch.zeros(n)],
    }
    for where, starts in ways.items():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(norms, "ON_THE_HOST", ("cpu",) if where == "here" else ())
            for start in starts:
                near_to = start.double()
                found, again = project(x, w, b, lower, upper, p, near_to=near_to)
                assert torch.equal(again, possible)
                torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)
                # The multiplier that was found is where the next search may begin.
                torch.testing.assert_close(project(x, w, b, lower, upper, p, near_to=near_to)[0], expected)


def test_a_sum_shows_what_is_finite():
    v = torch.ones(3, 4)
    assert norms.seem_finite(v)
    for bad in (math.nan, math.inf, -math.inf):
        v[1, 2] = bad
        assert not norms.seem_finite(v)
    v[0, 0], v[1, 2] = math.inf, -math.inf
    assert not norms.seem_finite(v)
