"""The replay buffer: what it gives back, what it takes, and how it outlives a process."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoint.integrations.control.replay import Replay


def frame(number, shape=(3, 2, 2)):
    return np.full(shape, number, np.uint8)


def fill(replay, lengths, start=0):
    """Episodes of these lengths; frames, actions and rewards are counted, so that they can be told by their number."""
    number = start
    for length in lengths:
        replay.begin(frame(number % 256))
        for t in range(length):
            value = number + t + 1
            replay.add([value - 1], value - 1, frame(value % 256), t == length - 1)
        number += length + 1
    return number


def small(capacity=20):
    return Replay(capacity, (3, 2, 2), 1)


def nbytes(replay):
    return sum(part.nbytes for part in replay._ring.values())


def test_memory_of_curls_buffer_is_below_4_gib():
    replay = Replay(100_000, (3, 100, 100), 6)
    assert nbytes(replay) == pytest.approx(2.8 * 2**30, rel=0.01)
    fill_one = torch.zeros(3, 100, 100, dtype=torch.uint8)
    replay.begin(fill_one)
    replay.add(torch.zeros(6), 0.0, fill_one, False)
    assert replay.sample(1).observations.shape == (1, 9, 100, 100)


@settings(deadline=None, max_examples=50)
@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=8), capacity=st.integers(6, 40), seed=st.integers(0, 9))
def test_stacks_are_those_that_were_seen(lengths, capacity, seed):
    replay = small(capacity)
    fill(replay, lengths)
    starts = np.cumsum([0, *(length + 1 for length in lengths)])
    torch.manual_seed(seed)
    for seen, action, reward, then, alive in zip(*replay.sample(len(replay)), strict=True):
        at = int(action)
        assert at == float(reward)
        first = starts[starts <= at].max()
        last = first + lengths[list(starts).index(first)]
        assert alive == (at + 1 < last)
        for stack, newest in ((seen, at), (then, at + 1)):
            wanted = [max(first, newest - back) for back in (2, 1, 0)]
            assert stack.view(3, -1)[:, 0].tolist() == wanted
            assert (stack.view(3, -1) == stack.view(3, -1)[:, :1]).all()


def test_all_transitions_of_the_last_frames_are_drawn_equally_often():
    replay = small(10)
    fill(replay, [30])
    torch.manual_seed(0)
    drawn = torch.cat([replay.sample(9).actions for _ in range(300)]).flatten()
    found, counts = drawn.unique(return_counts=True)
    assert found.tolist() == [23, 24, 25, 26, 27, 28, 29]  # 21 and 22 have lost frames of their stacks
    assert counts.min() > 0.8 * counts.max()


def test_a_buffer_too_small_for_one_stack_is_said():
    with pytest.raises(ValueError, match="capacity: expected at least 5 frames, got 4"):
        small(4)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda r: r.sample(4), "batch: expected at most the 3 transitions in the buffer, got 4"),
        (lambda r: r.add([0.0], float("nan"), frame(0), False), "reward: expected finite numbers, got nan"),
        (lambda r: r.add([float("inf")], 0.0, frame(0), False), r"action: expected finite numbers, got \[inf\]"),
        (lambda r: r.add([0.0], 0.0, frame(0, (3, 4, 4)), False), r"ends in \(3, 2, 2\), got \(3, 4, 4\)"),
    ],
)
def test_bad_input_is_said(call, says):
    replay = small()
    fill(replay, [3])
    with pytest.raises(ValueError, match=says):
        call(replay)
    assert len(replay) == 3


def same(one, other):
    torch.manual_seed(1)
    mine = one.sample(len(one))
    torch.manual_seed(1)
    return all(torch.equal(a, b) for a, b in zip(mine, other.sample(len(one)), strict=True))


@settings(deadline=None, max_examples=30)
@given(parts=st.lists(st.integers(0, 25), min_size=1, max_size=7))
def test_parts_on_the_disk_add_up_to_the_buffer(tmp_path_factory, parts):
    """Whatever was written between two saves, more than the ring included, and from the last two of them."""
    folder = tmp_path_factory.mktemp("replay")
    replay, number = small(), 0
    fill(replay, [17])
    states, copies = [], []
    for length in parts:
        number = fill(replay, [length] if length else [], number % 50)
        states.append(replay.save(folder))
        copies.append({name: part.clone() for name, part in replay._ring.items()})
        for state, ring in list(zip(states, copies, strict=True))[-2:]:
            again = small()
            again.load(folder, state)
            assert again._written == state["written"]
            kept = small()
            kept._ring, kept._written = ring, again._written
            assert same(again, kept)
    assert sum(path.stat().st_size for path in folder.iterdir()) < 8 * nbytes(replay) + 20_000 * len(parts)


def test_saving_goes_on_where_a_loaded_buffer_stopped(tmp_path):
    replay = small()
    fill(replay, [8])
    state = replay.save(tmp_path)
    fill(replay, [3], start=40)
    replay.save(tmp_path)  # its checkpoint never came to be
    again = small()
    again.load(tmp_path, state)
    fill(again, [4], start=60)
    last = small()
    last.load(tmp_path, again.save(tmp_path))
    assert same(last, again)
    assert len(list(tmp_path.iterdir())) == 2


def test_old_parts_are_deleted(tmp_path):
    replay = small(10)
    for _ in range(12):
        fill(replay, [5])
        replay.save(tmp_path)
    assert len(list(tmp_path.iterdir())) <= 5


def test_a_lost_part_is_said(tmp_path):
    replay = small()
    fill(replay, [8])
    state = replay.save(tmp_path)
    part = next(tmp_path.iterdir())
    part.write_bytes(b"")
    with pytest.raises(ValueError, match=f"{part.name}: damaged"):
        small().load(tmp_path, state)
    part.unlink()
    with pytest.raises(ValueError, match=f"{part.name}: missing"):
        small().load(tmp_path, state)
