"""Runs methods side by side: one target, one process, group by group.

Every method answers a group of prompts before any method gets the next one, in an order that
rotates, so that a machine whose speed drifts affects all alike. Later turns of a conversation
continue plain decoding's answer at the same batch size and temperature, so all methods read the
same prompt.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from collections.abc import Sequence as Seq
from contextlib import suppress
from dataclasses import replace
from time import perf_counter
from typing import Any

from foretoken.bench.measure.costs import CONTEXT, Meter
from foretoken.bench.measure.energy import Energy
from foretoken.bench.measure.identity import compare
from foretoken.bench.measure.likelihood import log_likelihood
from foretoken.bench.measure.memory import PeakMemory
from foretoken.bench.measure.scores import score
from foretoken.bench.plan import Plan, Unit, seed_of
from foretoken.bench.record import BASELINE, Answer, Target
from foretoken.bench.run.answers import GroupUsage, Question, answers, median_repeat
from foretoken.bench.run.order import Order
from foretoken.bench.suites import vicuna
from foretoken.bench.suites.suite import LEAST_ROOM, Prompt, room_left
from foretoken.drafters.online import Online
from foretoken.engine.prompts import text_ids
from foretoken.errors import ForetokenError
from foretoken.llm import LLM
from foretoken.models.context import context
from foretoken.models.load import find, read_config
from foretoken.models.seq2seq.family import FAMILIES
from foretoken.protocols import Drafter
from foretoken.sampling.params import SamplingParams
from foretoken.tree import Kind

_WARM_UP_TOKENS = 8

Conversation = tuple[str, str]
"""A method, and the id of the prompt that it answers."""
Texts = dict[Conversation, list[str]]
"""The texts of the turns answered so far."""


class Runner:
    """The plan's methods, loaded once around one copy of the target's weights."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        config = read_config(find(plan.model), plan.trust_remote_code)
        self.context = min(plan.max_model_len, _context(config))
        self.llms = {
            BASELINE: LLM(
                plan.model,
                dtype=plan.dtype,
                device=plan.device,
                backend=plan.backend,
                trust_remote_code=plan.trust_remote_code,
                max_model_len=self.context,
                max_num_seqs=max(plan.batch_sizes),
                kv_cache_memory=plan.kv_cache_memory,
                enable_prefix_caching=False,  # every answer is to take its whole time
                weights_memory=plan.weights_memory,
            )
        }
        self.not_run: dict[str, str] = {}
        for label in plan.methods:
            if label != BASELINE:
                self._add(label)
        device = self.plain.model.device
        self._memory, self._energy = PeakMemory(device), Energy(device)
        self._order = Order()
        self._warming: list[int] = []

    def add(self, label: str, config: Mapping[str, Any]) -> None:
        """One more method, by its `speculative_config`; where the plan is lenient, one that the
        target can't serve is noted in `not_run`."""
        self.plan = dataclasses.replace(self.plan, methods={**self.plan.methods, label: config})
        self._add(label)

    def keep(self, labels: Collection[str]) -> None:
        """Serve plain decoding and these from now on; the other methods are freed."""
        for label in self.labels:
            if label != BASELINE and label not in labels:
                self.llms.pop(label).close()

    def _add(self, label: str) -> None:
        try:
            self.llms[label] = self._load(label)
        except ForetokenError as error:
            if not self.plan.lenient:
                raise
            self.not_run[label] = str(error)

    def _load(self, label: str) -> LLM:
        """A method on the target that is already loaded."""
        return LLM(
            self.plain.model,
            tokenizer=self.plain.tokenizer,
            speculative_config=self.plan.methods.get(label),
            max_model_len=self.context,
            max_num_seqs=max(self.plan.batch_sizes),
            kv_cache_memory=self.plan.kv_cache_memory,
            enable_prefix_caching=False,
            trust_remote_code=self.plan.trust_remote_code,
            eos_ids=self.plain.engine.eos_ids,
        )

    @property
    def plain(self) -> LLM:
        """The target without a drafter."""
        return self.llms[BASELINE]

    @property
    def labels(self) -> list[str]:
        return list(self.llms)

    @property
    def target(self) -> Target:
        model = self.plain.model
        target: Target = {
            "name": self.plan.name,
            "parameters": model.parameters,
            "dtype": str(model.dtype).removeprefix("torch."),
            "backend": model.backend,
            "device": model.device.type,
        }
        if self.plan.inflated is not None:
            target["inflated"] = self.plan.inflated
        return target

    def fitting(self, prompts: Seq[Prompt]) -> tuple[list[Prompt], list[str]]:
        """See `Server.fitting`. Earlier answers count with the most tokens that they may have."""
        kept: list[Prompt] = []
        skipped: list[str] = []
        for prompt in prompts:
            earlier = len(prompt.turns) - 1
            tokens = len(self.input_ids(prompt, [""] * earlier)) + earlier * self._max_tokens(
                prompt
            )
            if room_left(tokens, self.context) < LEAST_ROOM:
                skipped.append(prompt.id)
            else:
                kept.append(prompt)
        return kept, skipped

    def meter(self, context: int = CONTEXT) -> Meter:
        """See `Server.meter`. context: tokens before those of the passes that are timed."""
        others = {label: llm for label, llm in self.llms.items() if label != BASELINE}
        return Meter(self.plain, others, self.plan.batch_sizes, context)

    def warm_up(self, prompt: Prompt) -> None:
        """See `Server.warm_up`: the first passes allocate memory and pick kernels."""
        self._warming = self.input_ids(prompt, [])
        for llm in self.llms.values():
            self._warm(llm)

    def _warm(self, llm: LLM) -> None:
        for temperature in self.plan.temperatures:
            params = SamplingParams(
                temperature=temperature, max_tokens=_WARM_UP_TOKENS, seed=self.plan.seed
            )
            for size in self.plan.batch_sizes:
                llm.generate([self._warming] * size, params)
        _reset_drafter(llm)

    def serve(self, unit: Unit) -> list[Answer]:
        """See `Server.serve`. A method that fails a turn fails the rest of the conversation; where
        plain decoding fails, so do all, as there is nothing to compare them with."""
        earlier: Texts = {}
        failures: dict[Conversation, str] = {}
        unit_answers: list[Answer] = []
        for turn in range(max(len(p.turns) for p in unit.prompts)):
            asked = self._questions(unit, turn, earlier)
            live = {
                label: [q for q in questions if (label, q.prompt.id) not in failures]
                for label, questions in asked.items()
            }
            served = self._repeats(unit, turn, live)
            self._rate(live, served)
            answered = {(label, a.id): a for label, own in served.items() for a in own}
            for key, answer in answered.items():
                earlier.setdefault(key, []).append(answer.text)
            _note_failures(served, failures)
            for label, questions in asked.items():
                for question in questions:
                    key = label, question.prompt.id
                    failure = failures.get(key)
                    unit_answers.append(
                        answered[key] if failure is None else question.failed(failure)
                    )
        return unit_answers

    def _questions(self, unit: Unit, turn: int, earlier: Texts) -> dict[str, list[Question]]:
        """The questions of a turn, by method."""
        prompts = [prompt for prompt in unit.prompts if turn < len(prompt.turns)]
        return {
            label: [self._question(label, unit, prompt, turn, earlier) for prompt in prompts]
            for label in self.llms
        }

    def _question(
        self, label: str, unit: Unit, prompt: Prompt, turn: int, earlier: Texts
    ) -> Question:
        author = label if self.plan.own_history else BASELINE
        history = [*earlier.get((author, prompt.id), ()), *[""] * turn][:turn]
        params = SamplingParams(
            temperature=unit.temperature,
            max_tokens=self._max_tokens(prompt),
            stop=prompt.stop,
            seed=seed_of(self.plan.seed, prompt.id, turn),
        )
        ids = self.input_ids(prompt, history)
        name, dtype = self.target["name"], self.target["dtype"]
        return Question(name, dtype, label, unit, prompt, turn, ids, params)

    def _max_tokens(self, prompt: Prompt) -> int:
        return min(self.plan.max_tokens, prompt.max_tokens or self.plan.max_tokens)

    def _repeats(
        self, unit: Unit, turn: int, asked: Mapping[str, list[Question]]
    ) -> dict[str, list[Answer]]:
        """Each method's answers: those of its median repeat."""
        tries: dict[str, list[list[Answer]]] = {label: [] for label in asked}
        for _ in range(self.plan.repeats):
            for label in self._order.of(self.labels, unit, turn):
                tries[label].append(self._generate(label, asked[label]))
        return {label: median_repeat(repeats) for label, repeats in tries.items()}

    def _generate(self, label: str, asked: list[Question]) -> list[Answer]:
        """One group's answers by one method."""
        if not asked:
            return []
        llm = self.llms[label]
        if not self.plan.warm:
            _reset_drafter(llm)
        llm.reset_stats()
        self._memory.reset()
        budget = llm.engine.target.budget
        budget.reset_peak()
        self._energy.reset()
        try:
            outputs = llm.generate([q.ids for q in asked], [q.params for q in asked])
        except Exception as error:  # whatever it was: the rest of the run is worth having
            if label != BASELINE:
                llm.close()  # a drafter that was given as an object drafts for one at a time
            self.llms[label] = self._load(label)  # the old one may be in any state
            if self._warming:
                with suppress(Exception):  # the next answer would say so
                    self._warm(self.llms[label])
            return [q.failed(f"{type(error).__name__}: {error}") for q in asked]
        learning = _settled(llm.engine.drafter)
        stats = replace(llm.stats, other_time=llm.stats.other_time + learning)
        usage = GroupUsage(stats, self._memory.mib(), budget.peak / 2**20, self._energy.joules())
        return answers(asked, outputs, usage, llm.tokenizer)

    def _rate(self, asked: Mapping[str, Seq[Question]], served: Mapping[str, Seq[Answer]]) -> None:
        """Compare answers with plain decoding's, the target's probabilities and the references."""
        plain = {a.id: (q.ids, a) for q, a in zip(asked[BASELINE], served[BASELINE], strict=True)}
        approximate = {x for x, llm in self.llms.items() if not llm.engine.verifier.exact}
        scored = {BASELINE, *approximate} if approximate else set()
        for label in served:
            for question, answer in zip(asked[label], served[label], strict=True):
                if answer.error is not None:
                    continue
                answer.scores = score(question.prompt, question.turn, answer.text)
                if label in scored:
                    answer.log_likelihood = log_likelihood(
                        self.plain, question.ids, answer.token_ids
                    )
                ids, other = plain.get(answer.id, (None, answer))
                if ids == question.ids and self._claims_same_tokens(label, question.params):
                    answer.sameness, answer.margin = compare(
                        self.plain, ids, question.params, other.token_ids, answer.token_ids
                    )

    def _claims_same_tokens(self, label: str, params: SamplingParams) -> bool:
        """Whether the method claims exactly plain decoding's tokens, not only its distribution."""
        engine = self.llms[label].engine
        drawn = engine.drafter.kinds - {Kind.CHOSEN, Kind.AUXILIARY}
        noise = self.plain.engine.verifier.draws  # "gumbel" has another, and so other texts
        return params.greedy or (not drawn and engine.verifier.draws is noise)

    def input_ids(self, prompt: Prompt, history: Seq[str]) -> list[int]:
        """The token ids of a turn and all before it. Raises `ForetokenError`, with the prompt's
        id, where there are none."""
        try:
            return self._encoded(prompt, history)
        except ForetokenError as error:
            raise ForetokenError(f"Prompt {prompt.id!r}: {error}") from error

    def _encoded(self, prompt: Prompt, history: Seq[str]) -> list[int]:
        """By the plan's template, else the target's own, or as plain text without one."""
        turns = prompt.turns[: len(history) + 1]
        if self.plan.template is not None:
            text = vicuna.written(turns, history, prompt.system)
            return text_ids(text, self.plain.tokenizer)
        if getattr(self.plain.tokenizer, "chat_template", None):
            messages = [{"role": "system", "content": prompt.system}] if prompt.system else []
            for turn, answer in zip(turns, [*history, None], strict=True):
                messages.append({"role": "user", "content": turn})
                if answer is not None:
                    messages.append({"role": "assistant", "content": answer})
            return self.plain.chat_prompt(messages)
        texts = [prompt.system or "", *_alternating(turns, history)]
        return text_ids("\n".join(filter(None, texts)), self.plain.tokenizer)


