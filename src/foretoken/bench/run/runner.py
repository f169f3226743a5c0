"""Runs methods beside one another: one target, one process, group by group.

Every method answers a group of prompts before any method sees the next one, in an order that
rotates, so a machine that drifts drifts for all. Later turns of a conversation continue plain
decoding's answer at the same batch size and temperature, so all methods read the same prompt.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from typing import Protocol

from foretoken.bench.measure.costs import Meter
from foretoken.bench.measure.energy import Energy
from foretoken.bench.measure.identity import compare
from foretoken.bench.measure.likelihood import log_likelihood
from foretoken.bench.measure.memory import PeakMemory
from foretoken.bench.measure.scores import score
from foretoken.bench.plan import BASELINE, Plan, Unit
from foretoken.bench.record import Answer, Target
from foretoken.bench.run.answers import Question, Spent, answers, middle
from foretoken.bench.suites.suite import LEAST_ROOM, Prompt, room_left
from foretoken.errors import ForetokenError
from foretoken.llm import LLM
from foretoken.models.load import find, read_config
from foretoken.sampling.params import SamplingParams
from foretoken.tree import Kind

_WARM_UP_TOKENS = 8


class Server(Protocol):
    """What serves units: our own `Runner`, or a server with the same methods."""

    @property
    def plan(self) -> Plan: ...

    @property
    def not_run(self) -> Mapping[str, str]:
        """Methods that can't be served, with the reason."""
        ...

    @property
    def labels(self) -> Seq[str]:
        """The methods that will answer every unit, plain decoding first."""
        ...

    @property
    def target(self) -> Target: ...

    def fitting(self, prompts: Seq[Prompt]) -> tuple[list[Prompt], list[str]]:
        """The prompts that leave `LEAST_ROOM` for the last answer, and the ids of the others."""
        ...

    def meter(self) -> Meter | None:
        """What measures the costs of passes in rounds, where that can be done."""
        ...

    def warm_up(self, prompt: Prompt) -> None:
        """Serve something that isn't measured."""
        ...

    def serve(self, unit: Unit) -> list[Answer]:
        """All turns of a unit by all methods: turn by turn, method by method."""
        ...


