"""Mistakes that once no test noticed, by name; each with the tests that notice it now."""

from __future__ import annotations

from contrastive_mutants import HANDED_OVER
from grammar_mutants import MASKING
from mutation import Mutant
from prefix_mutants import GOING_ON, PREDICTING
from ralm_mutants import RETRIEVAL
from recommender_mutants import RECOMMENDING
from seq2seq_mutants import READING_SOURCES
from training_mutants import LEARNING

DRAWS, ENGINE = "foretoken.draws:KeyedDraws", "foretoken.engine.engine:Engine"
MERGED, CACHE = "foretoken.drafters.merged:Merged", "foretoken.models.cache:KVCache"
CONTROLLER = "foretoken.control.controller:Controller"
COSTS = "foretoken.control.cost_model:CostModel"
INT8, WRITE = "foretoken.models.native.backends.int8", "foretoken.trainable.formats.write"
STOPPING = "foretoken.engine.stopping"
EDGE = "foretoken.bench.measure.identity:_edge_distance"
EDGE_TEST = "bench/measure/test_identity.py::test_sampled_margin_is_the_distance_to_an_edge"
INT8_TEST = "models/native/backends/test_int8.py"
WRITE_TEST = "trainable/formats/test_write.py"

NOISE: dict[str, Mutant] = {
    "parts share noise": Mutant(
        f"{DRAWS}.inner",
        "mix(places + _spread(part * 8 + int(Purpose.INNER)))",
        "mix(places + _spread(int(Purpose.INNER)))",
        (
            "test_draws.py::test_parts_and_their_steps_draw_by_numbers_of_their_own",
            "drafters/test_merged.py::test_parts_draw_by_numbers_of_their_own",
        ),
    ),
    "a part's steps share noise": Mutant(
        f"{DRAWS}.inner",
        "outer_starts if starts is None else starts",
        "outer_starts",
        (
            "test_draws.py::test_parts_and_their_steps_draw_by_numbers_of_their_own",
            "drafters/test_cascade.py::test_steps_of_a_stage_draw_by_numbers_of_their_own",
        ),
    ),
    "merged parts draw by the tree's numbers": Mutant(
        f"{MERGED}.draft",
        "draws.inner(number)",
        "draws",
        ("drafters/test_merged.py::test_parts_draw_by_numbers_of_their_own",),
    ),
    "merged parts that foresee have numbers of their own": Mutant(
        f"{MERGED}.draft",
        "draws if part.kinds == {Kind.CHOSEN} else draws.inner(number)",
        "draws.inner(number)",
        ("drafters/test_merged.py::test_a_part_that_foresees_has_the_places_noise",),
    ),
    "merged parts are told the tree's path": Mutant(
        f"{MERGED}.observe",
        "replace(step, path=[], drafted=0)",
        "replace(step, drafted=0)",
        ("drafters/test_merged.py::test_a_parts_cache_follows_the_text_and_not_the_trees_nodes",),
    ),
}

