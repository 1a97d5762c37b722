"""Image sets: embedded, from folders with what folders hold, from COUNTERPOINT_DATA; labelled for what they are."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

pytest.importorskip("lightly")
pytest.importorskip("lightning")
from PIL import Image

from counterpoint.integrations.image import ImageSet, data, load

offline = pytest.mark.skipif(
    not os.path.isdir(os.path.join(os.environ.get("COUNTERPOINT_DATA", ""), "cifar10")),
    reason="needs COUNTERPOINT_DATA with cifar10",
)


def save(path, colour=(200, 30, 60), mode="RGB", size=(40, 30)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).convert(mode).save(path)


@pytest.fixture(autouse=True)
def _forget():
    data._load.cache_clear()
    yield
    data._load.cache_clear()


def test_digits_are_embedded():
    train, test = load("digits"), load("digits", "test")
    assert (len(train), len(test)) == (1287, 510)
    assert train.size == (16, 16)
    assert train.labelled
    assert train.y.unique().tolist() == list(range(10))
    assert "8 x 8" in train.note
    assert train.checksum != test.checksum


def test_a_folder_per_class(tmp_path):
    for split, count in (("train", 4), ("val", 2)):
        for number in range(count):
            save(tmp_path / split / "cats" / f"{number}.png", (250, 0, 0))
            save(tmp_path / split / "dogs" / f"{number}.jpg", (0, 0, 250))
    train, test = load(str(tmp_path), size=16), load(str(tmp_path), "test", size=16)
    assert train.classes == ("cats", "dogs")
    assert train.y.tolist() == [0] * 4 + [1] * 4
    assert test.y.tolist() == [0] * 2 + [1] * 2
    assert bool((train.x[train.y == 0][:, 0] > 240).all())


def test_a_folder_of_squares_of_one_size_keeps_it(tmp_path):
    for number in range(5):
        save(tmp_path / "squares" / f"{number}.png", (50 * number, 0, 0), size=(32, 32))
        save(tmp_path / "oblong" / f"{number}.png")
        save(tmp_path / "many" / f"{number}.png", size=(32 + number, 32 + number))
    (tmp_path / "squares" / "torn.png").write_bytes(b"no image")
    with pytest.warns(RuntimeWarning, match="torn"):
        *both, small = [load(str(tmp_path / "squares"), *one) for one in (("train",), ("test",), ("train", 16))]
    assert [one.size for one in (*both, small)] == [(32, 32), (32, 32), (16, 16)]
    assert sorted(torch.cat([one.x for one in both])[:, 0, 0, 0].tolist()) == [0, 50, 100, 150, 200]
    assert [load(str(tmp_path / name)).size for name in ("oblong", "many")] == [(64, 64)] * 2


def test_a_folder_of_training_images_alone_is_named(tmp_path):
    save(tmp_path / "train" / "a" / "0.png")
    with pytest.raises(ValueError, match="has a folder train beside none named test or val"):
        load(str(tmp_path), "test")


def test_classes_are_those_of_the_training_images(tmp_path):
    for one in ("a", "b", "c"):
        save(tmp_path / "train" / one / "0.png")
    save(tmp_path / "test" / "c" / "0.png")  # which would be the first, if counted here
    assert load(str(tmp_path), "test").y.tolist() == [2]
    save(tmp_path / "test" / "d" / "0.png")
    data._load.cache_clear()
    with pytest.raises(ValueError, match="unknown class 'd'"):
        load(str(tmp_path), "test")


def test_photos_without_classes_grey_transparent_and_small(tmp_path):
    for number, (mode, size) in enumerate([("RGB", (100, 50)), ("L", (30, 30)), ("RGBA", (20, 90)), ("P", (5, 4))]):
        save(tmp_path / f"{number}.png", mode=mode, size=size)
    save(tmp_path / "4.jpeg", mode="CMYK", size=(64, 64))
    (tmp_path / "notes.txt").write_text("no image")
    both = [load(str(tmp_path), split, size=24) for split in ("train", "test")]
    assert sum(map(len, both)) == 5
    assert all(one.x.shape[1:] == (3, 24, 24) for one in both)
    assert not both[0].labelled
    assert torch.cat([one.x for one in both]).float().std() > 0


def test_damaged_images_are_skipped_counted_and_named(tmp_path):
    for number in range(6):
        save(tmp_path / "train" / "all" / f"{number}.jpg")
    whole = (tmp_path / "train" / "all" / "3.jpg").read_bytes()
    (tmp_path / "train" / "all" / "3.jpg").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "train" / "all" / "5.jpg").write_bytes(b"not a JPEG")
    with pytest.warns(RuntimeWarning, match=r"2 of 6 images.*3\.jpg.*5\.jpg"):
        found = load(str(tmp_path))
    assert len(found) == 4
    assert [name.rsplit("/")[-1] for name in found.skipped] == ["3.jpg", "5.jpg"]


def test_folders_without_images(tmp_path):
    with pytest.raises(ValueError, match="holds no images"):
        load(str(tmp_path))
    (tmp_path / "train" / "a").mkdir(parents=True)
    (tmp_path / "train" / "a" / "b.jpg").write_bytes(b"")
    with pytest.raises(ValueError, match="none of the 1 images can be read"):
        load(str(tmp_path))


def test_unknown_names_say_what_is_near():
    with pytest.raises(ValueError, match=r"'cifar-10'.*Did you mean 'cifar10'"):
        load("cifar-10")
    with pytest.raises(ValueError, match=r"split: unknown split 'trian'.*train"):
        load("digits", "trian")
    with pytest.raises(ValueError, match="size"):
        load("digits", size=0)


def test_what_cannot_be_fetched_is_one_clear_line(monkeypatch, tmp_path):
    def unreachable(root, split, download=False):
        raise OSError("no route" if download else "not found")

    monkeypatch.setattr("torchvision.datasets.STL10", unreachable)
    with pytest.raises(ValueError, match=r"'stl10'.*the download failed.*no route") as caught:
        load("stl10", root=tmp_path)
    assert f"not on disk in {tmp_path}" in str(caught.value)


def test_sets_that_are_there_are_not_downloaded(tmp_path, monkeypatch):
    monkeypatch.setenv("COUNTERPOINT_DATA", str(tmp_path))
    for kind, colour in (("dotted", (250, 0, 0)), ("banded", (0, 0, 250))):
        for split in ("train", "test"):
            save(tmp_path / f"dtd/dtd/images/{kind}/{kind}_{split}.jpg", colour)
            labels = tmp_path / f"dtd/dtd/labels/{split}1.txt"
            labels.parent.mkdir(exist_ok=True)
            with labels.open("a") as file:
                file.write(f"{kind}/{kind}_{split}.jpg\n")
    for split in ("train", "test"):
        found = load("dtd", split, 16)
        assert found.classes == ("banded", "dotted")
        red = found.x[:, 0].float().mean((1, 2)) > 200
        assert torch.equal(red, found.y == found.classes.index("dotted"))


def test_a_damaged_archive_is_said(tmp_path):
    path = tmp_path / "cifar10" / "test.npz"
    path.parent.mkdir()
    np.savez(path, jpeg=np.zeros(1000, np.uint8))
    whole = path.read_bytes()
    for damaged in (b"", b"PK", whole[:500], whole[:500] + bytes(len(whole) - 500), whole):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"test\.npz: not readable"):
            load("cifar10", "test", root=tmp_path)


def test_draws_are_balanced_and_held_out_images_apart():
    digits = load("digits")
    counts = digits.draw(100).y.bincount()
    assert counts.tolist() == [10] * 10
    left, held = digits.hold_out(0.1)
    assert len(left) + len(held) == len(digits)
    assert held.y.bincount().min() >= 12
    pairs = [{one.numpy().tobytes() for one in part.x} for part in (left, held)]
    assert len(pairs[0] | pairs[1]) == len({one.numpy().tobytes() for one in digits.x})
    sizes = torch.tensor([3, 20, 300, 1000])
    y = torch.arange(4).repeat_interleave(sizes)
    mine = ImageSet("mine", torch.zeros(len(y), 3, 4, 4, dtype=torch.uint8), y)
    assert mine.hold_out(0.1)[1].y.bincount(minlength=4).tolist() == [0, 2, 30, 100]  # no class is used up
    with pytest.raises(ValueError, match="cannot draw"):
        digits.draw(10**6)
    with pytest.raises(ValueError, match="share"):
        digits.hold_out(1.5)


def test_image_sets_check_their_shapes():
    with pytest.raises(ValueError, match="uint8"):
        ImageSet("mine", torch.rand(2, 3, 4, 4), torch.zeros(2))
    with pytest.raises(ValueError, match="one class per image"):
        ImageSet("mine", torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.zeros(3).long())


@offline
def test_offline_cifar_is_labelled_as_compressed():
    test = load("cifar10", "test")
    assert test.x.shape == (10000, 3, 32, 32)
    assert test.y.bincount().tolist() == [1000] * 10
    assert test.classes[:2] == ("airplane", "automobile")
    assert "JPEG" in test.note
    assert np.allclose(test.x.float().mean((0, 2, 3)) / 255, [0.4942, 0.4851, 0.4504], atol=0.003)
