"""Partitions: what each kind promises, compared with naive loops, and one sentence for everything that cannot be."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from atoll.data import SCENARIO_OF, PartitionSettings, csbm, load, partition, scenario_of, subgraphs
from atoll.data.csbm import CsbmSettings, generate
from atoll.data.presets import PRESETS
from atoll.data.subgraphs import induced_subgraphs
from atoll.errors import AtollError
from atoll.graphs.graph import Graph
from graphs import dense, edge_set, make_graph, same

KINDS = [
    ("louvain_largest", 3),
    ("louvain_balanced", 2),
    ("metis", 4),
    ("metis_overlap", 10),
    ("louvain_plus", 2),
    ("metis_plus", 4),
    ("label_skew", 4),
    ("dirichlet", 4),
    ("random", 4),
    ("overlap", 6),
    ("vertical", 3),
    ("node", None),
    ("whole", None),
]


def cut(graph: Graph, kind: str, parties: int | None, seed: int = 0, **settings: object) -> Graph:
    """A partition with some settings."""
    return partition(graph, kind, parties, PartitionSettings(**settings), seed)  # type: ignore[arg-type]


def naive(graph: Graph, lists: list[list[int]]) -> set[tuple[int, int]]:
    """The edges of the block-diagonal graph of node lists, by a loop over all edges of all parties."""
    edges, start = set(), 0
    for nodes in lists:
        place = {node: start + i for i, node in enumerate(nodes)}
        edges |= {(place[a], place[b]) for a, b in edge_set(graph) if a in place and b in place}
        start += len(nodes)
    return edges


@given(st.integers(0, 1000), st.booleans())
def test_blocks_are_the_induced_subgraphs(seed: int, disjoint: bool) -> None:
    """Disjoint or overlapping lists in any order: rows, labels, masks and edges are those of a loop."""
    graph = make_graph(20, 40, seed)
    rng = np.random.default_rng(seed)
    if disjoint:
        lists = np.split(rng.permutation(20)[:15], [4, 9])
    else:
        lists = [rng.choice(20, size, replace=False) for size in (5, 12, 8)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subgraphs, "EDGES_AT_ONCE", 7)
        found = induced_subgraphs(graph, lists)
    rows = np.concatenate(lists)
    assert edge_set(found) == naive(graph, [nodes.tolist() for nodes in lists])
    assert found.sizes == [len(nodes) for nodes in lists]
    assert found.ids.tolist() == rows.tolist()
    assert torch.equal(dense(found), dense(graph)[rows])
    for name in ("y", "train", "val", "test"):
        assert torch.equal(getattr(found, name), getattr(graph, name)[rows])
    for p, nodes in enumerate(lists):
        assert edge_set(found.select([p])) == naive(graph, [nodes.tolist()])


@pytest.mark.parametrize(("kind", "parties"), KINDS)
def test_every_kind_keeps_what_belongs_to_a_node(graph: Graph, kind: str, parties: int | None) -> None:
    """Labels, masks and ids travel with the nodes, no edge joins two parties, and every edge was an edge."""
    found = cut(graph, kind, parties)
    whole = edge_set(graph)
    ids, party = found.ids.tolist(), found.party.tolist()
    assert found.parties == (parties or {"node": 60, "whole": 1}[kind])
    assert torch.equal(found.y, graph.y[found.ids])
    assert torch.equal(found.train, graph.train[found.ids])
    assert torch.equal(found.test, graph.test[found.ids])
    edges = edge_set(found)
    for a, b in edges:
        assert party[a] == party[b]
        assert (ids[a], ids[b]) in whole
        assert (b, a) in edges
    if kind != "vertical":
        assert torch.equal(dense(found), dense(graph)[found.ids])


@pytest.mark.parametrize(("kind", "parties"), KINDS)
def test_a_seed_names_the_partition(kind: str, parties: int | None) -> None:
    """The same seed gives the same parties, another one others (where chance has a say)."""
    graph = csbm(300, 6, 2, 1, 8)
    assert same(cut(graph, kind, parties, seed=7), cut(graph, kind, parties, seed=7))
    if kind not in ("node", "whole"):
        others = [cut(graph, kind, parties, seed=seed) for seed in (8, 9, 10)]
        assert not all(same(cut(graph, kind, parties, seed=7), other) for other in others)


@pytest.mark.parametrize("kind", ["metis", "dirichlet", "random", "label_skew", "metis_plus", "louvain_plus"])
def test_every_node_is_dealt_once(graph: Graph, kind: str) -> None:
    """These kinds lose no node."""
    assert sorted(cut(graph, kind, 5).ids.tolist()) == list(range(60))


def test_random_is_even(graph: Graph) -> None:
    """Sizes differ by one at most."""
    assert sorted(cut(graph, "random", 7).sizes) == [8, 8, 8, 9, 9, 9, 9]


def test_metis_is_balanced_and_cuts_few_edges() -> None:
    """Parts within a tenth of equal, and far more edges kept than by chance."""
    graph = generate(CsbmSettings(nodes=400, communities=4, mixing=0.05))
    found = cut(graph, "metis", 4)
    assert max(found.sizes) <= 110
    assert found.edge_index.shape[1] > 2 * cut(graph, "random", 4).edge_index.shape[1]


def test_louvain_keeps_the_largest_communities() -> None:
    """Cliques of 9, 8, 7, 6 nodes joined in a ring: three parties are the three largest cliques, largest first."""
    starts, sizes = [0, 7, 16, 22], [7, 9, 6, 8]
    pairs = [(s + i, s + j) for s, n in zip(starts, sizes, strict=True) for i in range(n) for j in range(i)]
    pairs += [(starts[i], starts[(i + 1) % 4]) for i in range(4)]
    graph = csbm(30, 4, 1, 1, 3)
    graph = replace(graph, edge_index=torch.tensor(pairs + [(b, a) for a, b in pairs]).T)
    found = cut(graph, "louvain_largest", 3)
    assert found.sizes == [9, 8, 7]
    assert found.ids.tolist() == [*range(7, 16), *range(22, 30), *range(7)]
    with pytest.raises(AtollError, match=r"Louvain finds 4 communities, fewer than 5 parties; use at most --parties 4"):
        cut(graph, "louvain_largest", 5)


def test_louvain_leaves_global_randomness_alone(graph: Graph) -> None:
    """Neither Python's nor numpy's nor torch's global generator moves, and their state does not matter."""
    random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()  # noqa: NPY002
    first = cut(graph, "louvain_largest", 3)
    assert random.getstate() == before[0]
    assert np.random.get_state()[1].tolist() == before[1]  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), before[2])
    random.seed(2)
    assert same(first, cut(graph, "louvain_largest", 3))


