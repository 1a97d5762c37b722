"""Sets of graphs: read, checked, cut into batches."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch

pytest.importorskip("torch_geometric")

from torch_geometric.data import Batch, Data
from torch_geometric.datasets import TUDataset
from torch_geometric.utils import degree

from counterpoint.integrations.graph import GraphSet, bag_of_nodes, demo, load

TU = Path(os.environ.get("COUNTERPOINT_DATA", "."), "tu")
needs_tu = pytest.mark.skipif(
    not (os.environ.get("COUNTERPOINT_DATA") and TU.is_dir()), reason="COUNTERPOINT_DATA with TU data sets is not set"
)


def write(folder: Path, name: str = "TINY", **files: str) -> Path:
    """A data set of four graphs: two edges, one edge, a lonely node, an edge and a lonely node."""
    raw = folder / "tu" / name / "raw"
    raw.mkdir(parents=True)
    content = {
        "A": "1, 2\n2, 1\n2, 3\n3, 2\n4, 5\n5, 4\n7, 8\n8, 7\n",
        "graph_indicator": "1\n1\n1\n2\n2\n3\n4\n4\n4\n",
        "graph_labels": "-1\n1\n-1\n1\n",
        "node_labels": "5\n6\n5\n7\n7\n6\n5\n5\n6\n",
        **files,
    }
    for key, text in content.items():
        if text:
            (raw / f"{name}_{key}.txt").write_text(text)
    return raw


@pytest.fixture
def tiny(tmp_path, monkeypatch):
    monkeypatch.setenv("COUNTERPOINT_DATA", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def make(**files: str) -> None:
        shutil.rmtree(tmp_path / "tu", ignore_errors=True)
        write(tmp_path, **files)

    make()
    return make


def test_raw_files_are_read_and_nothing_is_written(tiny, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    data = load("TINY")
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert data.nodes.tolist() == [3, 2, 1, 3]
    assert data.edges.tolist() == [4, 2, 0, 2]
    assert data.y.tolist() == [0, 1, 0, 1]
    assert data.x.argmax(1).tolist() == [0, 1, 0, 2, 2, 1, 0, 0, 1]
    assert data.checksum == load("TINY").checksum


def test_features_of_sets_without_labels_are_the_constant_or_degrees(tiny):
    labelled = load("TINY")
    tiny(node_labels="")
    constant, degrees = load("TINY"), load("TINY", "degree")
    assert torch.equal(constant.x, torch.ones(9, 1))
    assert degrees.x.argmax(1).tolist() == [1, 2, 1, 1, 1, 0, 1, 1, 0]
    assert len({one.checksum for one in (labelled, constant, degrees)}) == 3
    with pytest.raises(ValueError, match="its nodes have no labels; features can be degree or constant"):
        load("TINY", "labels")
    with pytest.raises(ValueError, match=r"unknown features 'degrees'\. Did you mean 'degree'"):
        load("TINY", "degrees")


def test_the_last_graphs_may_have_no_edges(tiny):
    tiny(A="1, 2\n2, 1\n")
    data = load("TINY")
    assert data.edges.tolist() == [2, 0, 0, 0]
    assert data.batch(torch.tensor([3, 0])).edge_index.tolist() == [[3, 4], [4, 3]]


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"A": "1, 2\n2, x\n"}, "cannot be read (ValueError"),
        ({"A": ""}, "cannot be read (FileNotFoundError"),
        ({"graph_labels": "1\n-1\n"}, "the graphs' sizes say {'nodes': 9, 'edges': 8, 'graphs': 4}"),
        ({"graph_labels": ""}, "its graphs have no classes"),
        ({"A": "1, 2\n2, 1\n3, 4\n4, 3\n"}, "edges leave their graph"),
        ({"A": "1, 2\n2, 1\n9, 12\n"}, "TINY: 1 edges leave their graph"),
        ({"A": "1, 2\n2, 1"}, "TINY_A.txt has no newline at its end, and PyG drops such a last line"),
        ({"node_labels": "5\n6\n"}, "the tensors hold {'nodes': 2, 'edges': 8, 'graphs': 4}"),
    ],
)
def test_corrupt_files_are_named(tiny, files, says):
    tiny(**files)
    with pytest.raises(ValueError, match="TINY") as error:
        load("TINY")
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_unknown_names_get_the_nearest(tiny, monkeypatch):
    def no_network(*_: object, **__: object) -> None:
        raise OSError("no network")

    monkeypatch.setattr("counterpoint.integrations.graph.data.TUDataset", no_network)
    with pytest.raises(ValueError, match=r"'MUTAGG': it cannot be downloaded .*Did you mean 'MUTAG'\?"):
        load("MUTAGG")
    for name in ("", "../MUTAG", "a/b"):
        with pytest.raises(ValueError, match="is not the name of a data set"):
            load(name)


def test_without_a_folder_of_data_it_is_pygs_own_set(tmp_path, monkeypatch):
    """PyG's class reads what its download would have left behind."""
    monkeypatch.delenv("COUNTERPOINT_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    write(tmp_path / "counterpoint")
    data = load("TINY")
    assert data.nodes.tolist() == [3, 2, 1, 3]
    assert (tmp_path / "counterpoint" / "tu" / "TINY" / "processed").is_dir()


def test_batches_are_pygs():
    data = demo(12)
    graphs = [data.batch(torch.tensor([i])) for i in range(12)]
    plain = [Data(x=one.x, edge_index=one.edge_index, y=one.y) for one in graphs]
    index = torch.tensor([7, 0, 11, 7])
    expected, found = Batch.from_data_list([plain[i] for i in index]), data.batch(index)
    for key in ("x", "edge_index", "y", "batch", "ptr"):
        assert torch.equal(found[key], expected[key]), key
    assert found.num_graphs == 4
    again = GraphSet.from_list(plain, "again")
    assert again.checksum == data.checksum


def test_from_list_takes_what_users_have():
    one = Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=3, y=torch.tensor([1]))
    data = GraphSet.from_list([one, one])
    assert torch.equal(data.x, torch.ones(6, 1))
    for wrong, says in (
        ([], "no graphs"),
        ([Data(edge_index=one.edge_index, num_nodes=2)], "graph 0 has no edge_index or no y"),
        (
            [Data(x=torch.tensor([[float("nan")]] * 3), edge_index=one.edge_index, y=one.y)],
            "node features: 3 of 3 values",
        ),
    ):
        with pytest.raises(ValueError, match=says):
            GraphSet.from_list(wrong)