class Runner:
    """The plan's methods, loaded once around one copy of the target's weights."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        context: int = read_config(find(plan.model)).max_position_embeddings
        self.context = min(plan.max_model_len, context)
        self.llms = {
            BASELINE: LLM(
                plan.model,
                dtype=plan.dtype,
                max_model_len=self.context,
                max_num_seqs=max(plan.batch_sizes),
            )
        }
        self.not_run: dict[str, str] = {}
        for label in plan.methods:
            if label != BASELINE:
                self._try(label)
        device = self.plain.model.device
        self._memory, self._energy = PeakMemory(device), Energy(device)
        self._rotation = 0

    def _try(self, label: str) -> None:
        try:
            self.llms[label] = self._load(label)
        except ForetokenError as error:
            if not self.plan.lenient:
                raise
            self.not_run[label] = str(error)

    def _load(self, label: str) -> LLM:
        """A method around the weights that are already there."""
        return LLM(
            self.plain.model,
            tokenizer=self.plain.tokenizer,
            speculative_config=self.plan.methods.get(label),
            max_model_len=self.context,
            max_num_seqs=max(self.plan.batch_sizes),
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
        found: Target = {
            "name": self.plan.name,
            "parameters": model.parameters,
            "dtype": str(model.dtype).removeprefix("torch."),
            "backend": model.backend,
        }
        if self.plan.inflated is not None:
            found["inflated"] = self.plan.inflated
        return found

    def fitting(self, prompts: Seq[Prompt]) -> tuple[list[Prompt], list[str]]:
        """As `Server`. Earlier answers count with the most tokens that they may have."""
        kept: list[Prompt] = []
        skipped: list[str] = []
        for prompt in prompts:
            earlier = len(prompt.turns) - 1
            tokens = len(self._ids(prompt, [""] * earlier)) + earlier * self._limit(prompt)
            if room_left(tokens, self.context) < LEAST_ROOM:
                skipped.append(prompt.id)
            else:
                kept.append(prompt)
        return kept, skipped

    def meter(self) -> Meter:
        """As `Server`."""
        others = {label: llm for label, llm in self.llms.items() if label != BASELINE}
        return Meter(self.plain, others, self.plan.batch_sizes)

    def warm_up(self, prompt: Prompt) -> None:
        """As `Server`: the first passes allocate memory and pick kernels."""
        ids = self._ids(prompt, [])
        for llm in self.llms.values():
            for temperature in self.plan.temperatures:
                params = SamplingParams(
                    temperature=temperature, max_tokens=_WARM_UP_TOKENS, seed=self.plan.seed
                )
                for size in self.plan.batch_sizes:
                    llm.generate([ids] * size, params)
            _forget(llm)

    def serve(self, unit: Unit) -> list[Answer]:
        """As `Server`. A method that fails a turn fails the rest of the conversation, and where
        plain decoding fails there is nothing to hold the others against."""
        said: dict[tuple[str, str], list[str]] = {}
        broken: dict[tuple[str, str], str] = {}
        found: list[Answer] = []
        for turn in range(max(len(p.turns) for p in unit.prompts)):
            asked = self._questions(unit, turn, said)
            live = {
                label: [q for q in own if (label, q.prompt.id) not in broken]
                for label, own in asked.items()
            }
            served = self._repeats(live)
            self._judge(live, served)
            for label, own in served.items():
                for answer in own:
                    said.setdefault((label, answer.id), []).append(answer.text)
            _note_failures(served, broken)
            good = {(label, a.id): a for label, own in served.items() for a in own}
            for label, questions in asked.items():
                for question in questions:
                    key = label, question.prompt.id
                    found.append(question.failed(broken[key]) if key in broken else good[key])
        return found

    def _questions(
        self, unit: Unit, turn: int, said: Mapping[tuple[str, str], Seq[str]]
    ) -> dict[str, list[Question]]:
        """The turn as each method is asked it."""
        asked: dict[str, list[Question]] = {}
        target = self.target
        for label in self.llms:
            own = label if self.plan.own_history else BASELINE
            asked[label] = []
            for prompt in (p for p in unit.prompts if turn < len(p.turns)):
                history = [*said.get((own, prompt.id), ()), *[""] * turn][:turn]
                params = SamplingParams(
                    temperature=unit.temperature,
                    max_tokens=self._limit(prompt),
                    stop=prompt.stop,
                    seed=seed_of(self.plan.seed, prompt.id, turn),
                )
                asked[label].append(
                    Question(
                        target["name"],
                        target["dtype"],
                        label,
                        unit,
                        prompt,
                        turn,
                        self._ids(prompt, history),
                        params,
                    )
                )
        return asked

    def _limit(self, prompt: Prompt) -> int:
        return min(self.plan.max_tokens, prompt.max_tokens or self.plan.max_tokens)

    def _repeats(self, asked: Mapping[str, list[Question]]) -> dict[str, list[Answer]]:
        """What each method answered, the median of its repeats."""
        tries: dict[str, list[list[Answer]]] = {label: [] for label in asked}
        for _ in range(self.plan.repeats):
            for label in self._order():
                tries[label].append(self._generate(label, asked[label]))
        return {label: middle(found) for label, found in tries.items()}

    def _order(self) -> list[str]:
        self._rotation += 1
        at = self._rotation % len(self.llms)
        return [*self.labels[at:], *self.labels[:at]]

    def _generate(self, label: str, asked: list[Question]) -> list[Answer]:
        """One group's answers by one method."""
        if not asked:
            return []
        llm = self.llms[label]
        if not self.plan.warm:
            _forget(llm)
        llm.reset_stats()
        self._memory.reset()
        self._energy.reset()
        try:
            outputs = llm.generate([q.ids for q in asked], [q.params for q in asked])
        except Exception as error:  # whatever it was: the rest of the run is worth having
            self.llms[label] = self._load(label)  # nobody knows in what state it left the old one
            return [q.failed(f"{type(error).__name__}: {error}") for q in asked]
        spent = Spent(llm.stats, self._memory.mib(), self._energy.joules())
        return answers(asked, outputs, spent, llm.tokenizer)

    def _judge(self, asked: Mapping[str, Seq[Question]], served: Mapping[str, Seq[Answer]]) -> None:
        """Hold what was answered against plain decoding, the target and the references."""
        plain = {a.id: (q.ids, a) for q, a in zip(asked[BASELINE], served[BASELINE], strict=True)}
        approximate = {x for x, llm in self.llms.items() if not llm.engine.verifier.exact}
        weighed = {BASELINE, *approximate} if approximate else set()
        for label in served:
            for question, answer in zip(asked[label], served[label], strict=True):
                if answer.error is not None:
                    continue
                answer.scores = score(question.prompt, question.turn, answer.text)
                if label in weighed:
                    answer.log_likelihood = log_likelihood(
                        self.plain, question.ids, answer.token_ids
                    )
                ids, other = plain.get(answer.id, (None, answer))
                if ids == question.ids and self._same_tokens(label, question.params):
                    answer.sameness, answer.margin = compare(
                        self.plain, ids, question.params, other.token_ids, answer.token_ids
                    )

    def _same_tokens(self, label: str, params: SamplingParams) -> bool:
        """Whether the method claims plain decoding's very tokens; else it has its distribution at
        most."""
        drawn = self.llms[label].engine.drafter.kinds - {Kind.CHOSEN, Kind.AUXILIARY}
        return params.greedy or not drawn

    def _ids(self, prompt: Prompt, said: Seq[str]) -> list[int]:
        """The tokens of the turn after what was said; as plain text without a chat template."""
        turns = prompt.turns[: len(said) + 1]
        if getattr(self.plain.tokenizer, "chat_template", None):
            messages = [{"role": "system", "content": prompt.system}] if prompt.system else []
            for turn, answer in zip(turns, [*said, None], strict=True):
                messages.append({"role": "user", "content": turn})
                if answer is not None:
                    messages.append({"role": "assistant", "content": answer})
            return self.plain.chat_prompt(messages)
        texts = [prompt.system or "", *_alternating(turns, said)]
        ids: list[int] = self.plain.tokenizer("\n".join(filter(None, texts)))["input_ids"]
        return ids


def seed_of(seed: int, prompt_id: str, turn: int) -> int:
    """The seed of one turn: another one for each prompt, or a batch would share its luck."""
    return zlib.crc32(f"{seed} {prompt_id} {turn}".encode())


def _alternating(turns: Seq[str], said: Seq[str]) -> Iterator[str]:
    for turn, answer in zip(turns, [*said, ""], strict=True):
        yield turn
        yield answer


def _note_failures(served: Mapping[str, Seq[Answer]], broken: dict[tuple[str, str], str]) -> None:
    """Remember which conversations are over, under (method, prompt)."""
    for label in served:
        for answer in served[label]:
            if answer.error is not None:
                broken[label, answer.id] = answer.error
    for answer in served[BASELINE]:
        for label in served:
            if answer.error is not None and label != BASELINE:
                broken[label, answer.id] = f"plain decoding failed: {answer.error}"


def _forget(llm: LLM) -> None:
    """Drop what the drafter has learned from earlier answers, where it keeps anything."""
    if llm.engine.drafter.shared is not None:
        llm.engine.drafter.shared.reset()
