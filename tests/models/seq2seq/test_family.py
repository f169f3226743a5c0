"""The numbers and names of families, and which configurations are refused."""

from __future__ import annotations

import pytest
import transformers as tf

from foretoken.errors import ForetokenError
from foretoken.models.seq2seq.family import FAMILIES, unsupported
from seq2seq_models import NAMES, tiny


@pytest.mark.parametrize("name", NAMES)
def test_each_name_is_a_tensor_of_transformers(name: str) -> None:
    """All weights of a model are called for by a layer, or stand at its ends."""
    model = tiny(name)
    family = FAMILIES[model.config.model_type]
    shape, called = family.shape(model.config), set[str]()
    for side in ("encoder", "decoder"):
        for i in range(shape.side(side).layers):
            names = family.names(side, i, shape)
            parts = (names.own, names.mlp, *((names.cross,) if side == "decoder" else ()))
            called |= {f"{names.at}.{x}.weight" for p in parts for x in (p.norm, *p.inward, p.out)}
    there = {key for key in model.state_dict() if key.endswith(".weight")}
    assert called <= there
    ends = (
        "shared",
        "embed_",
        "embedding",
        "lm_head",
        "final_layer_norm",
        "relative",
        "layer_norm",
    )
    assert all(any(end in key for end in ends) for key in there - called)


def test_the_context_of_a_t5() -> None:
    """Its positions are distances, so it is what a configuration says, if that says anything."""
    shape = FAMILIES["t5"].shape
    assert shape(tf.T5Config()).max_length == 512
    assert shape(tf.T5Config(n_positions=64)).max_length == 64


def test_what_cant_be_served() -> None:
    assert unsupported(tf.T5Config()) is None
    assert "'pegasus' is not one of t5, bart" in str(unsupported(tf.PegasusConfig()))
    apart = tf.MarianConfig(share_encoder_decoder_embeddings=False)
    assert "vocabularies of their own" in str(unsupported(apart))
    assert "quantised" in str(unsupported(tf.T5Config(quantization_config={"bits": 4})))


@pytest.mark.parametrize(
    ("family", "config", "said"),
    [
        ("bart", tf.BartConfig(d_model=30, decoder_attention_heads=4), "a multiple of"),
        ("bart", tf.BartConfig(encoder_layers=0), "encoder_layers"),
        ("bart", tf.BartConfig(decoder_layers=20_000), "decoder_layers"),
        ("bart", tf.BartConfig(d_model=16, encoder_attention_heads=5), "encoder_attention_heads,"),
        ("t5", tf.T5Config(d_kv=0), "d_kv"),
        ("t5", tf.T5Config(num_decoder_layers=20_000), "num_decoder_layers"),
        ("t5", tf.T5Config(n_positions="512"), "n_positions"),
        ("t5", tf.T5Config(relative_attention_num_buckets=3), "4 buckets or more"),
        ("t5", tf.T5Config(relative_attention_max_distance=16), "above half of them"),
    ],
)
def test_numbers_that_make_no_model(family: str, config: object, said: str) -> None:
    with pytest.raises(ForetokenError, match=said):
        FAMILIES[family].shape(config)