def test_resolution_gives_more_communities() -> None:
    """A higher resolution makes partitions possible that need more parties."""
    graph = generate(CsbmSettings(nodes=300, communities=4, mixing=0.02))
    with pytest.raises(AtollError, match="higher `resolution`"):
        cut(graph, "louvain_largest", 40)
    assert cut(graph, "louvain_largest", 40, resolution=20.0).parties == 40


def test_dirichlet_concentration_rules_the_skew() -> None:
    """A low concentration gives parties one main class, a high one the classes of the whole."""
    graph = csbm(2000, 4, 1, 1, 3, classes=5)

    def main_share(concentration: float) -> float:
        found = cut(graph, "dirichlet", 5, concentration=concentration)
        return float(np.mean([torch.bincount(found.select([p]).y).max() / found.sizes[p] for p in range(5)]))

    assert main_share(0.05) > 0.5
    assert main_share(1000.0) < 0.25


def test_dirichlet_draws_again_until_nobody_is_small() -> None:
    """`min_nodes` holds, and where it cannot, the error says who is small."""
    graph = csbm(200, 4, 1, 1, 3)
    assert min(cut(graph, "dirichlet", 4, concentration=0.3, min_nodes=20).sizes) >= 20
    with pytest.raises(AtollError, match=r"leaves party \d with \d+ nodes, fewer than 60"):
        cut(graph, "dirichlet", 4, min_nodes=60)