def _context(config: Any) -> int:
    """The longest text of a model, by its configuration; an encoder–decoder's family names its own,
    as T5 does it in another way."""
    if config.model_type in FAMILIES:
        return FAMILIES[config.model_type].shape(config).max_length
    return context(config.get_text_config(decoder=True))


def _alternating(turns: Seq[str], history: Seq[str]) -> Iterator[str]:
    for turn, answer in zip(turns, [*history, ""], strict=True):
        yield turn
        yield answer


def _note_failures(served: Mapping[str, Seq[Answer]], failures: dict[Conversation, str]) -> None:
    """Note which conversations have failed, and why."""
    for label in served:
        for answer in served[label]:
            if answer.error is not None:
                failures[label, answer.id] = answer.error
    for answer in served[BASELINE]:
        for label in served:
            if answer.error is not None and label != BASELINE:
                failures[label, answer.id] = f"plain decoding failed: {answer.error}"


def _settled(drafter: Drafter) -> float:
    """Wait for a training step that is under way, which would compute during the next method's
    answers; the seconds that it took."""
    if not isinstance(drafter, Online):
        return sum(map(_settled, drafter.parts))
    began = perf_counter()
    drafter.learner.settle()
    return perf_counter() - began


def _reset_drafter(llm: LLM) -> None:
    """Drop what the drafter has learned from earlier answers, where it keeps anything."""
    if llm.engine.drafter.shared is not None:
        llm.engine.drafter.shared.reset()