SERVING: dict[str, Mutant] = {
    "log-probabilities of a chain": Mutant(
        f"{ENGINE}._logprobs",
        "[0, *done.path][: len(block)]",
        "list(range(len(block)))",
        ("engine/test_logprobs.py::test_log_probabilities_on_a_branch",),
    ),
    "strays after the end": Mutant(
        f"{ENGINE}._count",
        "min(done.strayed, accepted)",
        "done.strayed",
        ("engine/test_engine.py::test_only_what_was_kept_counts_as_strayed",),
    ),
    "a chunk for each prompt": Mutant(
        f"{ENGINE}._prefill",
        "max(1, self.chunk // len(leaders))",
        "self.chunk",
        ("engine/test_engine.py::test_a_chunk_is_shared_by_the_prompts",),
    ),
    "the whole time is the first token's": Mutant(
        "foretoken.engine.request:Request.note_time",
        "self.stats.total_time = now",
        "self.stats.total_time = self.stats.time_to_first_token",
        ("engine/test_request.py::test_the_whole_time_is_that_of_the_last_token",),
    ),
    "top_p takes one token more": Mutant(
        "foretoken.sampling.fold:_last_kept",
        "reached - kept < top_p[:, None]",
        "reached - kept <= top_p[:, None]",
        ("sampling/test_fold.py::test_top_p_ends_where_it_is_reached",),
    ),
    "a stream holds back the shortest stop string": Mutant(
        "foretoken.engine.streamed:_Text.__init__",
        "max(map(len, params.stops), default=1)",
        "min(map(len, params.stops), default=1)",
        ("test_llm.py::test_a_stream_holds_back_the_longest_stop_string",),
    ),
    "a stream shows what it should hold back of a short text": Mutant(
        "foretoken.engine.streamed:_Text.of",
        "max(0, len(text) - self._withheld)",
        "len(text) - self._withheld if self._withheld else None",
        ("engine/test_streamed.py::test_a_text_that_begins_with_a_stop_string",),
    ),
    "config.json over generation_config.json": Mutant(
        "foretoken.models.load:_ending",
        "ends or model.eos_ids",
        "model.eos_ids or ends",
        ("test_llm.py::test_ends_come_from_the_checkpoint",),
    ),
    "padding is written after its row": Mutant(
        "foretoken.models.feed:Feed.cells",
        "ahead >= counts",
        "ahead > counts",
        ("models/test_cache.py::test_a_short_rows_padding_goes_to_the_last_cell",),
    ),
    "a slot is handed on as it was": Mutant(
        f"{CACHE}._clear",
        "self._ends[slot]",
        "False",
        ("models/test_cache.py::test_a_slot_is_handed_on_clean",),
    ),
    "a copy forgets what was written": Mutant(
        f"{CACHE}.copy",
        "max(self._ends[target], length)",
        "length",
        ("models/test_cache.py::test_what_was_written_before_a_copy_is_cleaned_too",),
    ),
    "rows of zeros without a scale": Mutant(
        f"{INT8}:make",
        "x.abs().amax(-1, keepdim=True).clamp_min_(_TINY)",
        "x.abs().amax(-1, keepdim=True)",
        (f"{INT8_TEST}::test_nothing_is_divided_by_zero",),
    ),
    "channels of zeros without a scale": Mutant(
        f"{INT8}:_quantized",
        "torch.linalg.vector_norm(weight, torch.inf, 1).clamp_min_(_TINY)",
        "torch.linalg.vector_norm(weight, torch.inf, 1)",
        (f"{INT8_TEST}::test_nothing_is_divided_by_zero",),
    ),
}

CONTROL: dict[str, Mutant] = {
    "two sequences are no batch": Mutant(
        "foretoken.bench.measure.ideal:ideal",
        "batch > 1",
        "batch > 2",
        ("bench/measure/test_ideal.py::test_two_sequences_are_a_batch",),
    ),
    "a margin from a draft's number": Mutant(EDGE, "Purpose.TOKEN", "Purpose.DRAFT", (EDGE_TEST,)),
    "a margin from the next position's number": Mutant(
        EDGE, "len(sequence.tokens)", "len(sequence.tokens) + 1", (EDGE_TEST,)
    ),
    "a margin from no number": Mutant(
        EDGE, "uniforms(key, at, Purpose.TOKEN)", "0.5", (EDGE_TEST,)
    ),
    "JSON beats single options": Mutant(
        "foretoken.cli.options:ModelOptions.config",
        "replaced(self.given_config(), chosen)",
        "replaced(chosen, self.given_config())",
        ("cli/test_options.py::test_single_options_win",),
    ),
    "slow rounds count": Mutant(
        "foretoken.engine.costs:_rounds",
        "rounds[len(rounds) // 2 :]",
        "rounds[: (len(rounds) + 1) // 2]",
        ("engine/test_costs.py::test_only_the_later_rounds_count",),
    ),
    "all rounds count": Mutant(
        "foretoken.engine.costs:_rounds",
        "rounds[len(rounds) // 2 :]",
        "rounds",
        ("engine/test_costs.py::test_only_the_later_rounds_count",),
    ),
    "trials don't back off": Mutant(
        f"{CONTROLLER}.choose",
        "min(2 * self._pause, _LONGEST_PAUSE)",
        "_TRIAL_PAUSE",
        ("control/test_controller.py::test_trials_that_are_not_made_back_off",),
    ),
    "a query's copies cost one row": Mutant(
        f"{CONTROLLER}._saved",
        "plan.copying_ms / copied",
        "plan.copying_ms / copied / len(rows)",
        ("control/test_controller.py::test_what_a_query_saves",),
    ),
    "queries cost nothing": Mutant(
        f"{CONTROLLER}.copiers_to_query",
        "self._query_budget -= cost",
        "pass",
        ("control/test_controller.py::test_a_copier_that_saves_nothing_is_queried_by_its_budget",),
    ),
    "surprised by a slow machine": Mutant(
        f"{COSTS}._surprise",
        "math.log(ms / expected) - self._pace",
        "math.log(ms / expected)",
        ("control/test_cost_model.py::test_a_slow_machine_is_no_surprise",),
    ),
    "extra time on a slow machine": Mutant(
        f"{COSTS}.extra_ms",
        "self.drafts[name](sequences, levels) * math.exp(self._pace)",
        "self.drafts[name](sequences, levels)",
        ("control/test_cost_model.py::test_a_slow_machine_is_no_surprise",),
    ),
    "extra time at the machine's pace": Mutant(
        f"{COSTS}.extra_ms",
        "(ms - expected) / math.exp(self._pace)",
        "ms - expected",
        ("control/test_cost_model.py::test_a_slow_machine_is_no_surprise",),
    ),
}