def test_overlap_samples_by_proportion() -> None:
    """FedGL: 30, 40, 50, 50, 60, 70 % of the nodes, independently; about 1.3 % are held by all six."""
    graph = csbm(2000, 4, 1, 1, 3)
    found = cut(graph, "overlap", None)
    assert found.sizes == [600, 800, 1000, 1000, 1200, 1400]
    assert all(len(set(found.select([p]).ids.tolist())) == found.sizes[p] for p in range(6))
    everywhere = int((torch.bincount(found.ids) == 6).sum())
    assert 10 < everywhere < 45
    assert cut(graph, "overlap", 3, proportions="0.25").sizes == [500, 500, 500]


@pytest.mark.parametrize("ratio", [0.0, 0.05, 0.10, 0.15])
def test_controlled_overlap_is_exact(ratio: float) -> None:
    """FedGL, Table 6: the sizes stay, and exactly that share of the nodes is held by every party."""
    found = cut(csbm(1000, 4, 1, 1, 3), "overlap", 6, overlap=ratio)
    assert found.sizes == [300, 400, 500, 500, 600, 700]
    assert int((torch.bincount(found.ids, minlength=1000) == 6).sum()) == round(1000 * ratio)
    assert all(len(set(found.select([p]).ids.tolist())) == found.sizes[p] for p in range(6))


def test_vertical_deals_features_and_edges(graph: Graph) -> None:
    """Every column goes to one party, padding is zero, each party has 80 % of the undirected edges, both directions of each."""
    found = cut(graph, "vertical", 3)
    assert found.widths == (3, 2, 2)
    assert found.num_features == 3
    x, columns = dense(found), dense(graph).T.tolist()
    used = []
    for p, width in enumerate(found.widths):
        block = x[p * 60 : (p + 1) * 60]
        assert not block[:, width:].any()
        used += [columns.index(column) for column in block[:, :width].T.tolist()]
        one = found.select([p])
        assert one.ids.tolist() == list(range(60))
        assert one.widths == (width,)
        edges = edge_set(one)
        assert len(edges) == 2 * round(0.8 * len(edge_set(graph)) / 2)
        assert all((b, a) in edges for a, b in edges)
        assert edges <= edge_set(graph)
    assert sorted(used) == list(range(7))
    assert edge_set(found.select([0])) != edge_set(found.select([1]))
    assert found.select([2, 0]).widths == (2, 3)


def test_vertical_of_sparse_features_stays_sparse() -> None:
    """CSR in, CSR out, the same numbers."""
    graph = make_graph(40, 80, 3)
    padded = torch.zeros(40, 30)
    padded[:, :7] = dense(graph)
    import scipy.sparse as sp

    as_csr, as_tensor = (cut(replace(graph, x=x), "vertical", 4) for x in (sp.csr_array(padded.numpy()), padded))
    assert isinstance(as_csr.x, sp.csr_array)
    assert torch.equal(dense(as_csr), dense(as_tensor))
    assert as_csr.widths == as_tensor.widths == (8, 8, 7, 7)


def test_node_level_parties(graph: Graph) -> None:
    """One node a party and no edges; with several samples a node, a party has them all."""
    found = cut(graph, "node", None)
    assert found.ptr.tolist() == list(range(61))
    assert found.edge_index.shape == (2, 0)
    several = cut(csbm(20, 4, 1, 1, 3, samples=5), "node", 20)
    assert several.sizes == [5] * 20
    assert several.select([3]).ids.tolist() == [3] * 5


def write(folder: Path, **lists: object) -> str:
    """A partition file."""
    np.savez(folder / "mine.npz", **{name: np.array(nodes) for name, nodes in lists.items()})  # type: ignore[arg-type]
    return str(folder / "mine.npz")