def test_the_bag_counts_labels_and_degrees(tiny):
    bag = bag_of_nodes(load("TINY"))
    assert bag.tolist() == [[2, 1, 0, 0, 2, 1], [0, 0, 2, 0, 2, 0], [0, 1, 0, 1, 0, 0], [2, 1, 0, 1, 2, 0]]


def test_the_demo_is_of_six_kinds_and_seeded():
    data = demo(60)
    assert data.y.bincount().tolist() == [10] * 6
    assert demo(60).checksum == data.checksum != demo(60, seed=1).checksum
    assert load("demo").checksum == demo().checksum
    offset = data.starts[0][:-1].repeat_interleave(data.edges)
    mean = degree(data.edge_index[0] + offset, len(data.x)).mean()
    by_kind = [float((data.edges[data.y == k] / data.nodes[data.y == k]).mean()) for k in range(6)]
    assert max(by_kind) < 1.25 * min(by_kind), f"kinds can be told by their density alone: {by_kind}, {mean}"
    with pytest.raises(ValueError, match="at least 6"):
        demo(3)


@needs_tu
@pytest.mark.parametrize(
    ("name", "graphs", "nodes", "width", "classes"),
    [
        ("MUTAG", 188, 17.93, 7, [63, 125]),
        ("PROTEINS", 1113, 39.06, 3, [663, 450]),
        ("IMDB-BINARY", 1000, 19.77, 1, [500, 500]),
        pytest.param("NCI1", 4110, 29.87, 37, [2053, 2057], marks=pytest.mark.slow),
    ],
)
def test_real_sets_have_their_known_sizes(name, graphs, nodes, width, classes):
    data = load(name)
    assert (len(data), data.x.shape[1], data.y.bincount().tolist()) == (graphs, width, classes)
    assert len(data.x) / len(data) == pytest.approx(nodes, abs=0.005)


@needs_tu
def test_pyg_reads_the_same(tmp_path):
    shutil.copytree(TU / "MUTAG", tmp_path / "MUTAG")
    assert GraphSet.from_list(TUDataset(str(tmp_path), "MUTAG")).checksum == load("MUTAG").checksum
