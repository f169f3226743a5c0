"""Mistakes in what encoder–decoders do otherwise than decoder-only models."""

from __future__ import annotations

from mutation import Mutant

SEQ2SEQ, HERE = "foretoken.models.seq2seq", "models/seq2seq"
_PADDING = f"{HERE}/test_model.py::test_padding_of_sources_is_not_seen"

READING_SOURCES: dict[str, Mutant] = {
    "distances of T5 are those of places": Mutant(
        f"{SEQ2SEQ}.stack:Stack.decode",
        "self.bias(feed.positions, feed.key_positions())",
        "self.bias(feed.positions, torch.arange(feed.length).expand(len(feed.slots), -1))",
        (f"{HERE}/test_model.py::test_distances_of_t5_are_those_of_depths",),
    ),
    "the encoder sees padding": Mutant(
        f"{SEQ2SEQ}.stack:Stack.encode",
        "padding_mask(lengths, embedded.dtype, states.device)",
        "padding_mask([max(lengths)] * len(lengths), states.dtype, states.device)",
        (_PADDING,),
    ),
    "the decoder sees padding of sources": Mutant(
        f"{SEQ2SEQ}.cache:SourcedCache.source_mask", "len(set(lengths)) == 1", "True", (_PADDING,)
    ),
    "a source keeps its slot when its sequence moves": Mutant(
        f"{SEQ2SEQ}.cache:SourcedCache.release",
        "self.sources.release(owner)",
        "None",
        (f"{HERE}/test_cache.py::test_a_source_moves_with_its_sequence",),
    ),
    "samples get no copy of the source": Mutant(
        f"{SEQ2SEQ}.target:Seq2SeqTarget.fork",
        "self.cache.copy_source(self.cache.slot(sequence.id), self.cache.slot(copy.id))",
        "None",
        (f"{HERE}/test_target.py::test_a_source_is_read_once_a_request",),
    ),
    "a draft model takes the states of another source": Mutant(
        f"{SEQ2SEQ}.encoder:Lent.read",
        "pad_sequence(known, batch_first=True)",
        "pad_sequence(known[::-1], batch_first=True)",
        (
            f"{HERE}/test_encoder.py::test_states_are_the_targets_of_the_same_source",
            f"{HERE}/test_encoder.py::test_a_draft_model_follows_as_if_it_had_read_the_sources",
        ),
    ),
    "a draft model takes the states of padding": Mutant(
        f"{SEQ2SEQ}.encoder:Encoder.read",
        "row[: len(source)]",
        "row",
        (f"{HERE}/test_encoder.py::test_states_are_the_targets_of_the_same_source",),
    ),
    "encoders are one where their tables are": Mutant(
        f"{SEQ2SEQ}.encoder:Origin.makes",
        "[*pairs, (tables[0], tables[1])]",
        "[(tables[0], tables[1])]",
        (f"{HERE}/test_encoder.py::test_an_encoder_that_differs_reads_by_itself",),
    ),
    "samples of a draft model get no copy of the source": Mutant(
        "foretoken.models.drafting.draft_model:DraftModel.fork",
        "self._cache.copy_source(source, target)",
        "None",
        (f"{HERE}/test_encoder.py::test_samples_of_a_request_share_it_too",),
    ),
    "a source is no reference": Mutant(
        "foretoken.sampling.sequence:Sequence.references",
        "[self.source] * bool(self.source) + list(self.params.references)",
        "list(self.params.references)",
        (f"{HERE}/test_target.py::test_the_source_is_the_first_reference",),
    ),
}
"""Sources, and positions in trees."""