DRAFTING: dict[str, Mutant] = {
    "processors are called for padding": Mutant(
        "foretoken.grammar.ahead:_counted",
        "own[: count + 1]",
        "own",
        (
            "grammar/test_ahead.py::test_padding_has_no_masks",
            "grammar/test_ahead.py::test_padding_has_no_processors",
        ),
    ),
    "a length rule sees drafts that have ended": Mutant(
        "foretoken.drafters.shared.chain:ChainDrafter._ended",
        "count > made",
        "True",
        ("drafters/shared/test_chain.py::test_a_rule_is_asked_about_drafts_that_may_go_on",),
    ),
    "a draft moves its text's processors on": Mutant(
        "foretoken.drafters.cascade:_working_copy",
        "[copy(process) for process in sequence.processors]",
        "sequence.processors",
        ("drafters/test_cascade.py::test_processors_of_a_text_outlast_its_drafts",),
    ),
    "widths of greedy and sampled swapped": Mutant(
        "foretoken.drafters.swift:_width",
        "greedy if sequence.params.greedy else sampled",
        "sampled if sequence.params.greedy else greedy",
        ("drafters/test_swift.py::test_siblings_at_a_place",),
    ),
    "a tree past the drafter's context": Mutant(
        "foretoken.drafters.small_tree:SmallTree._tree",
        "min(n, model.room(s))",
        "n",
        ("drafters/test_small_tree.py::test_no_draft_passes_the_drafters_context",),
    ),
    "EAGLE without noise": Mutant(
        "foretoken.trainable.eagle:EagleModule.outputs",
        "self.training",
        "False",
        ("trainable/test_eagle.py::test_noise_on_the_states_in_training",),
    ),
    "a step's seed from the clock": Mutant(
        "foretoken.train.loop:_step",
        "seed * 1_000_003 + number",
        "time.time_ns()",
        ("train/test_loop.py::test_noise_is_found_again",),
    ),
    "a step has no seed": Mutant(
        "foretoken.train.loop:_step",
        "torch.manual_seed(seed * 1_000_003 + number)",
        "None",
        ("train/test_loop.py::test_noise_is_found_again",),
    ),
    "a step's noise is every batch's": Mutant(
        "foretoken.train.loop:_step",
        "seed * 1_000_003 + number",
        "seed * 1_000_003 + step",
        ("train/test_loop.py::test_noise_is_the_batchs_own",),
    ),
    "an estimate with noise": Mutant(
        "foretoken.train.loop:evaluate",
        "module.eval()",
        "None",
        ("train/test_loop.py::test_estimates_are_made_without_noise",),
    ),
    "no noise after an estimate": Mutant(
        "foretoken.train.loop:evaluate",
        "module.train()",
        "None",
        ("train/test_loop.py::test_estimates_are_made_without_noise",),
    ),
    "a model learns in the mode that it was loaded in": Mutant(
        "foretoken.train.loop:train",
        "module.train()",
        "None",
        ("train/test_loop.py::test_dropout_is_found_again",),
    ),
    "a batch counts whatever it has to predict": Mutant(
        "foretoken.train.loop:_step",
        "own.counted(lesson)",
        "1.0",
        ("train/test_loop.py::test_a_steps_tokens_count_alike",),
    ),
    "large sources are drawn from more often": Mutant(
        "foretoken.train.batches:Batches._draw_record",
        "len(self.parts) < 2",
        "True",
        ("train/test_batches.py::test_sources_are_drawn_from_equally_often",),
    ),
    "held-out prompts are learned from": Mutant(
        "foretoken.train.sources:hold_out",
        "part.apart(held_out)",
        "part",
        ("train/test_sources.py::test_prompts_that_come_twice",),
    ),
    "weights swapped in the middle of a draft": Mutant(
        "foretoken.drafters.shared.learner:Learner._step",
        "return self.weights.build()",
        "return [built := self.weights.build(), self.weights.serve(built)][0]",
        ("drafters/shared/test_learner.py::test_decoding_never_waits",),
    ),
    "EAGLE-3's layers off by one at SGLang": Mutant(
        f"{WRITE}:_counted",
        "target.config.get('model_type') == 'gpt_oss'",
        "True",
        (f"{WRITE_TEST}::test_layers_as_sglang_counts_them",),
    ),
    "a norm that SGLang leaves out": Mutant(
        f"{WRITE}:_eagle3",
        "to == 'sglang'",
        "False",
        (f"{WRITE_TEST}::test_what_sglang_would_misread",),
    ),
    "DFlash's mask among the tensors alone": Mutant(
        f"{WRITE}:trained",
        "named.pop(MASK, None)",
        "None",
        (f"{WRITE_TEST}::test_a_mask_of_its_own",),
    ),
    "EAGLE-3's outer layers off by one": Mutant(
        f"{WRITE}:_eagle3",
        "list(shape['capture'])",
        "[index - 1 for index in shape['capture']]",
        (f"{WRITE_TEST}::test_layers_are_counted_as_the_program_counts_them",),
    ),
    "convolutions that wrap around": Mutant(
        "foretoken.trainable.local_convolution:LocalConvolution._convolved",
        "F.pad(blocks[:, :, :-tap], (0, 0, 0, 0, tap, 0))",
        "blocks.roll(tap, 2)",
        ("trainable/test_local_convolution.py::test_only_earlier_places_of_the_block_count",),
    ),
    "a selector that reads the root alone": Mutant(
        "foretoken.trainable.selected_blocks:SelectedModel.next_logits",
        "tokens[:, None]",
        "torch.tensor([[s.tokens[-1]] for s in sequences])",
        ("drafters/test_dflash2.py::test_the_estimate_is_what_is_served",),
    ),
    "DFlash's blocks see beyond their window": Mutant(
        "foretoken.trainable.block_layers:_block_mask",
        "own[..., None] - places < window",
        "own[..., None] - places <= window",
        ("drafters/test_dflash.py::test_layers_with_a_window",),
    ),
    "DFlash's layers off by one": Mutant(
        f"{WRITE}:_dflash",
        "[index + 1 for index in ids]",
        "ids",
        (f"{WRITE_TEST}::test_layers_are_counted_as_the_program_counts_them",),
    ),
}