def test_a_file_of_node_lists(graph: Graph, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By path, or by bare name under ATOLL_DATA/partitions; the order inside a list is kept, party_10 comes after party_9."""
    lists = {f"party_{p}": [p * 2 + 1, p * 2] for p in range(11)}
    (tmp_path / "partitions").mkdir()
    path = write(tmp_path / "partitions", **lists)
    found = cut(graph, path, None)
    assert found.ids.tolist() == [node for p in range(11) for node in (2 * p + 1, 2 * p)]
    monkeypatch.setenv("ATOLL_DATA", str(tmp_path))
    assert same(cut(graph, "mine", 11), found)
    assert scenario_of("mine", found) == "horizontal"
    assert scenario_of("mine", cut(graph, write(tmp_path, party_0=[0, 1], party_1=[1, 2]), 2)) == "overlapping"


@pytest.mark.parametrize(
    ("lists", "said"),
    [
        ({"party_0": [0, 60]}, "names node 60, but the graph's nodes are 0 to 59"),
        ({"party_0": [0, -1]}, "names node -1"),
        ({"party_0": [1], "party_1": [3, 4, 3]}, "party_1 .* names node 3 twice"),
        ({"party_0": [1], "party_2": [2]}, "without a gap"),
        ({"nodes": [1]}, "holds nodes; name its node lists"),
        ({"party_0": [0.5]}, "not a list of whole numbers"),
        ({"party_0": [1], "party_1": np.zeros(0, np.int64)}, "leaves party 1 with 0 nodes"),
    ],
)
def test_bad_node_lists_are_refused(graph: Graph, tmp_path: Path, lists: dict[str, object], said: str) -> None:
    """The sentence names the party and the node."""
    with pytest.raises(AtollError, match=said):
        cut(graph, write(tmp_path, **lists), None)


def test_a_file_that_is_no_partition(graph: Graph, tmp_path: Path) -> None:
    """Rubbish in an .npz, and a number of parties that is not the file's."""
    (tmp_path / "bad.npz").write_bytes(b"PK rubbish")
    with pytest.raises(AtollError, match=r"bad\.npz cannot be read"):
        cut(graph, str(tmp_path / "bad.npz"), None)
    with pytest.raises(AtollError, match="has 1 parties, not 3"):
        cut(graph, write(tmp_path, party_0=[1]), 3)


@pytest.mark.parametrize(
    ("kind", "parties", "settings", "said"),
    [
        ("random", 0, {}, "at least one party, not 0"),
        ("random", -2, {}, "at least one party, not -2"),
        ("random", 61, {}, "61 parties cannot share 60 nodes"),
        ("random", None, {}, "needs a number of parties"),
        ("meits", 3, {}, "did you mean 'metis'"),
        ("whole", 2, {}, "makes 1 party here, not 2"),
        ("node", 7, {}, "makes 60 parties here, not 7"),
        ("vertical", 8, {}, "8 parties cannot share 7 features"),
        ("vertical", 2, {"edge_fraction": 0.0}, "edge_fraction must be more than 0"),
        ("dirichlet", 2, {"concentration": 0.0}, "concentration must be more than 0"),
        ("overlap", 3, {}, "6 proportions for 3 parties"),
        ("overlap", 2, {"proportions": "0.3,x"}, "not a list of numbers"),
        ("overlap", 2, {"proportions": "0.3,1.5"}, "at most 1 each"),
        ("overlap", 2, {"proportions": "0.3,0.5", "overlap": 0.4}, "cannot have overlap=0.4"),
        ("overlap", 2, {"proportions": "0.9,0.9", "overlap": 0.1}, "cannot have overlap=0.1"),
        ("overlap", 2, {"proportions": "0.001,0.5"}, "leaves party 0 with 0 nodes"),
    ],
)
def test_what_cannot_be_is_said(graph: Graph, kind: str, parties: int | None, settings: dict[str, object], said: str) -> None:
    """One sentence with the numbers that clash."""
    with pytest.raises(AtollError, match=said):
        cut(graph, kind, parties, **settings)


def test_only_a_whole_graph_is_cut(graph: Graph) -> None:
    """Cutting twice is a mistake."""
    with pytest.raises(AtollError, match="already has 2 parties"):
        cut(cut(graph, "random", 2), "random", 2)


def test_every_kind_has_a_setting() -> None:
    """The words of DESIGN §2."""
    assert {scenario_of(kind) for kind, _ in KINDS} == {"horizontal", "overlapping", "vertical", "node"}
    assert set(SCENARIO_OF) - set(PRESETS) == {kind for kind, _ in KINDS}


def test_louvain_on_pubmed(real: Path) -> None:
    """Seven parties of more than a thousand nodes, as in FedSpray; the authors' file has 1300 to 2287."""
    found = cut(load("pubmed"), "louvain_largest", 7)
    assert found.sizes == sorted(found.sizes, reverse=True)
    assert min(found.sizes) > 1000
    assert cut(load("physics"), "fedspray_physics", 12).parties == 12
