import numpy as np
import pytest

from marin_core.data.dedup.config import NearDuplicates
from marin_core.data.dedup.minhash import MinHasher
from marin_core.errors import ConfigError
from tests.data.dedup.conftest import edited, jaccard, words


@pytest.mark.parametrize("seed", [0, 1])
def test_pairs_share_a_band_as_often_as_the_theory_says(seed: int) -> None:
    random = np.random.default_rng(seed)
    config = NearDuplicates(seed=seed)
    pairs = []
    for share in np.repeat([0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.1], 120):
        original = words(random, 300)
        pairs.append((original, edited(random, original, share)))
    left, right = (MinHasher(config).keys([" ".join(pair[side]) for pair in pairs])[0] for side in (0, 1))
    similarity = np.array([jaccard(*pair) for pair in pairs])
    bands = (left == right).mean(axis=0)
    # One band agrees with probability s^8; over all pairs the mean of 14 bands has a standard error below 0.005.
    assert abs((bands - similarity**config.rows).mean()) < 0.015
    shared = (left == right).any(axis=0)
    for low, high in [(0.3, 0.6), (0.6, 0.75), (0.75, 0.85), (0.85, 0.99)]:
        inside = (similarity >= low) & (similarity < high)
        expected = np.array([config.probability(each) for each in similarity[inside]])
        error = np.sqrt((expected * (1 - expected)).sum()) / inside.sum()
        assert inside.sum() > 50
        assert abs(shared[inside].mean() - expected.mean()) < 4 * error + 0.01, (low, high)


def test_the_curve_is_the_one_of_the_specification() -> None:
    rates = [round(NearDuplicates().probability(similarity), 2) for similarity in (0.7, 0.75, 0.8, 0.85)]
    assert rates == [0.56, 0.77, 0.92, 0.99]


def test_keys_depend_on_the_words_alone() -> None:
    hasher = MinHasher(NearDuplicates())
    text = "One two three, four five; six seven."
    same = "ONE  two\nthree four five\n\n- six SEVEN"
    keys, present = hasher.keys([text, "too short", same, text + " eight"])
    assert present.tolist() == [0, 2, 3]
    assert np.array_equal(keys[:, 0], keys[:, 1])
    assert not np.array_equal(keys[:, 0], keys[:, 2])
    assert np.array_equal(hasher.keys([text])[0][:, 0], keys[:, 0])
    assert not (MinHasher(NearDuplicates(seed=1)).keys([text])[0][:, 0] == keys[:, 0]).any()
    assert hasher.keys([])[0].shape == (14, 0)
    assert hasher.keys(["none here"])[0].shape == (14, 0)


def test_too_many_hashes_are_refused() -> None:
    with pytest.raises(ConfigError, match="at most 1024"):
        NearDuplicates(bands=200, rows=8)
