"""What the threat model says can be read from messages, a server in a test reads from them; noise hides what it should."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from atoll.algorithms import nfedgnn
from atoll.algorithms.gfl_appnp import FIRST, SECOND
from atoll.deferred import dense
from atoll.federation.cohort import Message
from atoll.federation.federation import Answer, Failure
from atoll.graphs.groups import group_means
from atoll.runs import runner
from atoll.runs.runner import Experiment
from small import Wrapper, small

Heard = list[tuple[str, dict[str, Any], dict[str, Any]]]  # verb, what was sent, what came back


def listened(algorithm: str, *, parties: int | None = None, rounds: int = 1, **values: Any) -> tuple[Experiment, Heard]:
    """A run, and every message as the server sees it."""
    heard: Heard = []

    class Listening(Wrapper):
        """Keeps what passes."""

        def deliver(self, message: Message) -> list[Answer | Failure]:
            """Pass on."""
            (answer,) = self.engine.deliver(message)
            assert isinstance(answer, Answer)
            heard.append((message.verb, {**message.common, **message.each}, dense(answer.fields)))
            return [answer]

    config = small(algorithm, rounds=rounds, **values)
    experiment = runner.prepare(replace(config, parties=parties) if parties else config, engine=Listening)
    runner.rounds(experiment)
    return experiment, heard


def features(experiment: Experiment) -> Tensor:
    """(N, d) what the parties hold."""
    x = experiment.party_data.parts.x
    return x if isinstance(x, Tensor) else torch.from_numpy(x.toarray())


# GFL-APPNP: a party's vector from its gradient, and whose vector it is from ĥ


def reconstructed(replies: list[tuple[dict[str, Tensor], Tensor]]) -> Tensor:
    """(P, d) each party's vector as the server finds it in ∂ĥ_c/∂W₁ = x·(m∘W₂[:, c])ᵀ, m which hidden units are active.

    Least squares for x·mᵀ over the replies (model, ∇ĥ), then its leading singular vectors; m is of zeros and ones: the scale.
    """
    weighted, weight = 0.0, 0.0
    for model, gradient in replies:
        first, second = model[FIRST], model[SECOND]
        jacobian = gradient[:, :, : first.numel()].view(len(gradient), second.shape[1], *first.shape)  # (P, C, d, h)
        weighted = weighted + torch.einsum("pcdh,hc->pdh", jacobian, second)
        weight = weight + second.square().sum(1)
    left, size, right = torch.linalg.svd(weighted / weight, full_matrices=False)
    sign = right[:, 0].sum(1, keepdim=True).sign()
    units = right[:, 0] * sign
    active = units > units.amax(1, keepdim=True) / 2
    scale = (units * active).sum(1) / active.sum(1) * size[:, 0]
    return left[:, :, 0] * sign * scale[:, None]


def recovery(rounds: int = 1, **values: Any) -> tuple[Tensor, float]:
    """How near the server comes to each party's vector (cosine), and how often the nearest of all vectors is the party's own.

    It matches candidates, which it may know from elsewhere, by the ĥ that each would give in the first round.
    """
    experiment, heard = listened("gfl_appnp", rounds=rounds, evaluate_every=rounds, hidden=32, lr=0.05, **values)
    said = [(sent["model"], told) for verb, sent, told in heard if verb == "represent" and sent["gradient"]]
    x, (model, told) = features(experiment), said[0]
    cosines = F.cosine_similarity(reconstructed([(sent, told["gradient"].clone()) for sent, told in said]), x)
    expected = (x @ model[FIRST]).relu() @ model[SECOND]  # ĥ of every candidate
    guesses = torch.cdist(told["hidden"], expected).argmin(1)
    return cosines, float((guesses == torch.arange(len(x))).double().mean())


def test_a_vector_is_recovered_from_gfl_without_noise_and_not_with_it() -> None:
    """Every party's vector, to single precision, from one reply; under noise on the whole reply the guess points anywhere."""
    cosines, matched = recovery()
    assert float(cosines.min()) > 0.9999
    assert matched == 1
    cosines, matched = recovery(**{"dp.verb": "represent", "dp.clip": 1, "dp.noise": 1})
    assert float(cosines.abs().mean()) < 0.35  # random directions of 12 features have 0.23
    assert matched < 0.1  # of 60 candidates