SAMPLED: dict[str, Mutant] = {
    "drafters learn from what failed": Mutant(
        "foretoken.engine.request:Sample.close",
        "self.output.finish_reason == 'error'",
        "False",
        ("engine/test_transactions.py::test_nothing_is_learned_from_a_text_that_failed",),
    ),
    "the error of the root": Mutant(
        "foretoken.step:_to_steps",
        "accepted[-1] if accepted else 0",
        "0",
        ("engine/test_transactions.py::test_the_error_is_that_of_the_place",),
    ),
    "stop tokens unseen beside the end of text": Mutant(
        f"{STOPPING}:StopChecker._might_end",
        "any(t in self._eos or t in self._stop_ids for t in block)",
        "any(t in ends for t in block)",
        ("engine/test_stopping.py::test_stop_tokens_beside_the_end_of_text",),
    ),
    "the last stop string cuts": Mutant(
        f"{STOPPING}:StopChecker._stop_string",
        "min(matches)",
        "max(matches)",
        ("engine/test_stopping.py::test_of_two_stop_strings_the_earlier_one_cuts",),
    ),
    "a token is decoded alone": Mutant(
        f"{STOPPING}:TextTracker._certain",
        "self._window = shown",
        "self._window = self._shown",
        ("engine/test_stopping.py::test_spaces_between_words_stay",),
    ),
    "the window moves and what it shows doesn't": Mutant(
        f"{STOPPING}:TextTracker._certain",
        "self._before = self._decode(self._ids[shown:])",
        "pass",
        (
            "engine/test_stopping.py::test_spaces_between_words_stay",
            "engine/test_stopping.py::test_tracked_text_is_the_decoded_text",
        ),
    ),
    "an incomplete character holds back what is before it": Mutant(
        f"{STOPPING}:TextTracker.extend",
        "for token in tokens:\n    self.append(token)",
        "self._ids += tokens",
        ("engine/test_stopping.py::test_tokens_that_come_together",),
    ),
    "choices of the failed stay in the totals": Mutant(
        "foretoken.engine.stats:AcceptanceStats._combine",
        "sign * count",
        "max(0, sign) * count",
        ("engine/test_stats.py::test_totals_without_one_request",),
    ),
    "an end changes no slot": Mutant(
        "foretoken.models.target:ModelTarget.end",
        "self._changes += 1",
        "pass",
        ("models/test_target.py::test_states_are_not_resumed_after_a_move",),
    ),
}
"""Those of a sample of fifty over the engine, the loop, the rules and what drafters share, that no
test noticed."""

