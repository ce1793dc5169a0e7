"""FedDEP's settings."""

from __future__ import annotations

from dataclasses import dataclass

from atoll.algorithms import fedavg
from atoll.settings import setting


@dataclass(frozen=True)
class Settings(fedavg.Batched):
    """FedAvg's settings, the embeddings and their prototypes, and the neighbor generators'."""

    generated_neighbors: int = setting(5, "Most generated neighbors of a node; 0 is FedSage.", low=0, high=1000)
    help: str = setting(
        "prototypes",
        "What parties tell each other before training: prototypes of their nodes' embeddings, or nothing.",
        choices=("prototypes", "none"),
    )
    num_prototypes: int = setting(5, "Clusters of a party's embeddings, whose means are its prototypes.", low=1, high=10**4)
    min_count: int = setting(5, "Nodes of a cluster from which on its mean is shared.", low=1, high=10**6)
    clustering: str = setting(
        "deep",
        "How embeddings are clustered: by a denoising autoencoder and then DEC, or by k-means alone.",
        choices=("deep", "kmeans"),
    )
    embedding_width: int = setting(128, "Width of a node's embedding, and of a generated one.", low=1, high=10**5)
    encoder_hidden: int = setting(64, "Width of the hidden layer below the embedding.", low=1, high=10**5)
    encoder_epochs: int = setting(50, "Steps of each party's encoder on its own labels.", low=0, high=10**5)
    encoder_lr: float = setting(0.01, "Learning rate of the encoder and of the clustering.", low=0)
    code_width: int = setting(16, "Width of the autoencoder's code.", low=1, high=10**5)
    code_noise: float = setting(0.2, "Dropout rate of what the autoencoder is to restore.", low=0, high=0.99)
    code_epochs: int = setting(50, "Steps of the autoencoder, and as many of DEC.", low=0, high=10**5)
    hidden_share: float = setting(0.5, "Share of the validation nodes that is hidden to train a generator.", low=0, high=1)
    generator_epochs: int = setting(3, "Steps of each party's generator.", low=0, high=10**5)
    generator_hidden: int = setting(32, "Width of the generator's encoder and classifier.", low=1, high=10**5)
    generator_latent: int = setting(128, "Width of a node's latent representation.", low=1, high=10**5)
    generator_widths: tuple[int, ...] = setting((256, 2048), "Widths from a latent to the embeddings.", low=1, high=10**5)
    generator_dropout: float = setting(0.5, "Dropout rate inside the generator.", low=0, high=0.99)
    generator_lr: float = setting(0.01, "Learning rate of the generator.", low=0)
    generator_weight_decay: float = setting(0.0001, "L2 penalty on the generator's weights.", low=0)
    count_weight: float = setting(1.0, "Weight of the error in the number of neighbors.", low=0)
    prototype_weight: float = setting(
        1.0, "Weight of the distance to the prototypes of hidden neighbors, and of that to other parties' prototypes.", low=0
    )
    label_weight: float = setting(1.0, "Weight of the classification with generated neighbors.", low=0)
    rounding: str = setting("round", "How a predicted number of neighbors becomes a whole one.", choices=("round", "floor"))
    generated_share: float = setting(
        0.5, "Share of a node's generated neighbors that is drawn in every step; 1 takes all.", low=0.01, high=1
    )
    judged_on: str = setting(
        "mended",
        "What a party's nodes are judged with: their generated neighbors, too, or the real graph.",
        choices=("mended", "real"),
    )