def test_v1_hides_a_vector_for_a_round_only() -> None:
    """Noise on the gradient blurs the vector; but ĥ tells whose it is, and over many rounds the noise averages out."""
    v1 = {"dp.verb": "represent", "dp.fields": "gradient", "dp.clip": 0, "dp.noise": 1}
    cosines, matched = recovery(**v1)
    assert float(cosines.abs().mean()) < 0.35
    assert matched == 1
    cosines, _ = recovery(rounds=150, **v1)
    assert float(cosines.mean()) > 0.9


# Node level: vectors from latent vectors, labels from counts


@pytest.mark.parametrize("first", ["shared", "own"])
def test_nfedgnn_tells_linear_facts_of_a_vector(first: str) -> None:
    """First weights follow from the seed, which all know: x̄ = x·W is solved for x where it has as many numbers as x."""
    experiment, heard = listened("nfedgnn", hidden=16, initial_weights=first)
    config, schema = experiment.config, experiment.federation.schema
    cohort = experiment.algorithm.Cohort(experiment.party_data.parts, config.settings, schema, config.seed, range(60))
    assert isinstance(cohort, nfedgnn.Cohort)
    latent = next(told["latent"] for verb, _, told in heard if verb == "embed")
    weights = cohort.weights.rows.detach().view(60, 12, 16)  # every feature is there
    found = torch.linalg.lstsq(weights.transpose(1, 2), latent[:, :, None]).solution[:, :, 0]
    torch.testing.assert_close(found, features(experiment), atol=1e-3, rtol=1e-3)