ONE_PASS = "drafters/test_small_models.py::test_{}_in_one_pass"

READING: dict[str, Mutant] = {
    "draft models read row by row": Mutant(
        "foretoken.models.drafting.draft_model:DraftModel.follow",
        "self._read(reading)",
        "[self._read([each]) for each in reading]",
        (ONE_PASS.format("prompts_in_another_tokenizer_are_read"),),
    ),
    "draft models of other tokenizers read row by row": Mutant(
        "foretoken.models.drafting.foreign:ForeignModel.follow",
        "self._model.follow(texts, [step for _, step in reading])",
        "[self._model.follow([text], [step]) for text, (_, step) in zip(texts, reading)]",
        (ONE_PASS.format("prompts_in_another_tokenizer_are_read"),),
    ),
    "adapters read row by row": Mutant(
        "foretoken.trainable.shallow:ShallowModel.follow",
        "self._run_waiting(reading, None)",
        "[self._run_waiting([each], None) for each in reading]",
        (ONE_PASS.format("layers_over_the_target_read_prompts"),),
    ),
    "GliDe reads row by row": Mutant(
        "foretoken.trainable.cross_attention:CrossAttentionModel.follow",
        "self._read([s for s, _ in reading], max((step.read for _, step in reading), default=0))",
        "[self._read([s], step.read) for s, step in reading]",
        (ONE_PASS.format("layers_over_the_target_read_prompts"),),
    ),
}
"""A batch's prompts."""

MUTANTS = {
    **SAMPLED,
    **NOISE,
    **SERVING,
    **CONTROL,
    **DRAFTING,
    **READING,
    **HANDED_OVER,
    **RECOMMENDING,
    **READING_SOURCES,
    **GOING_ON,
    **PREDICTING,
    **RETRIEVAL,
    **MASKING,
    **LEARNING,
}

BY_TEST: dict[str, list[str]] = {}
"""Test -> the mistakes that it must notice."""

for _name, _mutant in MUTANTS.items():
    for _test in _mutant.tests:
        BY_TEST.setdefault(_test, []).append(_name)
