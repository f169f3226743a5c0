"""`LLM`: generates text with a target model and a decoding method.

llm = LLM("path-or-hub-id", speculative_config={"method": "sps", "model": "path-or-hub-id"})
[out] = llm.generate(["…"], SamplingParams(temperature=0, max_tokens=64))
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from collections.abc import Sequence as Seq
from pathlib import Path
from queue import SimpleQueue
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

from foretoken.config import build
from foretoken.engine import prompts as reader
from foretoken.engine.cache_memory import set_limit, state
from foretoken.engine.conversations import Messages, template_options
from foretoken.engine.encoded import Encoded, encoded, paired
from foretoken.engine.engine import Engine
from foretoken.engine.logprobs import continuation_logprobs
from foretoken.engine.outputs import RequestOutput
from foretoken.engine.prompts import Prompt
from foretoken.engine.settings import Settings, check_loaded
from foretoken.engine.stats import EngineStats
from foretoken.engine.streamed import Streamed
from foretoken.engine.worker import Worker, check_unserved
from foretoken.errors import ForetokenError, caught, described, shown
from foretoken.errors.values import typed
from foretoken.errors.vllm_names import check_keywords
from foretoken.machine import return_memory
from foretoken.models.load import find, in_checkpoint, load_model, tokenizer_of, wrapped
from foretoken.models.model import CausalLM
from foretoken.models.seq2seq.target import target_for
from foretoken.progress import check_installed, track
from foretoken.sampling.params import SamplingParams
from foretoken.speculative_config import AnyConfig

if TYPE_CHECKING:
    from transformers import PreTrainedModel


_log = logging.getLogger(__name__)


class LLM:
    """A target model with a decoding method.

    Its methods may be called from any thread; one thread of its own runs the model. Use it in a
    `with` block, or call `close`, to free the memory at a certain moment.

    Args:
        model: checkpoint folder, GGUF file, hub id, bundled name ("mini"), a loaded transformers
            model, or `Contrastive(expert, amateur)` of two of them.
        speculative_config: {"method": …, "model": …, …}, see `foretoken methods`; None for none.
        gguf_file: the GGUF file to take in a folder or repository.
        tokenizer: a transformers tokenizer, or where to find one; by default the model's.
        dtype: "auto", or a torch dtype or its name.
        device: "auto", "cpu", "cuda" …
        backend: how linear layers run (native models): "auto", "plain", "packed", "panels", "half",
            "blocks", "q4", "q5", "q6", "q8", "int8", "int4", or a runner and one of these, as
            "compiled+plain"; docs/performance.md.
        model_impl: "auto", "native" or "transformers".
        max_model_len: context, prompt and output together; by default the model's.
        max_num_seqs: sequences served at a time, by default 8 where memory allows.
        max_num_batched_tokens: prompt tokens read in one step.
        max_queued: sequences that may wait, beyond which requests are refused; None for any.
        trust_remote_code: whether code that comes with a checkpoint, or a draft model's, may run.
        eos_ids: the tokens that end a text; by default those that the model's files name.
        seed: makes requests without a seed of their own repeatable, in the order of calls.
        enable_prefix_caching: whether prompts go on from what caches have of earlier texts; by
            default unless the model is given loaded, as its weights may change; docs/memory.md.
        enforce_eager: whether a backend that compiles passes is refused.
        kv_cache_memory: what caches may fill: bytes, "4GiB", 0.5 of what is free; all but 1 GiB.
        gpu_memory_utilization: the same, as the share of a GPU that all may take.
        kv_cache_dtype: how keys and values are stored: "auto", "float16", "bfloat16", "float32".
        weights_memory: bytes that the model's weights may take, as "4GiB"; docs/offloading.md.
        structured_outputs_backend: "auto", "guidance" or "xgrammar"; docs/structured-output.md.
        others: vLLM's other names, where they ask for what is done anyway; others are refused.

    Raises:
        ForetokenError: for anything missing, unknown or not servable, in one sentence.
    """

    def __init__(
        self,
        model: str | Path | PreTrainedModel | CausalLM,
        *,
        speculative_config: AnyConfig | None = None,
        gguf_file: str | None = None,
        tokenizer: Any = None,
        dtype: str | torch.dtype = "auto",
        device: str | torch.device = "auto",
        backend: str = "auto",
        model_impl: str = "auto",
        max_model_len: int | None = None,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int = 512,
        max_queued: int | None = None,
        trust_remote_code: bool = False,
        eos_ids: Collection[int] | None = None,
        seed: int | None = None,
        enforce_eager: bool = False,
        kv_cache_memory: int | float | str | None = None,
        gpu_memory_utilization: float | None = None,
        kv_cache_dtype: str = "auto",
        weights_memory: int | str | None = None,
        enable_prefix_caching: bool | None = None,
        structured_outputs_backend: str = "auto",
        **others: Any,
    ) -> None:
        check_keywords(others, {*LLM.__init__.__annotations__} - {"others", "return"})
        settings = Settings(
            backend=backend,
            model_impl=model_impl,
            max_model_len=max_model_len,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_queued=max_queued,
            trust_remote_code=trust_remote_code,
            eos_ids=eos_ids,
            seed=seed,
            enforce_eager=enforce_eager,
            kv_cache_memory=kv_cache_memory,
            gpu_memory_utilization=gpu_memory_utilization,
            kv_cache_dtype=kv_cache_dtype,
            weights_memory=weights_memory,
            enable_prefix_caching=enable_prefix_caching,
            structured_outputs_backend=structured_outputs_backend,
        )
        method = build(speculative_config)
        check_unserved(method.drafter)
        self.method = method.name
        if gguf_file is not None:
            model = in_checkpoint(model, gguf_file)
        folder = find(model) if isinstance(model, (str, Path)) else None
        self._source = "a loaded model" if folder is None else str(model)
        if folder is None:
            loaded = wrapped(model)
            check_loaded(loaded, settings, dtype, device)
        else:
            loaded = load_model(
                folder,
                dtype=dtype,
                device=device,
                backend=settings.backend,
                model_impl=settings.model_impl,
                trust_remote_code=trust_remote_code,
                weights_memory=settings.weights_bound,
                max_model_len=settings.max_model_len,
            )
        self.tokenizer = tokenizer_of(tokenizer, folder, trust_remote_code)
        return_memory()  # a vocabulary was read through lists of its texts
        self.trust_remote_code = trust_remote_code
        target = target_for(
            loaded,
            *settings.sizes(loaded),
            tokenizer=self.tokenizer,
            trust_remote_code=trust_remote_code,
            budget=settings.budget(),
        )
        engine = Engine(
            method.wrapped(target),
            method.drafter,
            method.verifier,
            eos_ids=settings.ends(loaded, self.tokenizer),
            **settings.of_engine(from_files=folder is not None),
        )
        set_limit(target.budget, settings.cache_bound, loaded.device, target.max_length)
        self._worker = Worker(engine)
        _log.info("%r", self)

    def __repr__(self) -> str:
        try:
            target = self.engine.target
        except ForetokenError:
            gone = "closed" if self._worker.closed else "loaded by another process"
            return f"LLM({self._source}, method={self.method!r}, {gone})"
        model = target.model
        return (
            f"LLM({self._source}, method={self.method!r}, backend={model.backend!r}, "
            f"dtype={str(model.dtype).removeprefix('torch.')}, device={str(model.device)!r}, "
            f"kv_cache={state(target.budget)!r})"
        )

    def __reduce__(self) -> Any:
        raise ForetokenError(
            "An LLM can't be copied or pickled, as a thread of its own runs it; share it between "
            "threads, or load another one."
        )

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End what runs and free the model's memory; further calls raise `ForetokenError`."""
        self._worker.close()

    @property
    def engine(self) -> Engine:
        """What decodes. It belongs to a thread of its own: look at it, and step it only by
        `generate` and `stream`. Raises `ForetokenError` once the LLM is closed."""
        return self._worker.engine

    @property
    def worker(self) -> Worker:
        """The thread that runs the engine, for other fronts of it."""
        return self._worker

    @property
    def model(self) -> CausalLM:
        """The target model."""
        model: CausalLM = self.engine.target.model
        return model

    @property
    def stats(self) -> EngineStats:
        """Totals over everything this LLM has done since `reset_stats`."""
        return self.engine.stats

    def reset_stats(self) -> None:
        """Start counting again."""
        self._worker.call(Engine.reset_stats)

    def get_tokenizer(self) -> Any:
        """The tokenizer, as it was given or loaded; None where there is none."""
        return self.tokenizer

    def reset_prefix_cache(self) -> bool:
        """Forget what caches have of earlier texts; as in vLLM, whether that could be done."""
        self._worker.call(lambda engine: engine.prefixes.reset())
        return True

    def generate(
        self,
        prompts: Prompt | Seq[Prompt],
        sampling_params: SamplingParams | Seq[SamplingParams] | None = None,
        *,
        use_tqdm: bool = False,
        raise_on_error: bool | None = None,
    ) -> list[RequestOutput]:
        """Generate a text for each prompt; outputs in the prompts' order.

        A prompt is a text, token ids (a list or a 1-D array), {"prompt": …}, {"prompt_token_ids":
        …}, or what a tokenizer returned; several are a list of these, a 2-D array, or a batch.
        An encoder–decoder's prompt is its source, and its text begins anew.
        Calls from several threads are served together. Interrupting cancels what is unfinished.
        `use_tqdm` shows a progress bar. `raise_on_error`: whether a request that fails raises its
        error, once all have ended; by default only where a prompt is given alone and not in a list.
        Otherwise it comes back with `.error` set, and reading its `.text` raises that. Raises
        `ForetokenError` for a call that can't be served.
        """
        if typed("use_tqdm", use_tqdm, bool):
            check_installed()
        typed("raise_on_error", raise_on_error, bool | None)
        todo, alone = reader.split(prompts)
        params = self._params(sampling_params, len(todo))
        done = self._outputs(todo, params, use_tqdm)
        if alone if raise_on_error is None else raise_on_error:
            for output in done:
                output.raise_error()
        return done

    def _outputs(
        self, prompts: Seq[Any], params: Seq[SamplingParams], show: bool
    ) -> list[RequestOutput]:
        done: dict[int, RequestOutput] = {}
        known: dict[int, Encoded] = {}
        for place, (prompt, chosen) in enumerate(zip(prompts, params, strict=True)):
            try:
                known[place] = encoded(prompt, chosen, self.tokenizer)
            except ForetokenError as error:
                text = prompt if isinstance(prompt, str) else None
                done[place] = RequestOutput.refused(error, text=text)
        ended: SimpleQueue[RequestOutput] = SimpleQueue()
        places: dict[int, int] = {}
        arrived = perf_counter()

        def receive(output: RequestOutput) -> None:
            if output.finished:
                ended.put(output)

        def add_all(engine: Engine) -> None:
            for place, (ids, text, chosen) in known.items():
                try:
                    request = engine.add(ids, chosen, text, arrived=arrived)
                except caught() as error:
                    refused = described("The request", error)
                    done[place] = RequestOutput.refused(refused, ids, text)
                else:
                    places[request.id] = place
                    self._worker.follow(request.id, receive)

        try:
            self._worker.call(add_all)
            with track("Generating", len(places), show) as advance:
                while places:
                    output = ended.get()
                    done[places.pop(output.request_id)] = output
                    advance()
        except BaseException:
            self._worker.cancel(places)  # what is added by then, though it may not be there yet
            raise
        return [done[place] for place in range(len(prompts))]

    def score(
        self, prompts: Prompt | Seq[Prompt], continuations: Prompt | Seq[Prompt]
    ) -> list[float] | list[list[float]]:
        """The natural log-probability of each token of a continuation, given the prompt and the
        tokens before it: under the target's raw logits, whatever the method.

        Both are what `generate` takes as prompts. A list of prompts needs as many continuations,
        and gives a list of lists. A continuation's text is tokenized after the prompt's, where that
        leaves the prompt's tokens as they are, and else by itself. A pair has to leave room for one
        more token in the context. Raises `ForetokenError` for a pair that can't be scored.
        """
        pairs, alone = paired(prompts, continuations, self.tokenizer)
        texts = [[*before, *after] for before, after in pairs]
        params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, prompt_logprobs=0)
        outputs = self.generate(texts, params, raise_on_error=True)
        scores = [
            continuation_logprobs(output, len(before))
            for (before, _), output in zip(pairs, outputs, strict=True)
        ]
        return scores[0] if alone else scores

    def chat(
        self,
        messages: Messages | Seq[Messages],
        sampling_params: SamplingParams | Seq[SamplingParams] | None = None,
        *,
        use_tqdm: bool = False,
        raise_on_error: bool | None = None,
        tools: Seq[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[RequestOutput]:
        """Answer one conversation or several, in the tokenizer's chat template.

        A message is a mapping with "role" and "content": a text, or a list of parts of text.
        `tools`: functions that may be called. `chat_template_kwargs`: the template's own variables.
        """
        todo: Any
        options = template_options(self.tokenizer, tools, chat_template_kwargs)
        todo, one = reader.split_conversations(messages, options)
        alone = one if raise_on_error is None else raise_on_error
        return self.generate(todo, sampling_params, use_tqdm=use_tqdm, raise_on_error=alone)

    def chat_prompt(self, messages: Messages) -> list[int]:
        """The token ids of a conversation, ready for the assistant's turn."""
        return reader.chat_ids(messages, self.tokenizer)

    def stream(
        self, prompt: Prompt | Messages, sampling_params: SamplingParams | None = None
    ) -> Iterator[RequestOutput]:
        """Yield one request's output each time it grows; `.outputs[i].text` is the text so far.

        A prompt is one that `generate` takes, or a conversation. Closing the iterator, or dropping
        it, cancels the request. Text that could still become part of a stop string is withheld. An
        error is in the last output, as `.error`.
        """
        [chosen] = self._params(sampling_params, 1)
        given = encoded(reader.single(prompt), chosen, self.tokenizer)
        arrived: SimpleQueue[Callable[[], RequestOutput]] = SimpleQueue()
        added = self._worker.begin(given, lambda output: arrived.put(output.standing()))
        shown_so_far, ended = Streamed(self.tokenizer, given.params), False
        try:
            added.result()
            while not ended:
                output = shown_so_far.read(arrived.get()())
                ended = output.finished  # what is yielded is the caller's
                yield output
        finally:
            self._worker.forsake(added)

    @staticmethod
    def _params(
        params: SamplingParams | Seq[SamplingParams] | None, count: int
    ) -> list[SamplingParams]:
        if params is None or isinstance(params, SamplingParams):
            return [SamplingParams() if params is None else params] * count
        given: Any = params
        if not isinstance(given, Seq) or not all(isinstance(p, SamplingParams) for p in given):
            raise ForetokenError(
                f"sampling_params is {shown(given)}; give SamplingParams(…), or a list of them."
            )
        if len(params) != count:
            raise ForetokenError(
                f"There are {count} prompts and {len(params)} sampling_params; give one for all, "
                "or one for each."
            )
        return list(params)