def test_cnfgnn_tells_a_vector_after_some_rounds() -> None:
    """The server sees x̄ and W in every round: with fewer hidden units than features, a few rounds are enough to solve for x."""
    experiment, heard = listened("cnfgnn", hidden=4, rounds=6)
    said = [told for verb, _, told in heard if verb == "upload"]
    weights = torch.cat([told["weight"].clone() for told in said], 2).double()  # (P, d, 4 · rounds)
    latent = torch.cat([told["latent"] for told in said], 1).double()
    found = torch.linalg.lstsq(weights.transpose(1, 2), latent[:, :, None]).solution[:, :, 0]
    torch.testing.assert_close(found.float(), features(experiment), atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("algorithm", ["nfedgnn", "gfl_appnp", "mlps"])
def test_evaluation_at_node_level_tells_test_labels(algorithm: str) -> None:
    """The counts of a party with one test node are that node's label."""
    experiment, heard = listened(algorithm, **({"samples": 1} if algorithm == "mlps" else {}))
    graph = experiment.party_data.parts
    recorded = next((sent, told) for verb, sent, told in heard if verb == "evaluate")[1]["confusion"].sum(2)  # (P, C)
    found = recorded[recorded.sum(1) > 0].argmax(1)
    assert torch.equal(found, graph.y[graph.test])


# Sums and shares


def test_fedspray_tells_the_classes_of_a_partys_training_nodes() -> None:
    """Whoever looks at a single reply knows how many training nodes of each class the party has."""
    experiment, heard = listened("fedspray")
    told = next(told for verb, _, told in heard if verb == "update")
    graph = experiment.party_data.parts
    for party in range(3):
        own = graph.y[graph.train & (graph.party == party)]
        counts = (told["share"][party] * told["n"][party]).round().long()
        assert torch.equal(counts, torch.bincount(own, minlength=3))


def test_fedgl_tells_rows_of_nodes_that_one_party_holds_even_by_secure_sums() -> None:
    """A sum over one holder is the holder's own row: prediction and embedding of the node."""
    experiment = runner.prepare(small("fedgl", rounds=1, secure=True))
    state = runner.rounds(experiment).state
    _, heard = listened("fedgl", upload="rows")
    told = next(told for verb, _, told in heard if verb == "fit")
    ids = experiment.party_data.parts.ids
    alone = ids.bincount() == 1
    assert bool(alone.any())
    for own, predictions, embeddings in zip(told["ids"], told["predictions"], told["embeddings"], strict=True):
        single = alone[own.long()]
        torch.testing.assert_close(state["predictions"][own.long()][single], predictions[single], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(state["embeddings"][own.long()][single], embeddings[single], atol=1e-4, rtol=1e-4)


def test_glasus_label_holder_tells_labels_by_its_gradient() -> None:
    """(p − y)·Wᵀ/n: the first classifier follows from the seed, so server and parties find the one class with a minus."""
    experiment, heard = listened("glasu", label_holder=0, lr=0.0)
    told = next(told for verb, _, told in heard if verb == "differentiate")["gradient"][0]  # (n, h)
    batch = next(told for verb, _, told in heard if verb == "draw")["nodes"][0].long().sort().values
    first = experiment.engine.engine.cohorts[0].model.classifier.weight.detach()[1]  # another party's: lr = 0, so as it began
    signs = torch.linalg.lstsq(first, told.t()).solution.t()  # (n, C) p − y
    assert torch.equal(signs.argmin(1), experiment.party_data.parts.y[batch])  # the holder's are the first rows
    assert torch.equal((signs < 0).sum(1), torch.ones(len(batch), dtype=torch.int64))


def test_of_two_parties_each_sees_the_others_representations() -> None:
    """GLASU's mean less one's own half, times two, is the other one's."""
    _, heard = listened("glasu", parties=2)
    told = next(told for verb, _, told in heard if verb == "embed")["hidden"]
    aggregate = next(sent["aggregate"] for verb, sent, _ in heard if verb == "infer")
    torch.testing.assert_close(2 * aggregate - told[0], told[1])


# FedSage+: what a generator was compared with, from a party's gradient

WIDE = {"generator_widths": "16,32", "generator_latent": 16, "gradient_clip": 0.0, "generator_lr": 0.01}


def judged(size: int) -> tuple[Experiment, Tensor, Tensor, Tensor]:
    """Groups of that size: (3, M, d) Δ of every party's gradient for party 0's generator; (M, d) its vectors, and their scale.

    The last layer's gradient is Hᵀ·Δ, and H, its inputs, follow from the generator and latents that everybody is sent. With no
    more rows than columns H can be inverted, and Δ is the difference of each vector from its target, times what is known.
    """
    experiment = runner.prepare(small("fedsage", min_targets=size, **WIDE))
    experiment.federation.tell("prepare")
    (cohort,) = experiment.engine.cohorts  # type: ignore[attr-defined]
    offer = cohort.offer()
    net, rows = {name: value[0] for name, value in offer["generator"].items()}, offer["latents"][0]
    numbers = torch.ones(len(rows), dtype=torch.int32)
    gradient = cohort.judge(0, net, rows, numbers)["gradient"]["layers.2.weight"].double()
    for layer in (0, 1):
        rows = (rows @ net[f"layers.{layer}.weight"] + net[f"layers.{layer}.bias"]).relu()
    width = experiment.federation.schema.features
    made = (rows @ net["layers.2.weight"] + net["layers.2.bias"]).tanh()[:, :width].double()  # the first neighbor of each node
    moved = torch.linalg.pinv(rows.double().t()) @ gradient[:, :, :width]
    return experiment, moved, made, 2 * (1 - made.square()) / made.numel()


@pytest.mark.parametrize("size", [1, 4])
def test_fedsage_tells_features_of_single_targets_and_means_of_groups(size: int) -> None:
    """With min_targets=1 nodes' features are computed from a party's gradient; with groups their means, and no node's."""
    experiment, moved, made, scale = judged(size)
    parts, rows = experiment.party_data.parts, features(experiment).double()
    for party in (1, 2):
        found = made - moved[party] / scale
        assert float(torch.cdist(found, group_means(parts, size)[party].double()).amin(1).max()) < 1e-2
        nearest = torch.cdist(found, rows[parts.party == party]).amin(1)
        assert bool((nearest < 1e-2).all()) if size == 1 else bool((nearest > 0.3).all())


def test_a_secure_total_leaves_the_sum_of_fedsages_targets() -> None:
    """Of the sum of two parties' gradients with min_targets=1 the sum of a row of each can be read, and neither alone."""
    experiment, moved, made, scale = judged(1)
    parts, rows = experiment.party_data.parts, features(experiment).double()
    found = 2 * made - moved.sum(0) / scale
    sums = (rows[parts.party == 1][:, None] + rows[parts.party == 2][None]).flatten(0, 1)
    assert float(torch.cdist(found, sums).amin(1).max()) < 1e-2
    assert float(torch.cdist(found / 2, rows).amin(1).min()) > 0.1
