"""Gymnasium's spaces as rows: values, types, bounds, categories and names; and actions from rows."""

import numpy as np
import pytest

gymnasium = pytest.importorskip("gymnasium")

from gymnasium import spaces as gs  # noqa: E402

from operant.host import spaces  # noqa: E402


def row(space, value):
    """Row of a value, and the description of rows of the space."""
    declared = spaces.observation(space)
    out = np.full(declared.size, 77, declared.dtype)
    declared.write(value, out)
    return declared, out.tolist()


def test_a_box_of_floats_is_its_numbers():
    declared, numbers = row(gs.Box(-1.0, 1.0, (2, 2), np.float64), np.array([[0.5, -0.5], [0.25, 1.0]]))
    assert (declared.dtype, declared.low, numbers) == ("float32", (-1.0,) * 4, [0.5, -0.5, 0.25, 1.0])
    assert declared.fields == (("observation", 0, 4),)


def test_whole_numbers_of_few_values_are_bytes_with_categories():
    space = gs.Tuple([gs.Discrete(32), gs.Discrete(11, start=1), gs.Discrete(2)])  # Blackjack's, and a start
    declared, numbers = row(space, (20, 11, 0))
    assert (declared.dtype, declared.categories, numbers) == ("uint8", (32, 11, 2), [20, 10, 0])
    assert [field.name for field in declared.fields] == ["[0]", "[1]", "[2]"]
    assert row(gs.MultiDiscrete([3, 4]), np.array([2, 3]))[1] == [2, 3]
    assert row(gs.MultiBinary(3), np.array([1, 0, 1]))[0].categories == (2, 2, 2)


def test_too_many_values_for_a_byte_are_one_hot():
    declared, numbers = row(gs.Discrete(500), 499)
    assert (declared.size, declared.dtype, numbers.index(1.0), sum(numbers)) == (500, "float32", 499, 1.0)


def test_a_dict_is_flattened_and_named_and_its_mask_left_out():
    space = gs.Dict(
        {
            "position": gs.Box(-2.0, 2.0, (2,)),
            "hand": gs.Tuple([gs.Discrete(3), gs.MultiBinary(2)]),
            "camera": gs.Box(0, 255, (2,), np.uint8),
            "action_mask": gs.MultiBinary(4),
        }
    )
    value = {"position": [1.5, -1.0], "hand": (2, [1, 0]), "camera": [255, 51], "action_mask": [1, 1, 0, 0]}
    declared, numbers = row(space, value)
    named = {field.name: numbers[field.start : field.stop] for field in declared.fields}
    assert named["position"] == [1.5, -1.0] and named["hand[0]"] == [0.0, 0.0, 1.0] and named["hand[1]"] == [1.0, 0.0]
    assert named["camera"] == pytest.approx([1.0, 0.2]) and "action_mask" not in named
    assert spaces.mask_of({}, value, (4,)).tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize(
    ("shape", "seen"),
    [((4, 6, 3), (4, 6, 3)), ((3, 20, 30), (20, 30, 3)), ((5, 7), (5, 7, 1))],
    ids=["last", "first", "none"],
)
def test_pictures_stay_bytes_with_their_channels_last(shape, seen):
    picture = np.arange(np.prod(shape)).reshape(shape).astype(np.uint8)
    declared, numbers = row(gs.Box(0, 255, shape, np.uint8), picture)
    assert (declared.dtype, declared.shape) == ("uint8", seen)
    expected = picture.transpose(1, 2, 0) if shape[0] == 3 else picture.reshape(seen)
    assert np.array_equal(np.array(numbers).reshape(seen), expected)


def test_unsupported_spaces_are_refused_by_name():
    with pytest.raises(spaces.UnsupportedSpaceError, match=r"words is Text"):
        spaces.observation(gs.Dict({"words": gs.Text(5), "x": gs.Box(0, 1, (1,))}))
    with pytest.raises(spaces.UnsupportedSpaceError, match="mixes discrete choices with a Box"):
        spaces.action(gs.Tuple([gs.Discrete(2), gs.Box(0, 1, (1,))]))


def test_actions_are_made_of_rows():
    assert spaces.action(gs.Discrete(3, start=-1)).read(np.array([2])) == 1
    many = spaces.action(gs.MultiDiscrete([[2, 3], [4, 5]]))
    assert many.sizes == (2, 3, 4, 5) and many.read(np.array([1, 2, 3, 4])).tolist() == [[1, 2], [3, 4]]
    assert spaces.action(gs.MultiBinary(2)).sizes == (2, 2)
    box = spaces.action(gs.Box(np.array([-1.0, 0.0]), np.array([1.0, 2.0]), dtype=np.float32))
    assert (box.low, box.high, box.read(np.array([0.5, 1.0])).dtype) == ((-1.0, 0.0), (1.0, 2.0), np.float32)
    nested = spaces.action(gs.Dict({"a": gs.Discrete(2), "b": gs.Tuple([gs.Discrete(3), gs.Discrete(4)])}))
    assert nested.sizes == (2, 3, 4) and nested.read(np.array([1, 2, 3])) == {"a": 1, "b": (2, 3)}
